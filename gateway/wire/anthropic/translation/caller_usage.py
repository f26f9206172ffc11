"""Writes a usage in normal form as the usage of Anthropic's messages.

Source of the members: anthropic 2.13.0, types/usage.py, 2026-11-24.
"""

from __future__ import annotations

from typing import Any

from gateway.domain.pricing.tokens import TokenUsage

_TIERS = frozenset({"standard", "priority", "batch"})
_NONE = TokenUsage()


def messages_usage(
    usage: TokenUsage | None, *, service_tier: str | None = None, is_first: bool = False
) -> dict[str, Any]:
    """Return the members of a usage; a count that is unknown is left out.

    `input_tokens` and `output_tokens` are required, so an unknown one is null: 0 is never unknown.
    In the first event of a stream (`is_first`) it is 0 until the last one replaces it, because
    clients add to it.
    """
    known, unknown = usage or _NONE, 0 if is_first else None
    read, written = known.cached_input_tokens, known.cache_write_tokens
    fresh = (known.input_tokens or 0) - (read or 0) - (written or 0)
    found: dict[str, Any] = {
        "input_tokens": unknown if known.input_tokens is None else max(fresh, 0)
    }
    if written is not None:
        found["cache_creation_input_tokens"] = written
    if read is not None:
        found["cache_read_input_tokens"] = read
    if written is not None and known.cache_write_1h_tokens is not None:
        for_an_hour = known.cache_write_1h_tokens
        found["cache_creation"] = {
            "ephemeral_1h_input_tokens": for_an_hour,
            "ephemeral_5m_input_tokens": max(written - for_an_hour, 0),
        }
    found["output_tokens"] = unknown if known.output_tokens is None else known.output_tokens
    if known.reasoning_tokens is not None:
        found["output_tokens_details"] = {"thinking_tokens": known.reasoning_tokens}
    if known.web_search_calls is not None:
        found["server_tool_use"] = {
            "web_fetch_requests": 0,
            "web_search_requests": known.web_search_calls,
        }
    if service_tier in _TIERS:
        found["service_tier"] = service_tier
    return found
