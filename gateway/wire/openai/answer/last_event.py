"""Returns the last event of an ended stream that lacks its blank line, or the events of a whole
answer that came in place of a stream, or records the leftover bytes as an unreadable answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from gateway.wire.foreign_json import MAX_WHOLE_BYTES, is_error, object_of, objects_in
from gateway.wire.observed import Observed
from gateway.wire.openai.answer.shapes import UNREADABLE, Chunk, chunk_of, is_there, usage_of
from gateway.wire.sse import data_of
from gateway.wire.surrogates import without_halves

# The members of a chunk with the usage: its name, and the usage of each provider's.
_NAMES = ("id", "object", "created", "model", "service_tier")
_USAGE = ("usage", "usage_breakdown", "x_groq", "timings", "metrics")
DONE = b"[DONE]"
DONE_EVENT = b"data: [DONE]\n\n"
_check = msgspec.json.Decoder(msgspec.Raw).decode


def last_event(rest: bytes, observed: Observed) -> bytes:
    """Return the bytes after the last blank line of a body as an event; empty if they are not an
    event.

    A body without any event is not a stream. An error object alone is read as an error event,
    because upstreams send one with status 200. Anything else was generated and charged, but cannot
    be read.
    """
    if _is_readable(rest):
        return rest
    if (
        not rest
        or observed.has_content
        or observed.upstream_id is not None
        or data_of(rest) is not None
    ):
        return b""
    try:
        chunk = chunk_of(without_halves(rest))
    except UNREADABLE:
        chunk = Chunk()
    if is_there(chunk.error):
        return b"data: " + b" ".join(rest.split(b"\n")).replace(b"\r", b" ").strip() + b"\n\n"
    observed.note_unread()
    observed.is_whole = True
    if (usage := usage_of(chunk)) is not None:
        observed.note_final(usage)
    return b""


def events_of_answer(body: bytes) -> Sequence[bytes]:
    """Return the events of a stream with the content of a whole chat or completions answer: one
    with its choices, one with its usage, and the end. None of any other body.

    Some servers ignore `stream`. The answer was bought, and its caller reads events alone.
    """
    answer = object_of(body, most_bytes=MAX_WHOLE_BYTES) if body[:1] == b"{" else None
    if answer is None or is_error(answer.get("error")):
        return ()
    choices = [_as_chunk(choice) for choice in objects_in(answer, "choices")]
    if not any("delta" in choice or choice.get("text") for choice in choices):
        return ()
    if "delta" in choices[0]:
        answer["object"] = "chat.completion.chunk"
    content = {name: value for name, value in answer.items() if name not in _USAGE}
    usage = {name: answer[name] for name in (*_NAMES, *_USAGE) if name in answer}
    events = [content | {"choices": choices}]
    if any(name in usage for name in _USAGE):
        events.append(usage | {"choices": []})
    return [*(b"data: " + msgspec.json.encode(event) + b"\n\n" for event in events), DONE_EVENT]


def _as_chunk(choice: dict[str, Any]) -> dict[str, Any]:
    """Return a choice of a whole answer as one of a chunk."""
    message = choice.get("message")
    if not isinstance(message, dict):
        return choice
    for number, call in enumerate(objects_in(message, "tool_calls")):
        call.setdefault("index", number)
    return {name: value for name, value in choice.items() if name != "message"} | {"delta": message}


def _is_readable(event: bytes) -> bool:
    """Return True if an event without its blank line is complete: half a JSON text is not."""
    payload = data_of(event)
    if payload is None or payload.strip() == DONE:
        return payload is not None
    try:
        _check(without_halves(payload))
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return False
    return True
