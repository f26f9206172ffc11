"""Server-sent events, incrementally: bytes in, whole events out, split anywhere.

Follows the WHATWG HTML standard, §9.2.6: lines end in LF, CR LF or CR; a blank line ends an event;
lines that start with a colon are comments. Events are handed on as the bytes they came in.
"""

from __future__ import annotations

import re

MAX_EVENT_BYTES = 2**20  # an upstream that never ends its event must not fill our memory
_EVENT_END = re.compile(rb"(?:\r\n|\n|\r(?!\n))(?:\r\n|\n|\r(?!\Z))")
_LINE_END = re.compile(rb"\r\n|\n|\r")


class EventTooLarge(ValueError):
    """One event is larger than `MAX_EVENT_BYTES`."""


class EventSplitter:
    """Cuts a byte stream into complete events, blank line included. `rest` is what has not ended yet."""

    __slots__ = ("rest",)

    def __init__(self) -> None:
        self.rest = b""

    def feed(self, data: bytes) -> list[bytes]:
        """Return the events that `data` completes. Raises `EventTooLarge`."""
        buffer = self.rest + data if self.rest else data
        events = []
        start = 0
        if b"\r" in buffer:
            for match in _EVENT_END.finditer(buffer):
                events.append(buffer[start : match.end()])
                start = match.end()
        else:  # the common case, about five times faster
            while (end := buffer.find(b"\n\n", start)) >= 0:
                events.append(buffer[start : end + 2])
                start = end + 2
        self.rest = buffer[start:]
        if len(self.rest) > MAX_EVENT_BYTES:
            raise EventTooLarge(f"an event of more than {MAX_EVENT_BYTES} bytes")
        return events


def data_of(event: bytes) -> bytes | None:
    """The payload of one event: its `data` lines joined by LF; None if it has none (a comment, a ping)."""
    if event.startswith(b"data: ") and event.endswith(b"\n\n") and event.count(b"\n") == 2 and b"\r" not in event:
        return event[6:-2]
    found = []
    for line in _LINE_END.split(event):
        name, _, value = line.partition(b":")
        if name == b"data":
            found.append(value.removeprefix(b" "))
    return b"\n".join(found) if found else None


def with_data(event: bytes, data: bytes) -> bytes:
    """The same event with another payload; its other fields are kept in order."""
    if event.startswith(b"data: ") and event.count(b"\n") == 2 and b"\r" not in event:
        return b"data: " + data + b"\n\n"
    kept = [line for line in _LINE_END.split(event) if line and line.partition(b":")[0] != b"data"]
    return b"\n".join([*kept, b"data: " + data, b"", b""])
