"""A server that follows a test's script, byte for byte, and a client for it."""

from __future__ import annotations

import asyncio
import socket
import ssl
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from gateway.domain.places.regions import RegionTree
from gateway.domain.policy.policy import Timeouts
from gateway.domain.residency.rules import Permit
from gateway.domain.routing.decide import origin_of
from gateway.providers.http1.connection import UpstreamExchange
from gateway.providers.transport import Http1Transport
from gateway.wire.dialect import UpstreamRequest
from tests.factories import NOW, class_rule, deployment

OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"
CHUNKED = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"


class Peer:
    """The server's end of one connection."""

    def __init__(
        self, server: Server, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self.server, self._reader, self._writer = server, reader, writer

    async def request(self) -> bytes:
        """Return the next whole request. Raises `IncompleteReadError` if the client closes
        instead.
        """
        head = await self.head()
        length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
        request = head + await self._reader.readexactly(length)
        self.server.requests.append(request)
        return request

    async def head(self) -> bytes:
        """Return the next request's head."""
        return await self._reader.readuntil(b"\r\n\r\n")

    async def send(self, data: bytes) -> None:
        """Write data and wait until the client's side has taken most of it."""
        self._writer.write(data)
        await self._writer.drain()

    async def gone(self) -> None:
        """Wait until the client has closed."""
        try:
            while await self._reader.read(65536):
                pass
        except ConnectionError:
            pass

    def reset(self) -> None:
        """Break the connection with RST."""
        raw = self._writer.get_extra_info("socket")
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._writer.transport.abort()

    def close(self) -> None:
        """Close the connection with FIN."""
        self._writer.close()


Script = Callable[[Peer], Awaitable[None]]


@dataclass
class Server:
    """A server's record of its connections and requests."""

    port: int = 0
    connections: int = 0
    open_connections: int = 0
    requests: list[bytes] = field(default_factory=list)
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    async def until(self, is_so: Callable[[], bool]) -> None:
        """Wait until a condition holds; check it whenever a connection opens or closes."""
        async with asyncio.timeout(20):
            while not is_so():
                self.changed.clear()
                await self.changed.wait()


@asynccontextmanager
async def serving(
    script: Script, *, tls: ssl.SSLContext | None = None, host: str = "127.0.0.1"
) -> AsyncIterator[Server]:
    """Run `script` for each connection; close the connection when it returns."""
    server = Server()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        server.connections += 1
        server.open_connections += 1
        server.changed.set()
        try:
            await script(Peer(server, reader, writer))
        except (asyncio.IncompleteReadError, ConnectionError):
            pass  # the client closed the connection
        finally:
            writer.close()
            server.open_connections -= 1
            server.changed.set()

    listener = await asyncio.start_server(serve, host, 0, ssl=tls)
    server.port = listener.sockets[0].getsockname()[1]
    try:
        yield server
    finally:
        listener.close()


def answering(*answers: bytes) -> Script:
    """Return a script that answers each request in turn and repeats the last answer."""

    async def script(peer: Peer) -> None:
        for number in range(1_000_000):
            await peer.request()
            await peer.send(answers[min(number, len(answers) - 1)])

    return script


@dataclass
class Client:
    """A client that calls addresses with a real transport."""

    transport: Http1Transport

    async def send(
        self, port: int, *, body: bytes = b"{}", url: str | None = None, **timeouts: float
    ) -> UpstreamExchange:
        """Hand one request to the transport."""
        call = UpstreamRequest(
            url=url or f"http://127.0.0.1:{port}/v1/x", headers={"x-request-id": "1"}, body=body
        )
        return await self.transport.send(permit(call.url, **timeouts), call)

    async def fetch(self, port: int, **how: Any) -> tuple[int, bytes]:
        """Run a whole exchange; return its status and body."""
        exchange = await self.send(port, **how)
        try:
            status, _ = await exchange.head()
            return status, await exchange.read(1 << 24)
        finally:
            exchange.close()

    @property
    def counts(self) -> tuple[int, int]:
        """Return the numbers of open and busy connections."""
        return len(self.transport.pool.connections), self.transport.pool.busy


@asynccontextmanager
async def calling(
    max_connections: int = 100, tls: ssl.SSLContext | None = None
) -> AsyncIterator[Client]:
    """Yield a client whose connections all end with the block."""
    client = Client(Http1Transport(max_connections, tls or ssl.create_default_context()))
    try:
        yield client
    finally:
        await client.transport.close()
    assert client.counts[0] == 0


async def turns_until(is_so: Callable[[], bool]) -> None:
    """Let the event loop turn until a condition holds that sets no event."""
    async with asyncio.timeout(20):
        while not is_so():  # noqa: ASYNC110
            await asyncio.sleep(0)


def permit(url: str, **timeouts: float) -> Permit:
    """Return a permit to call an address."""
    limits = Timeouts(
        **{"connect_s": 5.0, "first_byte_s": 5.0, "idle_s": 5.0, "total_s": 30.0} | timeouts
    )
    return Permit(
        deployment=deployment("up", base_url=url, timeouts=limits),
        attempt=1,
        policy_version=7,
        origin=origin_of(url),
        rules=(class_rule("public", "any"),),
        regions=RegionTree({}),
        gateway_region="unknown",
        day=NOW.date(),
        valid_days=None,
    )
