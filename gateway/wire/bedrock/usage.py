"""Converts the usage of Converse to the normal form of `domain.pricing.tokens`; a malformed one
yields None.

`inputTokens` leaves cached tokens out, both read and written ones, so the prompt is the sum of the
three (litellm 1.110.2 adds them for all models, 2026-11-24; AWS's page on prompt caching was not
read). Reasoning is a part of `outputTokens` and has no count.
"""

from __future__ import annotations

from typing import Any

from gateway.domain.pricing.pricing import tier_name
from gateway.domain.pricing.tokens import UNREADABLE, TokenUsage
from gateway.domain.pricing.unknown_counts import known_names, unknown_counts, with_unknown
from gateway.domain.request.served_tier import agreed_tier
from gateway.wire.foreign_json import count_in, figures_in, is_unread, objects_in, text_in
from gateway.wire.observed import stated_word

_EMPTY_USAGE = TokenUsage()
_COUNTS = (
    "inputTokens",
    "outputTokens",
    "cacheReadInputTokens",
    "cacheWriteInputTokens",
    "totalTokens",
)
# Recorded answers have the counts of the cache under both names.
_NAMES = known_names(
    {
        *_COUNTS,
        "cacheReadInputTokenCount",
        "cacheWriteInputTokenCount",
        "cacheDetails.inputTokens",
        "cacheDetails.ttl",
    },
    {},
)


def usage_object(holder: dict[str, Any]) -> dict[str, Any]:
    """Return the usage in an answer, undecoded; empty if it has none."""
    return figures_in(holder, "usage")


def usage_from_wire(wire: dict[str, Any]) -> TokenUsage | None:
    """Return the token counts that a usage object reports; None if it reports none.

    Counts of the cache are left out if nothing was cached. If the total shows that there is more
    than prompt and answer, an absent count is unknown. One that is there and cannot be read marks
    the usage.
    """
    prompt, answer = count_in(wire, "inputTokens"), count_in(wire, "outputTokens")
    read, written = count_in(wire, "cacheReadInputTokens"), count_in(wire, "cacheWriteInputTokens")
    is_sure = not _has_unread(wire)
    gap = _unexplained(wire, (prompt or 0) + (answer or 0)) if is_sure else UNREADABLE
    if prompt is not None and answer is not None and gap is None:
        read, written = read or 0, written or 0
    usage = TokenUsage(
        input_tokens=None if prompt is None else prompt + (read or 0) + (written or 0),
        cached_input_tokens=read,
        cache_write_tokens=written,
        cache_write_1h_tokens=_written_for(wire, "1h"),
        output_tokens=answer,
        unexplained_tokens=gap,
        unknown_cache_write_tokens=_written_otherwise(wire, written),
    )
    found = None if usage == _EMPTY_USAGE else usage
    return with_unknown(found, unknown_counts(wire, _NAMES))


def _has_unread(wire: dict[str, Any]) -> bool:
    """Return True if a count is there and cannot be read."""
    details = wire.get("cacheDetails")
    is_list = not details or isinstance(details, list)
    parts = objects_in(wire, "cacheDetails")
    return (
        is_unread(wire, *_COUNTS)
        or not is_list
        or any(is_unread(detail, "inputTokens") for detail in parts)
    )


def tier_of(holder: dict[str, Any]) -> str | None:
    """Return the service tier that an answer names; its object may be a word alone.

    An optimized latency has prices of its own for some models, so it stands for the tier.
    """
    tier, performance = holder.get("serviceTier"), holder.get("performanceConfig")
    stated = stated_word(tier.get("type", tier) if isinstance(tier, dict) else tier)
    if not performance:
        return stated
    is_object = isinstance(performance, dict)
    latency = stated_word(performance.get("latency") if is_object else performance)
    if tier_name(latency) is None:
        return stated
    return latency if tier_name(stated) is None else agreed_tier(latency, stated)


def _unexplained(wire: dict[str, Any], counted: int) -> int | None:
    """Return the tokens of the total that are in no part, negative if the parts are more; None if
    nothing contradicts. The total has or leaves out the tokens of the cache.
    """
    cached = (
        count_in(wire, name) or 0 for name in ("cacheReadInputTokens", "cacheWriteInputTokens")
    )
    total, whole = count_in(wire, "totalTokens"), counted + sum(cached)
    return None if total in (None, counted, whole) else total - whole


def _written_otherwise(wire: dict[str, Any], written: int | None) -> int | None:
    """Return the tokens written to the cache for a time that has no name here, None if all have."""
    named = sum(_written_for(wire, ttl) or 0 for ttl in ("5m", "1h"))
    has_details = bool(objects_in(wire, "cacheDetails"))
    return max((written or 0) - named, 0) or None if has_details else None


def _written_for(wire: dict[str, Any], ttl: str) -> int | None:
    """Return the tokens written to the cache for a time, None if none is named."""
    counts = [
        count_in(detail, "inputTokens")
        for detail in objects_in(wire, "cacheDetails")
        if text_in(detail, "ttl") == ttl
    ]
    known = [count for count in counts if count is not None]
    # Details of other lifetimes say that none was written for this one.
    return sum(known) if known or objects_in(wire, "cacheDetails") else None
