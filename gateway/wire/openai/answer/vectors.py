"""Takes the vectors out of a large embeddings answer while the rest of it is read, and puts them
back unchanged.

An answer to 2,048 inputs has 126 MB, nearly all of it vectors. Decoding it in one call held the
process for a second. Without its vectors the answer has 200 KB. Each vector is checked in its own
call, so that a worker thread lets the event loop run between two of them.
"""

from __future__ import annotations

import re
from io import BytesIO

import msgspec

MAX_VECTOR_BYTES = 2**20  # 32,768 decimals have about 700 KB; a longer value stays in place
# Embeddings have at most 2,048 inputs at their source; each opening takes a microsecond.
MOST_OPENINGS = 100_000
# Replaces each vector. An upstream's text that contains it stays unchanged.
_STAND_IN = b'"vector taken out by the gateway"'
_find_vector = re.compile(rb'"embedding"[ \t\r\n]*:[ \t\r\n]*(["\[])').search
_CLOSING = {b"[": b"]", b'"': b'"'}
_check = msgspec.json.Decoder(list[float] | str).decode


class TooManyVectors(Exception):
    """An answer with more vectors than any request asks for."""


class WithoutVectors(msgspec.Struct, frozen=True):
    """An answer with a stand-in for each of its vectors; the vectors stay in the original body."""

    text: bytes
    _body: bytes
    _places: tuple[slice, ...]

    def restored(self, text: bytes) -> bytes:
        """Return `text`, a rewritten form of `self.text`, with the embeddings' vectors put back in
        their order.

        If rewriting lost one of them, return the original answer.

        Allocating 126 MB takes 200 ms, so call it in a thread too. The vectors are written one by
        one and never held as 2,048 pieces of 60 KB: freeing those would leave the heap as large as
        it was.
        """
        pieces = text.split(_STAND_IN)
        # A rewritten member contained text like a stand-in.
        if len(pieces) != len(self._places) + 1:
            return self._body
        view, whole = memoryview(self._body), BytesIO()
        whole.write(pieces[0])
        for place, piece in zip(self._places, pieces[1:], strict=True):
            whole.write(view[place])
            whole.write(piece)
        return whole.getvalue()


def without_vectors(body: bytes) -> WithoutVectors | None:
    """Take the vectors out of an embeddings answer; return None if none can be taken out.

    The time grows with the body's size alone, whatever it contains. Raises `TooManyVectors`.
    """
    pieces: list[bytes] = []
    places: list[slice] = []
    at = kept = openings = 0
    view = memoryview(body)
    looked_to = dict.fromkeys(_CLOSING.values(), 0)  # no unused closing bracket stands before it
    while (found := _find_vector(body, at)) is not None:
        openings += 1
        if openings > MOST_OPENINGS:
            raise TooManyVectors
        at, start, closing = found.end(), found.start(1), _CLOSING[found[1]]
        last = start + MAX_VECTOR_BYTES
        end = body.find(closing, max(at, looked_to[closing]), last)
        looked_to[closing] = last if end < 0 else end
        if end >= 0 and _is_vector(view[start : end + 1]):
            pieces.append(body[kept:start])
            places.append(slice(start, end + 1))
            at = kept = end + 1
    pieces.append(body[kept:])
    text = _STAND_IN.join(pieces)
    if not places or text.count(_STAND_IN) > len(places):
        return None
    return WithoutVectors(text, body, tuple(places))


def _is_vector(value: memoryview) -> bool:
    """Return True for an embedding as decimals, or as base64, that a strict reader would accept.

    Copies nothing unless the value is a vector.
    """
    try:
        _check(value)
    except msgspec.DecodeError:
        return False
    return bytes(value).isascii()
