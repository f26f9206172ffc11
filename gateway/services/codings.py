"""Opens the content codings of an answer (RFC 9110 §8.4) piece by piece, labelled or not, and drops
a byte order mark; a coding that it does not know stays closed.

The gateway asks for `identity`, and a proxy on the way may code an answer all the same. The size of
coded bytes says nothing about the text, so an answer that stays closed has no estimate.
"""

from __future__ import annotations

import zlib
from typing import Any

CODING = "content-encoding"
GZIP, MARK = b"\x1f\x8b", b"\xef\xbb\xbf"
_STARTS = (GZIP[:1], MARK[:1])
MOST_LAYERS = 4
MOST_TAKEN = 2**18  # of opened bytes at once: takes about a millisecond
_GZIP_NAMES = frozenset({"gzip", "x-gzip"})
_OPENABLE = _GZIP_NAMES | {"deflate"}
_LONGEST_START = 3  # of the bytes that tell a coding or a mark
# The beginnings of an answer as it is: JSON, or a line of an event stream.
_TEXTS = (b"{", b"[", b"dat", b"eve", b": ", b"id:", b"ret")
_WBITS = {"gzip": 31, "zlib": 15, "raw": -15}


class BrokenCoding(ValueError):
    """Coded bytes that cannot be opened any further."""


def codings_of(header: str | None) -> tuple[str, ...]:
    """Return the codings that a `content-encoding` names, the one that was applied first first."""
    names = (name.strip().lower() for name in (header or "").split(","))
    return tuple(name for name in names if name not in ("", "identity"))


def is_closed(header: str | None) -> bool:
    """Return True if an answer has a coding that cannot be opened here."""
    codings = codings_of(header)
    return len(codings) > MOST_LAYERS or not _OPENABLE.issuperset(codings)


def may_be_coded(start: bytes, header: str | None) -> bool:
    """Return True if an answer's first bytes or its header show a coding or a byte order mark."""
    return header is not None or start[:1] in _STARTS


def opened(body: bytes, header: str | None, *, most_bytes: int) -> bytes:
    """Return a whole body without its codings; the body itself if it is broken, closed, or larger
    than `most_bytes` when it is opened.
    """
    return opened_to_end(body, header, most_bytes=most_bytes)[0]


def opened_to_end(body: bytes, header: str | None, *, most_bytes: int) -> tuple[bytes, bool]:
    """Return a body without its codings, as `opened`, and True if it could be opened to the end of
    each of its codings.
    """
    if not may_be_coded(body, header):
        return body, True
    opener, found, size = Opener(header), [], 0
    try:
        for at in range(0, len(body), MOST_TAKEN):
            opener.feed(body[at : at + MOST_TAKEN])
            is_end = at + MOST_TAKEN >= len(body)
            while piece := opener.take(is_end=is_end):
                found.append(piece)
                size += len(piece)
                if size > most_bytes:
                    return body, False
    except BrokenCoding:
        return body, False
    return b"".join(found), opener.is_at_end and not is_closed(header)


class Opener:
    """Opens one answer. Feed it the received bytes; take the opened ones until there are none."""

    __slots__ = ("_layers",)

    def __init__(self, header: str | None) -> None:
        """Start before the first byte. A label that lies is no reason to fail: bytes that are not
        in a coding pass as they are.
        """
        names = () if is_closed(header) else codings_of(header)
        self._layers = [_Layer(name) for name in reversed(names)]
        self._layers += [_Layer("") for _ in range(MOST_LAYERS - len(names))]

    @property
    def is_at_end(self) -> bool:
        """Return True if no coding waits for more bytes."""
        return not any(layer.is_within for layer in self._layers)

    def feed(self, data: bytes) -> None:
        """Add received bytes."""
        self._layers[0].feed(data)

    def take(self, *, is_end: bool = False) -> bytes:
        """Return more opened bytes, at most `MOST_TAKEN`; empty if more have to be received first.

        Raises `BrokenCoding`.
        """
        return self._take_from(len(self._layers) - 1, is_end=is_end)

    def _take_from(self, place: int, *, is_end: bool) -> bytes:
        """Return more bytes of one layer, which opens those of the layer before it."""
        layer = self._layers[place]
        while not (taken := layer.take(is_end=is_end)):
            more = self._take_from(place - 1, is_end=is_end) if place else b""
            if not more:
                return layer.take(is_end=True) if is_end else b""
            layer.feed(more)
        return taken


class _Layer:
    """One coding of an answer, by its name; without a name it opens gzip."""

    __slots__ = ("_held", "_inflate", "_kind", "_name")

    def __init__(self, name: str) -> None:
        """Start before the first byte."""
        self._name, self._kind, self._held = name, "", b""
        self._inflate: Any = None  # between two members, and behind the last one

    @property
    def is_within(self) -> bool:
        """Return True within a member of the coding, whose end did not come."""
        return self._inflate is not None

    def feed(self, data: bytes) -> None:
        """Add bytes of the layer before."""
        self._held += data

    def take(self, *, is_end: bool) -> bytes:
        """Return opened bytes; empty if more are needed. Raises `BrokenCoding`."""
        is_begun = bool(self._kind) or self._begin(is_end=is_end)
        while is_begun and self._held:
            if self._kind == "plain":
                taken, self._held = self._held, b""
                return taken
            if self._inflate is None and not self._next_member(is_end=is_end):
                return b""
            if taken := self._inflated():
                return taken
        return b""

    def _begin(self, *, is_end: bool) -> bool:
        """Decide by the first bytes how they are read; False if there are too few."""
        start = self._held[:_LONGEST_START]
        if len(start) < _LONGEST_START and not (is_end and start):
            return False
        self._kind = "plain"
        if start.startswith(GZIP) and self._name != "deflate":
            self._kind = "gzip"
        elif self._name == "deflate" and not start.startswith(_TEXTS):
            is_zlib = start[0] & 0x0F == 8 and int.from_bytes(start[:2]) % 31 == 0
            self._kind = "zlib" if is_zlib else "raw"
        elif not self._name:
            self._held = self._held.removeprefix(MARK)
        if self._kind != "plain":
            self._inflate = zlib.decompressobj(wbits=_WBITS[self._kind])
        return True

    def _next_member(self, *, is_end: bool) -> bool:
        """Start with a further member of gzip (RFC 1952 §2.2), and drop other bytes; False if there
        is none, or not enough of one.
        """
        if len(self._held) < len(GZIP) and not is_end:
            return False
        if self._kind == "gzip" and self._held.startswith(GZIP):
            self._inflate = zlib.decompressobj(wbits=_WBITS["gzip"])
            return True
        self._held = b""
        return False

    def _inflated(self) -> bytes:
        """Return the next opened bytes, which may be none before more are held."""
        try:
            taken: bytes = self._inflate.decompress(self._held, MOST_TAKEN)
        except zlib.error as broken:
            raise BrokenCoding(str(broken)) from None
        self._held = self._inflate.unconsumed_tail
        if self._inflate.eof:
            self._held, self._inflate = self._inflate.unused_data, None
        return taken
