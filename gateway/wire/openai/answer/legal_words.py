"""Replaces words that OpenAI's description does not have, in answers of other servers.

Strict clients refuse a whole answer for one of them. The ledger keeps the upstream's own word.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from gateway.wire.openai.answer.shapes import AnswerChoice

LEGAL = frozenset({"stop", "length", "tool_calls", "content_filter", "function_call"})
# Together ends with `eos`, Mistral with `model_length` or `error`; any other word means an ordinary
# end.
_MEANINGS = {
    b"model_length": b"length",
    b"model_context_window_exceeded": b"length",
    b"refusal": b"content_filter",
    b"tool_use": b"tool_calls",
}
_LEGAL = frozenset(word.encode() for word in LEGAL)
# A quote inside a text has a backslash before it, so this matches members alone. Possessive: an
# upstream's word of 4 MB cost 640 MiB of positions to come back to.
_FINISH = re.compile(rb'("finish_reason"\s*+:\s*+)"([^"\\]*+(?:\\.[^"\\]*+)*+)"')
_NO_OBJECT = re.compile(rb'("object"\s*:\s*)""')


def with_legal_finish(payload: bytes, choices: Iterable[AnswerChoice]) -> bytes:
    """Return an answer or chunk whose finish reasons are words of OpenAI's description."""
    for choice in choices:  # a loop: once for each chunk
        if choice.finish_reason is not None and choice.finish_reason not in LEGAL:
            return _FINISH.sub(_legal_member, payload)
    return payload


def with_object(payload: bytes) -> bytes:
    """Return a chunk of a stream whose `object` is not empty, as in Azure's first one."""
    return _NO_OBJECT.sub(rb'\1"chat.completion.chunk"', payload)


def _legal_member(found: re.Match[bytes]) -> bytes:
    word = found[2]
    return found[1] + b'"' + (word if word in _LEGAL else _MEANINGS.get(word, b"stop")) + b'"'
