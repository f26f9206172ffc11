"""Writes a usage in normal form as the usage of Anthropic's messages, with every member that its
published schema requires: null for an unknown one.

Sources: Anthropic's OpenAPI description (`Usage`, `MessageDeltaUsage`), as llm-comply 0.5.0 has it,
and anthropic 2.13.0, types/usage.py, 2026-11-24.
"""

from __future__ import annotations

from typing import Any

import msgspec

from gateway.domain.pricing.tokens import TokenUsage
from gateway.domain.request.request import RequestFacts
from gateway.domain.request.token_estimate import with_own_counts
from gateway.wire.translation.answer_events import Used

_TIERS = frozenset({"standard", "priority", "batch"})
_NONE = TokenUsage()


def messages_usage(
    used: Used | None, facts: RequestFacts, *, text_bytes: int | None
) -> dict[str, Any]:
    """Return the usage of a whole message. The schema has two counts as numbers: the gateway's own
    count stands for one that is unknown, with `estimated` beside it, and null if it has none.
    """
    tier = used.service_tier if used is not None else None
    stated = used.usage if used is not None else _NONE
    shown = with_own_counts(stated, facts, text_bytes=text_bytes)
    found = {
        **_counts(shown),
        "inference_geo": None,
        "service_tier": tier if tier in _TIERS else None,
    }
    return found if shown is stated else {**found, "estimated": True}


def delta_usage(
    used: Used | None, facts: RequestFacts, *, text_bytes: int | None
) -> dict[str, Any]:
    """Return the usage at the end of a stream: its own members, and others that are known."""
    usage = messages_usage(used, facts, text_bytes=text_bytes)
    for name in ("cache_creation", "inference_geo", "service_tier"):
        if usage[name] is None:
            del usage[name]
    return usage


def first_usage(usage: TokenUsage | None, facts: RequestFacts) -> dict[str, Any]:
    """Return the usage at the start of a stream: the prompt as far as it is known. The caller has
    no token of the answer yet.
    """
    prompt = msgspec.structs.replace(usage or _NONE, output_tokens=0, reasoning_tokens=None)
    return messages_usage(Used(usage=prompt), facts, text_bytes=None)


def _counts(usage: TokenUsage) -> dict[str, Any]:
    """Return the counts of a usage."""
    read, written, for_an_hour = (
        usage.cached_input_tokens,
        usage.cache_write_tokens,
        usage.cache_write_1h_tokens,
    )
    fresh = None
    if usage.input_tokens is not None:
        fresh = max(usage.input_tokens - (read or 0) - (written or 0), 0)
    lifetimes = searches = thinking = None
    if written is not None and for_an_hour is not None:
        lifetimes = {
            "ephemeral_1h_input_tokens": for_an_hour,
            "ephemeral_5m_input_tokens": max(written - for_an_hour, 0),
        }
    if usage.web_search_calls is not None:
        searches = {"web_fetch_requests": 0, "web_search_requests": usage.web_search_calls}
    if usage.reasoning_tokens is not None:
        thinking = {"thinking_tokens": usage.reasoning_tokens}
    return {
        "input_tokens": fresh,
        "cache_creation_input_tokens": written,
        "cache_read_input_tokens": read,
        "cache_creation": lifetimes,
        "output_tokens": usage.output_tokens,
        "output_tokens_details": thinking,
        "server_tool_use": searches,
    }
