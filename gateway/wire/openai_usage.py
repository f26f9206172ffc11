"""Usage as the OpenAI dialect reports it, read into the normal form. Cached ⊂ input, reasoning ⊂ output.

Field names: chat and completions say `prompt_tokens`/`completion_tokens`, responses say
`input_tokens`/`output_tokens`. DeepSeek names cached tokens `prompt_cache_hit_tokens`.
"""

from __future__ import annotations

from typing import Any

import msgspec

from gateway.domain.tokens import TokenUsage


class _InputDetails(msgspec.Struct):
    cached_tokens: Any = None
    cache_write_tokens: Any = None
    created_cache_tokens: Any = None


class _OutputDetails(msgspec.Struct):
    reasoning_tokens: Any = None


class _Usage(msgspec.Struct):
    prompt_tokens: Any = None
    input_tokens: Any = None
    completion_tokens: Any = None
    output_tokens: Any = None
    prompt_cache_hit_tokens: Any = None
    prompt_tokens_details: _InputDetails | None = None
    input_tokens_details: _InputDetails | None = None
    completion_tokens_details: _OutputDetails | None = None
    output_tokens_details: _OutputDetails | None = None


_decode = msgspec.json.Decoder(_Usage).decode


def usage_from_wire(raw: msgspec.Raw | bytes) -> TokenUsage | None:
    """Return the counts that are there; None where there is no usage at all or it cannot be read.

    A member that is missing, null or no whole number stays None: missing is never 0.
    """
    try:
        wire = _decode(raw)
    except msgspec.DecodeError:
        return None
    details = wire.prompt_tokens_details or wire.input_tokens_details or _InputDetails()
    output_details = wire.completion_tokens_details or wire.output_tokens_details or _OutputDetails()
    usage = TokenUsage(
        input_tokens=_first(wire.prompt_tokens, wire.input_tokens),
        cached_input_tokens=_first(details.cached_tokens, wire.prompt_cache_hit_tokens),
        cache_write_tokens=_first(details.cache_write_tokens, details.created_cache_tokens),
        output_tokens=_first(wire.completion_tokens, wire.output_tokens),
        reasoning_tokens=_first(output_details.reasoning_tokens),
    )
    return None if usage == TokenUsage() else usage


def _first(*counts: Any) -> int | None:
    return next((n for n in counts if isinstance(n, int) and not isinstance(n, bool)), None)
