"""Splits a stream of `application/vnd.amazon.eventstream` into messages, however it was cut, and
checks their sums; parses no JSON.

A message is: its length, the length of its headers, a CRC of both, the headers, the payload, and a
CRC of all before (Smithy, "Amazon Event Stream specification"; botocore 1.44.8, eventstream.py;
2026-11-24).
"""

from __future__ import annotations

from binascii import crc32
from struct import Struct as Layout

from msgspec import Struct

from gateway.wire.dialect import EventTooLarge

CONTENT_TYPE = "application/vnd.amazon.eventstream"
MAX_MESSAGE_BYTES = 2**20  # an upstream that never ends its message must not fill our memory
HIGHEST_FIRST_BYTE = b"\x08"  # a text, and gzip, begin with a higher one, a message with 0
MAX_PARTS = 4096  # then they are joined: a bytes object has 33 bytes of overhead
MAX_HEADERS = 64  # AWS sends three
_PRELUDE = Layout("!III")
_SUM_BYTES = 4
_TEXT = 7
# The bytes of a header's value by its type; -1 for a value with its length before it.
_SIZES = {0: 0, 1: 0, 2: 1, 3: 2, 4: 4, 5: 8, 6: -1, _TEXT: -1, 8: 8, 9: 16}


class BrokenStream(EventTooLarge):
    """The bytes are no message, so that the next one cannot be found either."""


class StreamMessage(Struct, frozen=True):
    """One message: its headers that are texts, and its payload."""

    headers: dict[str, str]
    payload: bytes


class MessageSplitter:
    """A splitter that cuts a byte stream into complete messages."""

    __slots__ = ("_parts", "_size", "_wanted")

    def __init__(self) -> None:
        """Start without an unfinished message."""
        self._parts: list[bytes] = []
        self._size, self._wanted = 0, _PRELUDE.size

    def feed(self, data: bytes) -> list[StreamMessage]:
        """Return the messages that `data` completes. Raises `EventTooLarge`, with the messages
        before it: the usage may be there.

        Pieces are joined once a message can be complete, so that drops cost their length alone.
        """
        self._parts.append(data)
        self._size += len(data)
        if self._size < self._wanted:
            if len(self._parts) > MAX_PARTS:
                self._parts = [b"".join(self._parts)]
            return []
        buffer, at, messages = b"".join(self._parts), 0, []
        whole = _PRELUDE.size
        try:
            while (whole := _length_at(buffer, at)) <= len(buffer) - at:
                messages.append(_message(buffer[at : at + whole]))
                at += whole
        except EventTooLarge as broken:
            # Raised in the same turn: a later one may never come, and packets would decide.
            broken.before, broken.rest = messages, buffer[at:]
            self._parts = [] if messages else [buffer]
            self._size, self._wanted = 0, 0
            raise
        rest = buffer[at:]
        self._parts, self._size, self._wanted = [rest] if rest else [], len(rest), whole
        return messages


def _length_at(buffer: bytes, at: int) -> int:
    """Return the length of the message that begins here, or of its prelude if that is not whole.

    Raises `EventTooLarge`.
    """
    if len(buffer) - at < _PRELUDE.size:
        return _PRELUDE.size
    length, headers, checksum = _PRELUDE.unpack_from(buffer, at)
    if crc32(buffer[at : at + _PRELUDE.size - _SUM_BYTES]) != checksum:
        raise BrokenStream("a message whose prelude has a wrong sum")
    if length > MAX_MESSAGE_BYTES:
        raise EventTooLarge(f"an event of more than {MAX_MESSAGE_BYTES} bytes")
    if length < _PRELUDE.size + headers + _SUM_BYTES:
        raise BrokenStream("a message whose headers are longer than it")
    return int(length)


def _message(whole: bytes) -> StreamMessage:
    """Return one complete message. Raises `BrokenStream`."""
    _, header_bytes, _ = _PRELUDE.unpack_from(whole)
    if crc32(whole[:-_SUM_BYTES]) != int.from_bytes(whole[-_SUM_BYTES:], "big"):
        raise BrokenStream("a message with a wrong sum")
    start = _PRELUDE.size + header_bytes
    headers = _headers(whole[_PRELUDE.size : start])
    return StreamMessage(headers, whole[start:-_SUM_BYTES])


def _headers(encoded: bytes) -> dict[str, str]:
    """Return the headers that are texts. Raises `BrokenStream`."""
    found: dict[str, str] = {}
    at = count = 0
    while at < len(encoded) and count < MAX_HEADERS:
        count += 1
        name_end = at + 1 + encoded[at]
        name = encoded[at + 1 : name_end].decode("ascii", "replace")
        kind = encoded[name_end] if name_end < len(encoded) else -1
        size, at = _SIZES.get(kind), name_end + 1
        if size is None:
            raise BrokenStream("a header of an unknown type")
        if size < 0:
            size = int.from_bytes(encoded[at : at + 2], "big")
            at += 2
        if at + size > len(encoded):
            raise BrokenStream("a header that is longer than its message")
        if kind == _TEXT:
            found[name] = encoded[at : at + size].decode("utf-8", "replace")
        at += size
    return found
