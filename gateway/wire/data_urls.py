"""`data:` URLs (RFC 2397): which of them hold all that they mean.

A picture of pixels does. An SVG picture, a play list or a page can name addresses that whoever
shows it fetches, and readers of videos go by the first bytes whatever the type says (FFmpeg's
documentation, "Protocol Options").
"""

from __future__ import annotations

import binascii
import re
import string

_HEAD = re.compile(r"data:([^;,\s]{1,80})(?:;[^;,\s]{1,80}){0,4}?;base64,", re.IGNORECASE)
_PICTURES = ("png", "jpeg", "jpg", "gif", "webp", "bmp", "tiff", "heic", "heif", "avif")
_SOUNDS = (
    "wav",
    "x-wav",
    "wave",
    "mpeg",
    "mp3",
    "mp4",
    "m4a",
    "x-m4a",
    "aac",
    "ogg",
    "opus",
    "flac",
    "webm",
    "pcm",
)
_VIDEOS = (
    "mp4",
    "webm",
    "quicktime",
    "mpeg",
    "x-matroska",
    "x-msvideo",
    "3gpp",
    "ogg",
    "jpeg",
)  # the last: frames
_MEDIA = frozenset(
    [f"image/{kind}" for kind in _PICTURES]
    + [f"audio/{kind}" for kind in _SOUNDS]
    + [f"video/{kind}" for kind in _VIDEOS]
)
_TEXT = frozenset(string.printable.encode())
_BYTE_ORDER_MARKS = (b"\xef\xbb\xbf", b"\xff\xfe", b"\xfe\xff")
_SHORTEST_ADDRESS = 12  # bytes of a text that names one
_LOOKED_AT = 88  # characters of base64: 66 bytes


def holds_all(url: str, *, is_document: bool = False) -> bool:
    """Whether nobody fetches anything for a `data:` URL.

    True for base64 of media that hold no address and do not begin as text. A document is read for
    its text, so any other type of it is free.
    """
    head = _HEAD.match(url)
    if head is None:
        return False
    kind = head[1].lower()
    if is_document and kind.startswith(("application/", "text/")):
        return True
    return kind in _MEDIA and not _begins_as_text(url[head.end() : head.end() + _LOOKED_AT])


def _begins_as_text(encoded: str) -> bool:
    """Every format of pixels, sound and films has a byte in its head that is no text."""
    first = "".join(
        encoded.partition(",")[0].split()
    )  # of frames with commas between; lines may be folded
    try:
        start = binascii.a2b_base64(first[: len(first) // 4 * 4], strict_mode=True)
    except ValueError:
        return True  # readers disagree about it
    return start.startswith(_BYTE_ORDER_MARKS) or (
        len(start) >= _SHORTEST_ADDRESS and _TEXT.issuperset(start)
    )
