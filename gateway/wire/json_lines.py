"""Splits a stream of bytes into lines of JSON, however it was cut; parses none."""

from __future__ import annotations

from gateway.wire.dialect import EventTooLarge

MAX_LINE_BYTES = 2**20  # an upstream that never ends its line must not fill our memory
MAX_PARTS = 4096  # then they are joined: a bytes object has 33 bytes of overhead


class LineSplitter:
    """A splitter that cuts a byte stream into complete lines without their ends."""

    __slots__ = ("_parts", "_size")

    def __init__(self) -> None:
        """Start without an unfinished line."""
        self._parts: list[bytes] = []
        self._size = 0

    def feed(self, data: bytes) -> list[bytes]:
        """Return the complete lines that `data` ends, empty ones left out. Raises
        `EventTooLarge`.
        """
        *complete, rest = data.split(b"\n")
        if not complete:
            return self._keep(rest)
        complete[0] = b"".join((*self._parts, complete[0]))
        self._parts, self._size = [], 0
        self._keep(rest)
        return [line for line in (one.strip() for one in complete) if line]

    def end(self) -> bytes:
        """Return the last line, once, which may lack its end."""
        rest = b"".join(self._parts).strip()
        self._parts, self._size = [], 0
        return rest

    def _keep(self, part: bytes) -> list[bytes]:
        """Keep the bytes of an unfinished line, and return no line. Raises `EventTooLarge`."""
        if not part:
            return []
        self._parts.append(part)
        self._size += len(part)
        if self._size > MAX_LINE_BYTES:
            raise EventTooLarge(f"a line of more than {MAX_LINE_BYTES} bytes")
        if len(self._parts) > MAX_PARTS:
            self._parts = [b"".join(self._parts)]
        return []
