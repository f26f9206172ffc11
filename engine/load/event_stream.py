"""Reads HTTP/1.1 answers and splits a stream of server-sent events into its data."""

import asyncio
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass

MOST_HEADER_LINES = 200
MOST_EVENT_BYTES = 2**20
"""The longest event; one token's has some hundred bytes."""
PIECE_BYTES = 65_536


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerHead:
    """The status and the headers of an answer; names in lower case."""

    status: int
    headers: Mapping[str, str]

    @property
    def is_chunked(self) -> bool:
        """Return True if the body comes in chunks."""
        return "chunked" in self.headers.get("transfer-encoding", "").lower()

    @property
    def length_bytes(self) -> int | None:
        """Return the length of the body; None if chunks or the connection's end give it."""
        given = self.headers.get("content-length")
        return None if given is None or self.is_chunked else int(given)

    @property
    def may_stay_open(self) -> bool:
        """Return True if the connection can carry another request after the body."""
        is_bounded = self.is_chunked or self.length_bytes is not None
        return is_bounded and self.headers.get("connection", "").lower() != "close"


async def read_head(reader: asyncio.StreamReader) -> AnswerHead:
    """Return the head of an answer. Raises `ValueError` if it is no HTTP, `IncompleteReadError` if
    the connection ends first.
    """
    first = await reader.readline()
    if not first:
        raise asyncio.IncompleteReadError(b"", None)
    parts = first.split(None, 2)
    if len(parts) < 2 or not parts[0].startswith(b"HTTP/1."):
        raise ValueError(f"no HTTP answer: {first[:40]!r}")
    headers: dict[str, str] = {}
    for _ in range(MOST_HEADER_LINES):
        line = (await reader.readline()).decode("latin-1").strip()
        if not line:
            return AnswerHead(status=int(parts[1]), headers=headers)
        name, _, value = line.partition(":")
        headers[name.strip().lower()] = value.strip()
    raise ValueError("more header lines than a server sends")


async def body_pieces(reader: asyncio.StreamReader, head: AnswerHead) -> AsyncGenerator[bytes]:
    """Yield the body as it arrives. Raises `IncompleteReadError` if it ends early."""
    if head.is_chunked:
        while size := await _chunk_size(reader):
            # In parts: a chunk that states gigabytes must not be held as a whole.
            while size > 0:
                piece = await _piece(reader, size)
                size -= len(piece)
                yield piece
            await reader.readexactly(2)
        while (await reader.readline()).strip():  # trailers
            pass
    elif (length := head.length_bytes) is not None:
        while length > 0:
            piece = await _piece(reader, length)
            length -= len(piece)
            yield piece
    else:
        while piece := await reader.read(PIECE_BYTES):
            yield piece


async def _piece(reader: asyncio.StreamReader, left_bytes: int) -> bytes:
    """Return the next bytes of a part of the body. Raises `IncompleteReadError` if it ends
    early.
    """
    piece = await reader.read(min(left_bytes, PIECE_BYTES))
    if not piece:
        raise asyncio.IncompleteReadError(b"", left_bytes)
    return piece


async def _chunk_size(reader: asyncio.StreamReader) -> int:
    """Return the size of the next chunk, 0 for the last. Raises `IncompleteReadError` at the
    connection's end, `ValueError` if it is no number.
    """
    if not (line := await reader.readline()):
        raise asyncio.IncompleteReadError(b"", None)
    size = int(line.partition(b";")[0], 16)
    if size < 0:
        raise ValueError(f"a chunk of {size} bytes")
    return size


@dataclass(frozen=True, slots=True)
class StreamEvent:
    """One server-sent event: its name, which is mostly empty, and its data."""

    name: str
    data: bytes


class StreamSplitter:
    """Splits a stream of server-sent events, fed in pieces of any size, into its events.

    The form is that of the HTML standard, section "Server-sent events": an event ends with an empty
    line, and comments begin with a colon.
    """

    def __init__(self) -> None:
        """Begin a stream."""
        self._rest = b""
        self._name = ""
        self._data: list[bytes] = []
        self._data_bytes = 0

    def feed(self, piece: bytes) -> list[StreamEvent]:
        """Return the events that this piece completes. Raises `ValueError` at one that is longer
        than `MOST_EVENT_BYTES`.
        """
        lines = (self._rest + piece).split(b"\n")
        self._rest = lines.pop()
        events = []
        for line in lines:
            line = line.removesuffix(b"\r")
            field, _, value = line.partition(b":")
            value = value.removeprefix(b" ")
            if field == b"data":
                self._data.append(value)
                self._data_bytes += len(value) + 1
            elif field == b"event":
                self._name = value.decode("utf-8", "replace")
            elif not line:
                if self._data:
                    events.append(StreamEvent(self._name, b"\n".join(self._data)))
                self._name, self._data, self._data_bytes = "", [], 0
        if len(self._rest) + self._data_bytes > MOST_EVENT_BYTES:
            raise ValueError(f"an event is longer than {MOST_EVENT_BYTES} bytes")
        return events
