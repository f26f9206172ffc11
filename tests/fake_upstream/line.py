"""A connection that knows when the other side has left it, and can break it."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections.abc import Awaitable, Callable

MOST_HEAD_BYTES = 2**22
Serve = Callable[["Line"], Awaitable[None]]


def whole(status: int, body: bytes, *, extra: str = "") -> bytes:
    """Return an answer with its length; `extra` are whole header lines."""
    head = f"HTTP/1.1 {status} X\r\nserver: fake\r\n{extra}content-length: {len(body)}\r\n\r\n"
    return head.encode() + body


class Line(asyncio.StreamReaderProtocol):
    """One connection."""

    def __init__(self, serve: Serve) -> None:
        loop = asyncio.get_running_loop()
        self.reader = asyncio.StreamReader(limit=MOST_HEAD_BYTES, loop=loop)
        super().__init__(self.reader, self._accepted, loop=loop)
        self._serve = serve
        self._gone: asyncio.Future[None] = loop.create_future()
        self.writer: asyncio.StreamWriter

    async def _accepted(self, _: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.writer = writer
        try:
            await self._serve(self)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    def eof_received(self) -> bool | None:
        self._leave()
        return super().eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        self._leave()
        super().connection_lost(exc)

    def _leave(self) -> None:
        if not self._gone.done():
            self._gone.set_result(None)

    @property
    def is_left(self) -> bool:
        """Return True if the other side has closed, even only its half."""
        return self._gone.done() or self.writer.transport.is_closing()

    async def is_left_within(self, seconds: float) -> bool:
        """Take time, but no longer than the other side stays."""
        if seconds and not self.is_left:
            await asyncio.wait([self._gone], timeout=seconds)
        return self.is_left

    async def write(self, data: bytes) -> None:
        """Write bytes. Raises `ConnectionError` if the other side has left."""
        if self.is_left:
            raise ConnectionResetError
        self.writer.write(data)
        await self.writer.drain()
        await asyncio.sleep(0)  # each write leaves by itself, as from a real engine

    async def write_chunk(self, data: bytes) -> None:
        """Write one chunk of a chunked body."""
        if data:
            await self.write(b"%x\r\n%s\r\n" % (len(data), data))

    async def end_chunks(self) -> None:
        """End a chunked body."""
        await self.write(b"0\r\n\r\n")

    def cut(self, *, reset: bool) -> bool:
        """Break the connection, by RST or by FIN. Return False: it is over."""
        if reset:
            linger = struct.pack("ii", 1, 0)
            with contextlib.suppress(OSError, AttributeError):
                self.writer.get_extra_info("socket").setsockopt(
                    socket.SOL_SOCKET, socket.SO_LINGER, linger
                )
            self.writer.transport.abort()
        else:
            self.writer.close()
        return False
