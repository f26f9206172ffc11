"""Writes a usage in normal form as the usage of Anthropic's messages, with every member that its
published schema requires: null for an unknown one.

Sources: Anthropic's OpenAPI description (`Usage`, `MessageDeltaUsage`), as llm-comply 0.5.0 has it,
and anthropic 2.13.0, types/usage.py, 2026-11-24.
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Struct

from gateway.domain.pricing.tokens import TokenUsage
from gateway.domain.request.request import RequestFacts
from gateway.domain.request.token_estimate import is_countable, tokens_in
from gateway.wire.translation.answer_events import (
    AnswerEvent,
    CallArguments,
    CallStarted,
    Finish,
    Finished,
    Omitted,
    Picture,
    RefusalPiece,
    TextPiece,
    ThoughtPiece,
    Used,
)

_TIERS = frozenset({"standard", "priority", "batch"})
_NONE = TokenUsage()


class ShownText(Struct):
    """The size of the text that the caller was shown, in bytes of UTF-8; None if the answer may
    have other content: sealed, omitted, or hidden thoughts before its maximum.
    """

    size_bytes: int | None = 0

    def add(self, event: AnswerEvent) -> None:
        """Take in the next event."""
        if self.size_bytes is None:
            return
        if isinstance(event, TextPiece | RefusalPiece | CallArguments):
            self.size_bytes += len(event.text.encode())
        elif isinstance(event, CallStarted):
            self.size_bytes += len(event.name.encode())
        elif isinstance(event, ThoughtPiece) and not event.sealed:
            self.size_bytes += len(event.text.encode())
        elif isinstance(event, ThoughtPiece | Picture | Omitted) or (
            isinstance(event, Finished) and event.finish is Finish.LENGTH
        ):
            self.size_bytes = None


def messages_usage(
    used: Used | None, facts: RequestFacts, *, text_bytes: int | None
) -> dict[str, Any]:
    """Return the usage of a whole message. The schema has two counts as numbers: the gateway's own
    count stands for one that is unknown, with `estimated` beside it, and null if it has none.
    """
    tier = used.service_tier if used is not None else None
    found = {
        **_counts(used.usage if used is not None else _NONE),
        "inference_geo": None,
        "service_tier": tier if tier in _TIERS else None,
    }
    own = {}
    if found["input_tokens"] is None and is_countable(facts):
        own["input_tokens"] = tokens_in(facts.body_bytes)
    if found["output_tokens"] is None and text_bytes is not None:
        own["output_tokens"] = tokens_in(text_bytes)
    return {**found, **own, "estimated": True} if own else found


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
