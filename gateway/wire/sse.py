"""Splits a stream of bytes into whole server-sent events, however it was cut, and reads or replaces
an event's data; parses no JSON.

Follows the WHATWG HTML standard, §9.2.6: lines end in LF, CR LF or CR; a blank line ends an event;
lines that start with a colon are comments. Events keep their original bytes.
"""

from __future__ import annotations

import re

from gateway.wire.dialect import EventTooLarge

EVENT_STREAM = "text/event-stream; charset=utf-8"  # the content type
MAX_EVENT_BYTES = 2**20  # of one that is read on the event loop
# Of one that is read in a thread, with a picture in it: as much as a plain answer may have. An
# upstream that never ends its event must not fill our memory.
MAX_LARGE_EVENT_BYTES = 32 * 2**20
MAX_LINES = 10_000  # per event; no dialect has more than three
MAX_PARTS = 4096  # then they are joined: a bytes object has 33 bytes of overhead
_LONGEST_END = 4  # CR LF CR LF
_EVENT_END = re.compile(rb"(?:\r\n|\n|\r(?!\n))(?:\r\n|\n|\r(?!\Z))")
_LINE_END = re.compile(rb"\r\n|\n|\r")
_TOO_LARGE = f"an event of more than {MAX_EVENT_BYTES} bytes"


class EventSplitter:
    """A splitter that cuts a byte stream into complete events, blank line included."""

    __slots__ = ("_after", "_large", "_parts", "_size", "_tail")

    def __init__(self) -> None:
        """Start without an unfinished event."""
        # Parts of the event that has not ended yet, joined only at its end.
        self._parts: list[bytes | bytearray] = []
        self._large: bytearray | None = None  # the only part of a large event
        self._after = b""  # the bytes behind a large event that has ended
        self._size = 0
        self._tail = b""  # its last bytes: an event's end may be split anywhere

    @property
    def rest(self) -> bytes:
        """Return the bytes of the unfinished event."""
        return b"".join(self._parts)

    def feed(self, data: bytes) -> list[bytes]:
        """Return the complete events that `data` ends. Raises `EventTooLarge`, and then takes
        nothing: `keep_large` may take it instead.

        Bytes are searched once and pieces are joined once. So an event that grows by one byte at a
        time costs its length and not its square.
        """
        if not self._parts:
            return self._cut(data)
        seam = self._tail + data
        if b"\n\n" not in seam and (b"\r" not in seam or _EVENT_END.search(seam) is None):
            return self._keep(data)
        if self._size > MAX_EVENT_BYTES:
            raise EventTooLarge(_TOO_LARGE)
        whole = b"".join((*self._parts, data))
        self._parts, self._size, self._tail = [], 0, b""
        return self._cut(whole)

    def keep_large(self, data: bytes) -> bool:
        """Keep more of an event that is too large for `feed`; return True if `data` ends it.

        Raises `EventTooLarge` if it is too large for any reader. Its bytes stand in one place, and
        are not searched twice.
        """
        self._size += len(data)
        if self._size > MAX_LARGE_EVENT_BYTES:
            raise EventTooLarge(f"an event of more than {MAX_LARGE_EVENT_BYTES} bytes")
        if self._large is None:
            self._large = bytearray().join(self._parts)
            self._parts = [self._large]
        found = _EVENT_END.search(self._tail + data)
        if found is None:
            self._large += data
            self._tail = (self._tail + data[-_LONGEST_END:])[-_LONGEST_END:]
            return False
        end = found.end() - len(self._tail)
        self._large += data[:end]
        self._after = data[end:]
        return True

    def take_large(self) -> list[bytes]:
        """Return a large event that has ended, and the complete events behind it. It takes a few
        milliseconds for each megabyte, so that it belongs in a thread.
        """
        event, after = self.rest, self._after
        self._forget()
        return [event, *self._cut(after)]

    def end(self) -> bytes:
        """Return the unfinished rest, once, as an event: the body has ended, so nothing can follow.

        Browsers drop it (WHATWG HTML §9.2.6). A server that closes right after its last line is
        common, and that line may contain the usage.
        """
        rest = self.rest
        self._forget()
        if not rest.strip(b"\r\n"):
            return b""
        return rest if rest.endswith((b"\n\n", b"\r\r")) else rest.rstrip(b"\r\n") + b"\n\n"

    def _forget(self) -> None:
        """Forget the unfinished event."""
        self._parts, self._size, self._tail = [], 0, b""
        self._large, self._after = None, b""

    def _cut(self, buffer: bytes) -> list[bytes]:
        """Return the complete events in a buffer, and keep the bytes after them."""
        events = []
        start = 0
        if buffer.find(b"\r") >= 0:  # `in` would create and drop an exception (Python 3.11)
            for match in _EVENT_END.finditer(buffer):
                events.append(buffer[start : match.end()])
                start = match.end()
        else:  # the common case, about five times faster
            while (end := buffer.find(b"\n\n", start)) >= 0:
                events.append(buffer[start : end + 2])
                start = end + 2
        if start < len(buffer):
            self._keep(buffer[start:] if start else buffer)
        return events

    def _keep(self, data: bytes) -> list[bytes]:
        """Keep the bytes of an unfinished event, and return no event. Raises `EventTooLarge`."""
        size = self._size + len(data)
        if size > MAX_EVENT_BYTES:
            raise EventTooLarge(_TOO_LARGE)
        self._parts.append(data)
        self._size = size
        self._tail = (self._tail + data[-_LONGEST_END:])[-_LONGEST_END:]
        if len(self._parts) > MAX_PARTS:
            self._parts = [b"".join(self._parts)]
        return []


def holds_data(part: bytes) -> bool:
    """Return True if a part of a stream holds more than blank lines and comments, which keep a
    connection open before anything is generated.
    """
    return any(line and not line.startswith(b":") for line in _lines_of(part))


def data_of(event: bytes) -> bytes | None:
    """Return the payload of one event: its `data` lines joined by LF; None if it has none (a
    comment, a ping).

    Raises `EventTooLarge`.
    """
    if (
        event.startswith(b"data: ")
        and event.endswith(b"\n\n")
        and event.count(b"\n") == 2
        and event.find(b"\r") < 0
    ):
        return event[6:-2]
    if event.count(b"\n") + event.count(b"\r") > MAX_LINES:
        raise EventTooLarge(f"an event of more than {MAX_LINES} lines")
    found = []
    for line in _lines_of(event):
        name, _, value = line.partition(b":")
        if name == b"data":
            found.append(value.removeprefix(b" "))
    return b"\n".join(found) if found else None


def with_data(event: bytes, data: bytes) -> bytes:
    """Return the same event with another payload; its other fields keep their order."""
    if event.startswith(b"data: ") and event.count(b"\n") == 2 and b"\r" not in event:
        return b"data: " + data + b"\n\n"
    kept = [line for line in _lines_of(event) if line and line.partition(b":")[0] != b"data"]
    lines = data.replace(b"\n", b"\ndata: ")  # a payload of several lines stays one
    return b"\n".join([*kept, b"data: " + lines, b"", b""])


def _lines_of(event: bytes) -> list[bytes]:
    """Return the lines of an event; of a large one without a search by a pattern, which would hold
    the interpreter for a hundred milliseconds.
    """
    if len(event) <= MAX_EVENT_BYTES:
        return _LINE_END.split(event)
    return event.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
