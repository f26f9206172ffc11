"""Writes token counts in the normal form as the usage of an OpenAI answer; a part that is unknown
has no member.
"""

from __future__ import annotations

from typing import Any

import msgspec

from gateway.domain.pricing.tokens import TokenUsage
from gateway.domain.request.request import RequestFacts
from gateway.domain.request.token_estimate import with_own_counts
from gateway.wire.dialect import UnpricedPart


def chat_usage(usage: TokenUsage, facts: RequestFacts, *, text_bytes: int | None) -> dict[str, Any]:
    """Return the usage of a chat answer. OpenAI's types have its counts as numbers, and clients add
    them: the gateway's own count stands for one that is unknown, with `estimated` beside it, and
    null if it has none.
    """
    shown = with_own_counts(usage, facts, text_bytes=text_bytes)
    counts: dict[str, Any] = {
        "prompt_tokens": shown.input_tokens,
        "completion_tokens": shown.output_tokens,
        "total_tokens": _total(shown),
    }
    if shown is not usage:
        counts["estimated"] = True
    details = {
        "prompt_tokens_details": input_details(usage),
        "completion_tokens_details": _output_details(usage),
    }
    return counts | known(details)


def responses_usage(usage: TokenUsage) -> dict[str, Any] | None:
    """Return the usage of a response; None if the prompt or the answer is unknown.

    The details of a side are null unless its first part is known: OpenAI's types require that part
    in them, and 0 would be a count. Codex takes null, but no details without that part.
    """
    prompt, answer = usage.input_tokens, usage.output_tokens
    if prompt is None or answer is None:
        return None
    inputs, outputs = input_details(usage), _output_details(usage)
    return {
        "input_tokens": prompt,
        "input_tokens_details": inputs if "cached_tokens" in inputs else None,
        "output_tokens": answer,
        "output_tokens_details": outputs if "reasoning_tokens" in outputs else None,
        "total_tokens": _total(usage),
    }


def _total(usage: TokenUsage) -> int | None:
    """Return the total of a usage, as the upstream reported it where its parts do not explain it;
    None if the prompt or the answer is unknown.
    """
    prompt, answer = usage.input_tokens, usage.output_tokens
    if prompt is None or answer is None:
        return None
    return prompt + answer + (0 if usage.has_unread else usage.unexplained_tokens or 0)


def with_usage(
    before: bytes, usage: dict[str, Any], metered: TokenUsage, after: bytes
) -> UnpricedPart:
    """Return an object with a usage as its last member, and a placeholder for the cost in it.

    `before` ends with the last member before it, and `after` begins with the object's end.
    """
    content = before + b',"usage":' + msgspec.json.encode(usage)
    place = len(content) - 1
    return UnpricedPart(metered, content + after, place, place, b',"cost_usd":')


def input_details(usage: TokenUsage) -> dict[str, Any]:
    """Return the parts of the prompt's tokens, under the names of chats and responses."""
    lifetimes = known(
        {
            "ttl_30m_tokens": usage.cache_write_30m_tokens,
            "ttl_1h_tokens": usage.cache_write_1h_tokens,
            "ttl_12h_tokens": usage.cache_write_12h_tokens,
        }
    )
    if lifetimes:  # OpenAI's types require these two
        named = sum(lifetimes.values()) + (usage.unknown_cache_write_tokens or 0)
        lifetimes = {"ttl_30m_tokens": 0, "ttl_12h_tokens": 0} | lifetimes
        if (rest := (usage.cache_write_tokens or 0) - named) > 0:
            lifetimes["ttl_5m_tokens"] = rest
    return known(
        {
            "cached_tokens": usage.cached_input_tokens,
            "cache_write_tokens": usage.cache_write_tokens,
            "cache_write_tokens_details": lifetimes,
            "audio_tokens": usage.audio_input_tokens,
            "image_tokens": usage.image_input_tokens,
        }
    )


def _output_details(usage: TokenUsage) -> dict[str, Any]:
    """Return the parts of the answer's tokens."""
    return known(
        {
            "reasoning_tokens": usage.reasoning_tokens,
            "audio_tokens": usage.audio_output_tokens,
            "image_tokens": usage.image_output_tokens,
        }
    )


def known(members: dict[str, Any]) -> dict[str, Any]:
    """Return the members that have a value."""
    return {name: value for name, value in members.items() if value is not None and value != {}}
