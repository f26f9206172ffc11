"""An answer that came compressed although nobody asked for that: read for its usage and its size,
never handed on.
"""

from __future__ import annotations

import zlib

_GZIP = b"\x1f\x8b"
MOST_BYTES = 4 * 2**20  # in up to 15 ms; what is longer counts as so many


def inflated(body: bytes) -> bytes:
    """Return what a gzip body holds, at most `MOST_BYTES` of it; `body` itself where it is no
    gzip.
    """
    if not body.startswith(_GZIP):
        return body
    try:
        return zlib.decompressobj(wbits=31).decompress(body, MOST_BYTES) or body
    except zlib.error:
        return body
