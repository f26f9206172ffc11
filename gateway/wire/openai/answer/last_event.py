"""Returns the last event of an ended stream that lacks its blank line, or records the leftover
bytes as an unreadable answer.
"""

from __future__ import annotations

import msgspec

from gateway.wire.observed import Observed
from gateway.wire.openai.answer.shapes import UNREADABLE, Chunk, chunk_of, is_there, usage_of
from gateway.wire.sse import data_of
from gateway.wire.surrogates import without_halves

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
