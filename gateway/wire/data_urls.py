"""Decides whether the content of a `data:` URL (RFC 2397) can name no address, as pixel images and
sound cannot but SVG can, so that an upstream fetches nothing because of it.

A pixel image does. An SVG image, a playlist or a page can name addresses that the program showing
it fetches. Video readers look at the first bytes, whatever the type is (FFmpeg's documentation,
"Protocol Options").
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
)  # jpeg: a series of frames
_MEDIA = frozenset(
    [f"image/{kind}" for kind in _PICTURES]
    + [f"audio/{kind}" for kind in _SOUNDS]
    + [f"video/{kind}" for kind in _VIDEOS]
)
_TEXT = frozenset(string.printable.encode())
_BYTE_ORDER_MARKS = (b"\xef\xbb\xbf", b"\xff\xfe", b"\xfe\xff")
_SHORTEST_ADDRESS = 12  # bytes of a text that contains an address
LOOKED_AT = 88  # characters of base64: 66 bytes
_BASE64 = re.compile(r"[A-Za-z0-9+/]*={0,2}|[A-Za-z0-9_-]*={0,2}")
_JPEG = "/9j/"  # of the formats of files only this one begins with a slash, as a path does
_NO_NAME = re.compile(r"[\x00-\x1f\x7f/\\:]")


def holds_all(url: str, *, is_document: bool = False) -> bool:
    """Return True if reading a `data:` URL fetches nothing else.

    True for base64 of media that contain no address and do not begin as text. Only the text of a
    document is read, so a document may have any application or text type.
    """
    head = _HEAD.match(url)
    if head is None:
        return False
    kind = head[1].lower()
    if is_document and kind.startswith(("application/", "text/")):
        return True
    return kind in _MEDIA and not _begins_as_text(url[head.end() : head.end() + LOOKED_AT])


def is_base64(text: str) -> bool:
    """Return True if a text can only be the bytes of a file: base64 without blanks, whole, and no
    path.
    """
    if text.startswith("/") and not text.startswith(_JPEG):
        return False
    unpadded = len(text.rstrip("="))
    return _BASE64.fullmatch(text) is not None and unpadded % 4 != 1


def is_file_name(text: str) -> bool:
    """Return True if a text names a file without a place: no path, no address, nothing that a
    parser drops.
    """
    return _NO_NAME.search(text) is None


def _begins_as_text(encoded: str) -> bool:
    """Return True if base64 data begins as text: every pixel, sound and film format has a non-text
    byte in its head.
    """
    # Frames are separated by commas; lines may be folded.
    first = "".join(encoded.partition(",")[0].split())
    try:
        start = binascii.a2b_base64(first[: len(first) // 4 * 4], strict_mode=True)
    except ValueError:
        return True  # readers decode this differently
    return start.startswith(_BYTE_ORDER_MARKS) or (
        len(start) >= _SHORTEST_ADDRESS and _TEXT.issuperset(start)
    )
