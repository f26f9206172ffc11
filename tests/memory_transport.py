"""Our server's protocol without a socket: bytes in, bytes out, in any pieces."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from gateway.api.http.connection import App, Connection
from gateway.api.http.connection_table import ConnectionTable
from gateway.api.http.limits import HttpLimits


class MemoryTransport(asyncio.Transport):
    """Keeps the written bytes."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""
        self.is_closed = self.has_ended = self.is_reading_paused = False
        self.ended = asyncio.Event()
        self.protocol: asyncio.BaseProtocol | None = None

    def write(self, data: bytes | bytearray | memoryview) -> None:
        assert not self.is_closed, "nothing is written to a closed connection"
        self.written += bytes(data)

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return ("127.0.0.1", 1) if name in ("peername", "sockname") else default

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self.has_ended = True
        self.ended.set()

    def is_closing(self) -> bool:
        return self.is_closed

    def pause_reading(self) -> None:
        self.is_reading_paused = True

    def resume_reading(self) -> None:
        self.is_reading_paused = False

    def close(self) -> None:
        self.abort()

    def abort(self) -> None:
        if not self.is_closed:
            self.is_closed = True
            self.ended.set()
            assert isinstance(self.protocol, asyncio.Protocol)
            asyncio.get_running_loop().call_soon(self.protocol.connection_lost, None)


class Line:
    """One connection to an application. `send` gives it bytes, `written` has its answer."""

    def __init__(
        self, app: App, *, limits: HttpLimits | None = None, table: ConnectionTable | None = None
    ) -> None:
        self.transport = MemoryTransport()
        self.table = table or ConnectionTable(limits or HttpLimits())
        self.connection = self.transport.protocol = Connection(app, self.table)
        self.connection.connection_made(self.transport)

    @property
    def written(self) -> bytes:
        """All that was answered so far."""
        return self.transport.written

    @property
    def is_over(self) -> bool:
        """Whether the server ended the connection, at least its own side of it."""
        return self.transport.is_closed or self.transport.has_ended

    def send(self, data: bytes, *, size: int | None = None) -> None:
        """Have bytes arrive, in pieces of `size`."""
        for at in range(0, len(data), size or max(len(data), 1)):
            if not self.transport.is_closed:
                self.connection.data_received(data[at : at + (size or len(data))])

    async def settle(self) -> None:
        """Let everything happen that needs no time."""
        for _ in range(50):
            await asyncio.sleep(0)

    def hang_up(self) -> None:
        """The caller leaves."""
        self.transport.is_closed = True
        self.connection.connection_lost(None)


async def answer_to(
    app: App, content: bytes, *, path: str, headers: dict[str, str]
) -> tuple[int, dict[str, str], bytes]:
    """Status, headers and body of the answer to one POST over a connection of its own."""
    lines = [
        f"POST {path} HTTP/1.1",
        "host: x",
        "connection: close",
        f"content-length: {len(content)}",
    ]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    line = Line(app)
    line.send("\r\n".join([*lines, "", ""]).encode() + content)
    await line.transport.ended.wait()
    head, _, body = line.written.partition(b"\r\n\r\n")
    status, *fields = head.decode("latin-1").split("\r\n")
    return int(status.split()[1]), dict(field.split(": ", 1) for field in fields), body


def error_code(body: bytes) -> str:
    """The code of an error answer."""
    return str(json.loads(body)["error"]["code"])
