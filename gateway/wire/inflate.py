"""Inflates the start of an answer that arrived compressed unasked, to read its usage, size or
error; never changes the answer.
"""

from __future__ import annotations

import zlib

_GZIP = b"\x1f\x8b"
MOST_BYTES = 4 * 2**20  # takes up to 15 ms; a longer body counts as this many bytes


def inflated(body: bytes) -> bytes:
    """Return a gzip body's content, at most `MOST_BYTES` of it; `body` itself if it is not gzip."""
    if not body.startswith(_GZIP):
        return body
    try:
        return zlib.decompressobj(wbits=31).decompress(body, MOST_BYTES) or body
    except zlib.error:
        return body
