"""Writes token counts in the normal form as the usage of an OpenAI answer; a count that is unknown
has no member.
"""

from __future__ import annotations

from typing import Any

from gateway.domain.pricing.tokens import TokenUsage


def chat_usage(usage: TokenUsage) -> dict[str, Any]:
    """Return the usage of a chat answer."""
    prompt, answer = usage.input_tokens, usage.output_tokens
    return known(
        {
            "prompt_tokens": prompt,
            "completion_tokens": answer,
            "total_tokens": None if prompt is None or answer is None else prompt + answer,
            "prompt_tokens_details": input_details(usage),
            "completion_tokens_details": _output_details(usage),
        }
    )


def input_details(usage: TokenUsage) -> dict[str, Any]:
    """Return the parts of the prompt's tokens, under the names of chats and responses."""
    lifetimes = {
        "ttl_30m_tokens": usage.cache_write_30m_tokens,
        "ttl_1h_tokens": usage.cache_write_1h_tokens,
        "ttl_12h_tokens": usage.cache_write_12h_tokens,
    }
    return known(
        {
            "cached_tokens": usage.cached_input_tokens,
            "cache_write_tokens": usage.cache_write_tokens,
            "cache_write_tokens_details": known(lifetimes),
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
