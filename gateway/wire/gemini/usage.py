"""Converts Gemini's `usageMetadata` to the normal form of `domain.pricing.tokens`.

`promptTokenCount` includes cached tokens; tokens of tool results stand beside it. Thoughts stand
beside the candidates (google-genai 3.6.1, `GenerateContentResponseUsageMetadata`: the total is the
sum of all four). Google's JSON leaves out a count of 0.
"""

from __future__ import annotations

from typing import Any

import msgspec

from gateway.domain.pricing.tokens import UNREADABLE, UNREADABLE_USAGE, TokenUsage
from gateway.domain.pricing.unknown_counts import (
    INPUT,
    OUTPUT,
    known_names,
    unknown_counts,
    with_unknown,
)
from gateway.domain.request.served_tier import UNKNOWN_TIER, agreed_tier
from gateway.wire.foreign_json import (
    count_in,
    figures_in,
    is_unread,
    objects_in,
    text_in,
    value_of,
)
from gateway.wire.observed import stated_word

# The tiers that have prices of their own; Vertex states them as a kind of traffic.
_TIERS = {
    "ON_DEMAND": "standard",
    "ON_DEMAND_PRIORITY": "priority",
    "ON_DEMAND_FLEX": "flex",
}
MAX_WORD_CHARS = 64
# Each count with the beginning of the name of its parts.
_MODALITIES = {
    "promptTokenCount": "prompt",
    "toolUsePromptTokenCount": "toolUsePrompt",
    "cachedContentTokenCount": "cache",
    "candidatesTokenCount": "candidates",
}
_COUNTS = ("promptTokenCount", "candidatesTokenCount", "thoughtsTokenCount")
# ai.google.dev/api, "Modality". Videos and documents cost as text.
_KINDS = frozenset({"TEXT", "IMAGE", "VIDEO", "AUDIO", "DOCUMENT"})
_ALL_COUNTS = (*_MODALITIES, "thoughtsTokenCount", "totalTokenCount")
_NAMES = known_names(
    {
        *_ALL_COUNTS,
        *(f"{what}TokensDetails.modality" for what in _MODALITIES.values()),
        *(f"{what}TokensDetails.tokenCount" for what in _MODALITIES.values()),
        "promptTokenDetails",  # of embeddings of a text, as recorded
    },
    {
        f"{what}TokensDetails": OUTPUT if what == "candidates" else INPUT
        for what in _MODALITIES.values()
    },
)


def usage_object(holder: dict[str, Any]) -> dict[str, Any]:
    """Return the `usageMetadata` in an answer or an error; empty if it has none."""
    return figures_in(holder, "usageMetadata")


def usage_from_gemini(raw: msgspec.Raw | bytes) -> TokenUsage | None:
    """Return the token counts of a `usageMetadata`; None if there is none or it cannot be read.

    Vertex sends one without any count in the middle of a stream.
    """
    members = usage_object({"usageMetadata": value_of(bytes(raw))})
    return usage_of(members) if members else None


def usage_of(members: dict[str, Any]) -> TokenUsage | None:
    """Return the token counts of a decoded `usageMetadata`; None if it has no count."""
    prompt, candidates, thoughts = (count_in(members, name) for name in _COUNTS)
    if prompt is None and candidates is None and thoughts is None:
        unread = UNREADABLE_USAGE if _has_unread(members) else None
        return with_unknown(unread, unknown_counts(members, _NAMES))
    tool_results = count_in(members, "toolUsePromptTokenCount") or 0
    read = (*_details(members, "prompt"), *_details(members, "toolUsePrompt"))
    written = _details(members, "candidates")
    answer = _output(members, candidates or 0, thoughts or 0)
    usage = TokenUsage(
        input_tokens=_input(prompt, tool_results),
        cached_input_tokens=count_in(members, "cachedContentTokenCount") or 0,
        audio_input_tokens=_of_kind(read, "AUDIO"),
        image_input_tokens=_of_kind(read, "IMAGE"),
        cached_audio_input_tokens=_of_kind(_details(members, "cache"), "AUDIO"),
        output_tokens=answer,
        reasoning_tokens=thoughts or 0,
        audio_output_tokens=_of_kind(written, "AUDIO"),
        image_output_tokens=_of_kind(written, "IMAGE"),
        unexplained_tokens=_unexplained(members, (prompt or 0) + tool_results + answer),
        unknown_input_tokens=_of_unknown_kind(read),
        unknown_output_tokens=_of_unknown_kind(written),
    )
    return with_unknown(usage, unknown_counts(members, _NAMES))


def tier_of(members: dict[str, Any]) -> str | None:
    """Return the service tier that a `usageMetadata` states, in the words of a request."""
    tier, traffic = (stated_word(members.get(name)) for name in ("serviceTier", "trafficType"))
    by_traffic = UNKNOWN_TIER if traffic == UNKNOWN_TIER else _TIERS.get(traffic or "")
    return agreed_tier(by_traffic, None if tier is None else tier.lower())


def detail_of(members: dict[str, Any]) -> dict[str, str]:
    """Return the figures of a `usageMetadata` beside tokens: the kind of traffic (Vertex)."""
    traffic = text_in(members, "trafficType")
    return {"traffic_type": traffic[:MAX_WORD_CHARS]} if traffic else {}


def has_counts(raw: bytes) -> bool:
    """Return True if the bytes of a `usageMetadata` hold a count."""
    return b"TokenCount" in raw


def _input(prompt: int | None, tool_results: int) -> int | None:
    """Return the tokens of the whole prompt. A negative part stays visible: it is no truth."""
    if prompt is None:
        return None
    return min(prompt, tool_results) if min(prompt, tool_results) < 0 else prompt + tool_results


def _output(members: dict[str, Any], candidates: int, thoughts: int) -> int:
    """Return the tokens of the whole answer, thoughts included.

    A total without the thoughts shows that the candidates already include them, as some versions of
    Vertex count (litellm 1.110.2, pull request 10141).
    """
    prompt, total = count_in(members, "promptTokenCount"), count_in(members, "totalTokenCount")
    tool_results = count_in(members, "toolUsePromptTokenCount") or 0
    is_inside = (
        thoughts <= candidates
        and prompt is not None
        and total == prompt + tool_results + candidates
    )
    return candidates if is_inside else candidates + thoughts


def _unexplained(members: dict[str, Any], counted: int) -> int | None:
    """Return the tokens of the total that are in no part, negative if parts are more than their
    whole, `UNREADABLE` if a count cannot be read; None if nothing contradicts.

    The total is that of prompt, tool results, thoughts and candidates (ai.google.dev/api,
    "UsageMetadata"), and a report of less than it does not name the missing part.
    """
    if _has_unread(members):
        return UNREADABLE
    total = count_in(members, "totalTokenCount")
    if total is not None and total != counted:
        return total - counted
    for whole, what in _MODALITIES.items():
        parts = sum(count_in(one, "tokenCount") or 0 for one in _details(members, what))
        if parts > (count_in(members, whole) or 0):
            return (count_in(members, whole) or 0) - parts
    return None


def _has_unread(members: dict[str, Any]) -> bool:
    """Return True if a count is there and cannot be read."""
    lists = [members.get(f"{what}TokensDetails") for what in _MODALITIES.values()]
    return (
        is_unread(members, *_ALL_COUNTS)
        or any(bool(one) and not isinstance(one, list) for one in lists)
        or any(
            is_unread(one, "tokenCount")
            for what in _MODALITIES.values()
            for one in _details(members, what)
        )
    )


def _details(members: dict[str, Any], what: str) -> tuple[dict[str, Any], ...]:
    """Return the counts by modality of one part of a usage; none if they are not reported."""
    return tuple(objects_in(members, f"{what}TokensDetails"))


def _of_kind(details: tuple[dict[str, Any], ...], kind: str) -> int | None:
    """Return the tokens of one modality; 0 if only others are reported, None without a report."""
    if not details:
        return None
    counts = [
        count_in(one, "tokenCount") or 0 for one in details if text_in(one, "modality") == kind
    ]
    return sum(counts)


def _of_unknown_kind(details: tuple[dict[str, Any], ...]) -> int | None:
    """Return the tokens of a modality that has no name here; None if there are none."""
    counts = (
        count_in(one, "tokenCount") or 0
        for one in details
        if text_in(one, "modality") not in _KINDS
    )
    return sum(counts) or None
