"""Replaces words that OpenAI's description does not have, in answers of other servers, and adds the
members that it requires.

Strict clients refuse a whole answer for one of them. The ledger keeps the upstream's own word.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

import msgspec

from gateway.wire.members import MalformedJson, locate
from gateway.wire.observed import Observed
from gateway.wire.openai.answer.shapes import ABSENT, AnswerChoice

LEGAL = frozenset({"stop", "length", "tool_calls", "content_filter", "function_call"})
# Words of an answer that failed or was stopped, in lower case: of Mistral, OpenRouter and vLLM, of
# SGLang and vLLM, of DeepSeek (api-docs.deepseek.com/api/create-chat-completion), of Zhipu
# (docs.z.ai/api-reference/llm/chat-completion), of TensorRT-LLM. 2026-11-29. OpenAI has none for
# it; of its words `length` alone means that the answer is not complete.
FAILED = frozenset(
    {"error", "abort", "aborted", "insufficient_system_resource", "network_error"}
    | {"cancelled", "timeout"}
)
_LONGEST_FAILED = max(map(len, FAILED))
# Together ends with `eos`, Mistral with `model_length`; any other word means an ordinary end.
_MEANINGS = {
    **{word.encode(): b"length" for word in FAILED},
    b"model_length": b"length",
    b"model_context_window_exceeded": b"length",
    b"refusal": b"content_filter",
    b"sensitive": b"content_filter",  # Zhipu's
    b"tool_use": b"tool_calls",
}
_USUAL = LEGAL | {None}
_LEGAL = frozenset(word.encode() for word in LEGAL)
# Words of servers whose chunk ends nothing, in lower case: SGLang's and Ollama's older ones (issues
# 3912 and 4357 there), KoboldCpp's, and Cohere's. A client's loop ends at the first reason.
_NO_END = frozenset({"", "null", "none", "not_complete"})
_LONGEST_NO_END = max(map(len, _NO_END))
# A quote inside a text has a backslash before it, so this matches members alone. Possessive: an
# upstream's word of 4 MB cost 640 MiB of positions to come back to.
_FINISH = re.compile(rb'("finish_reason"\s*+:\s*+)"([^"\\]*+(?:\\.[^"\\]*+)*+)"')
_decode_choices = msgspec.json.Decoder(list[msgspec.Raw]).decode
_decode_choice = msgspec.json.Decoder(AnswerChoice).decode
_NO_OBJECT = re.compile(rb'("object"\s*:\s*)""')


def with_legal_finish(payload: bytes, choices: Iterable[AnswerChoice]) -> bytes:
    """Return a whole answer whose finish reasons are words of OpenAI's description."""
    for choice in choices:  # a loop: once for each answer
        if choice.finish_reason not in _USUAL:
            return _FINISH.sub(_legal_member, payload)
    return payload


def with_legal_piece(payload: bytes, choices: Iterable[AnswerChoice]) -> bytes:
    """Return a chunk whose finish reasons are words of OpenAI's description, or null for a word
    that is no end.
    """
    for choice in choices:  # a loop: once for each chunk
        if choice.finish_reason not in _USUAL:
            return _FINISH.sub(_legal_piece, payload)
    return payload


def note_word(observed: Observed, choice: AnswerChoice) -> None:
    """Record a finish reason that OpenAI's description does not have; one that ends nothing is
    emptied, so that it counts as none and is still rewritten.
    """
    word = choice.finish_reason or ""
    if not is_end(word):
        choice.finish_reason = ""
        return
    observed.note_finish(word)
    if is_failure(word):
        observed.has_failed = True


def is_failure(word: str) -> bool:
    """Return True if a finish reason means that the answer failed, or was stopped."""
    return len(word) <= _LONGEST_FAILED and word.lower() in FAILED


def is_end(word: str) -> bool:
    """Return True if a finish reason in a chunk means an end."""
    return len(word) > _LONGEST_NO_END or word.lower() not in _NO_END


def with_object(payload: bytes) -> bytes:
    """Return a chunk of a stream whose `object` is not empty, as in Azure's first one."""
    return _NO_OBJECT.sub(rb'\1"chat.completion.chunk"', payload)


def with_deltas(payload: bytes) -> bytes:
    """Return a chunk of a stream in which each choice has a `delta`.

    Azure's asynchronous content filter sends its results in choices without one, on which clients
    break (openai/openai-python issues 1677 and 2313; openai-kotlin pull request 340).
    """
    try:
        place = locate(payload)["choices"]
        choices = _decode_choices(payload[place.start : place.end])
        made = [_with_delta(bytes(one)) for one in choices]
    except (MalformedJson, msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return payload
    return payload[: place.start] + b"[" + b",".join(made) + b"]" + payload[place.end :]


def _with_delta(choice: bytes) -> bytes:
    """Return a choice with an empty `delta`, unless it has content."""
    if lacks_delta((_decode_choice(choice),)):
        rest = choice[1:].lstrip()
        return b'{"delta":{}' + (b"" if rest.startswith(b"}") else b",") + rest
    return choice


def lacks_delta(choices: Iterable[AnswerChoice]) -> bool:
    """Return True if a choice has no member for content."""
    for choice in choices:  # a loop: once for each chunk, and a generator cost four times as much
        if choice.delta is ABSENT and choice.text is ABSENT and choice.message is ABSENT:
            return True
    return False


def _legal_piece(found: re.Match[bytes]) -> bytes:
    """Return the member with a legal word in a chunk, or null."""
    word = found[2]
    if len(word) > _LONGEST_NO_END or is_end(word.decode(errors="replace")):
        return _legal_member(found)
    return found[1] + b"null"


def _legal_member(found: re.Match[bytes]) -> bytes:
    word = found[2]
    if word in _LEGAL:
        return found[0]
    lowered = word.lower() if len(word) <= _LONGEST_FAILED else word
    return found[1] + b'"' + _MEANINGS.get(lowered, b"stop") + b'"'
