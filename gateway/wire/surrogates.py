"""Hides half surrogate pairs in JSON text behind stand-ins of the same length while an answer is
read, and puts them back.

RFC 8259 §8.2 allows half a pair, and a strict decoder refuses it. A server that counts UTF-16 units
writes one if a maximum cuts an emoji: `"\\ud83d"`. The answer around it is complete and paid for.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import msgspec

# Matches escapes from left to right, so that an escaped backslash starts none. A full pair is not a
# half.
_ESCAPE = re.compile(
    rb"\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|(u[dD][89a-fA-F][0-9a-fA-F]{2})|.)",
    re.S,
)
_REPLACEMENT = b"\\ufffd"
_STAND_INS = range(0xE000, 0xE010)  # private use characters: no model's text needs one
MAX_ESCAPES = 100_000  # each takes 0.3 µs to check
_HALF = re.compile(rb"\\u[dD][89a-fA-F]").search


class Hidden(msgspec.Struct, frozen=True):
    """A text with hidden half surrogate pairs; every byte offset is unchanged."""

    text: bytes
    _stand_in: bytes
    _halves: tuple[bytes, ...]

    def restored(self, text: bytes) -> bytes:
        """Return `text`, a rewritten form of `self.text`, with the halves of surrogate pairs put
        back in their order.
        """
        halves: Iterator[bytes] = iter(self._halves)
        return re.sub(re.escape(self._stand_in), lambda _: next(halves), text)


def hidden(text: bytes) -> Hidden | None:
    """Return a JSON text with stand-ins for half surrogate pairs; None if there is none, no
    stand-in is free, or there are too many escapes.
    """
    if text.count(b"\\") > MAX_ESCAPES:
        return None
    halves = tuple(match[0] for match in _ESCAPE.finditer(text) if match[1])
    if not halves:
        return None
    lower = text.lower()
    stand_in = next(
        (code for code in (b"\\u%04x" % unit for unit in _STAND_INS) if code not in lower), None
    )
    if stand_in is None:
        return None
    return Hidden(_with_stand_ins(text, stand_in), stand_in, halves)


def without_halves(text: bytes) -> bytes:
    """Return the text with U+FFFD for each half of a surrogate pair, of the same length.

    A text with too many escapes stays unchanged.
    """
    if _HALF(text) is None or text.count(b"\\") > MAX_ESCAPES:
        return text
    return _with_stand_ins(text, _REPLACEMENT)


def _with_stand_ins(text: bytes, stand_in: bytes) -> bytes:
    """Return a JSON text with a stand-in of equal length for each escaped half of a surrogate
    pair.
    """
    return _ESCAPE.sub(lambda match: stand_in if match[1] else match[0], text)


# For each first stand-in: a private use character of its range, as an escape or in UTF-8.
_TAKEN = {
    0xF000: re.compile(rb"(?i:\\uf[0-7])|\xef[\x80-\x9f]"),
    0xE800: re.compile(rb"(?i:\\ue[89a-f])|\xee[\xa0-\xbf]"),
    0xE000: re.compile(rb"(?i:\\ue[0-7])|\xee[\x80-\x9f]"),
}
_STOOD = {
    0xF000: re.compile(r"\\uf[0-7][0-9a-f]{2}"),
    0xE800: re.compile(r"\\ue[89a-f][0-9a-f]{2}"),
    0xE000: re.compile(r"\\ue[0-7][0-9a-f]{2}"),
}


class StandIns(msgspec.Struct, frozen=True):
    """The private use characters that stand for the halves in one text: `first` for U+D800, the
    2,047 behind it for the others.
    """

    first: int

    def halves_in(self, text: str) -> str:
        """Return a decoded text with its halves; U+FFFD for those in JSON inside of it."""
        escaped = _STOOD[self.first].sub("\\\\ufffd", text)
        return "".join(
            chr(0xD800 + ord(one) - self.first) if 0 <= ord(one) - self.first < 0x800 else one
            for one in escaped
        )

    def replaced(self, raw: msgspec.Raw) -> msgspec.Raw:
        """Return a JSON text with U+FFFD for each stand-in."""
        return msgspec.Raw(_STOOD[self.first].sub("\\\\ufffd", bytes(raw).decode()).encode())


def with_stand_ins(text: bytes) -> tuple[bytes, StandIns | None]:
    """Return a JSON text of the same length with a stand-in of its own for each half of a surrogate
    pair; with U+FFFD for all if no stand-ins are free.
    """
    whole = without_halves(text)
    if whole is text or whole == text:
        return text, None
    first = next((first for first, taken in _TAKEN.items() if taken.search(text) is None), None)
    if first is None:
        return whole, None

    def stand_in(match: re.Match[bytes]) -> bytes:
        half = match[1]
        return match[0] if half is None else b"\\u%04x" % (first + int(half[1:], 16) - 0xD800)

    return _ESCAPE.sub(stand_in, text), StandIns(first)
