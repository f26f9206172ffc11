"""TLS is always verified: the good certificate works, each bad one is unreachable, and nothing
is ever sent to it.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from contextlib import closing

import pytest

from gateway.errors import UpstreamUnreachable
from gateway.providers.http1.connection import READ_AHEAD_BYTES
from gateway.providers.transport import open_transport
from tests.providers.authority import Authority
from tests.providers.scripted import CHUNKED, OK, Client, Peer, answering, calling, serving


async def test_a_good_certificate_works(authority: Authority) -> None:
    """It works by name and by address; the connection is reused, and large bodies pass in both
    directions.
    """
    body = bytes(range(256)) * 8192
    answer = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(body) + body
    tls, trusting = authority.server("good"), authority.trusting()
    async with serving(answering(answer), tls=tls) as server, calling(tls=trusting) as client:
        for host in ("localhost", "127.0.0.1"):
            for _ in range(3):
                url = f"https://{host}:{server.port}/v1/x"
                assert await client.fetch(server.port, url=url, body=body) == (200, body)
        assert server.connections == 2
        assert server.requests[0].endswith(body)


@pytest.mark.parametrize("kind", ["expired", "wrong-host", "self-signed"])
async def test_a_bad_certificate_is_unreachable(authority: Authority, kind: str) -> None:
    """Row 3: TLS is never downgraded, and no byte of the request is sent."""
    tls, trusting = authority.server(kind), authority.trusting()
    async with serving(answering(OK), tls=tls) as server, calling(tls=trusting) as client:
        with pytest.raises(
            UpstreamUnreachable,
            match=r"up could not be reached: its certificate is refused \(.+\)\.",
        ):
            await client.send(server.port, url=f"https://localhost:{server.port}/v1/x")
        assert client.counts == (0, 0)
        assert server.requests == []


@pytest.mark.parametrize("is_trusted", [True, False])
async def test_the_transport_that_serves_verifies(
    authority: Authority, is_trusted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`open_transport` trusts only the system's authorities and those in `SSL_CERT_FILE`."""
    if is_trusted:
        monkeypatch.setenv("SSL_CERT_FILE", str(authority.path))
    async with serving(answering(OK), tls=authority.server("good")) as server:
        client = Client(open_transport(10))
        url = f"https://localhost:{server.port}/v1/x"
        if is_trusted:
            assert await client.fetch(server.port, url=url) == (200, b"ok")
        else:
            with pytest.raises(UpstreamUnreachable, match="its certificate is refused"):
                await client.send(server.port, url=url)
        await client.transport.close()


def handshake_breaker(listener: socket.socket, how: str) -> None:
    """Accept a connection and break its handshake."""
    connection, _ = listener.accept()
    with connection:
        connection.recv(65536)
        if how == "garbage":
            connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        if how == "silent":
            connection.recv(65536)  # until the client gives up


@pytest.mark.parametrize("how", ["closes", "garbage", "silent"])
async def test_a_broken_handshake_is_unreachable(authority: Authority, how: str) -> None:
    """Row 3: the error comes within the connect timeout, which includes the handshake."""
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        server = threading.Thread(target=handshake_breaker, args=(listener, how))
        server.start()
        async with calling(tls=authority.trusting()) as client:
            url = f"https://localhost:{listener.getsockname()[1]}/v1/x"
            with pytest.raises(UpstreamUnreachable, match="up could not be"):
                await client.send(0, url=url, connect_s=0.3)
            assert client.counts == (0, 0)
        await asyncio.to_thread(server.join, 20)
        assert not server.is_alive()


async def test_a_slow_reader_stops_a_tls_upstream_too(authority: Authority) -> None:
    """Back-pressure must work through TLS, and the received body must be complete."""
    size, sent = 32 * 1024 * 1024, 0

    async def script(peer: Peer) -> None:
        nonlocal sent
        await peer.request()
        await peer.send(CHUNKED + b"%x\r\n" % size)
        while sent < size:
            await peer.send(bytes(65536))
            sent += 65536
        await peer.send(b"\r\n0\r\n\r\n")
        await peer.gone()

    tls, trusting = authority.server("good"), authority.trusting()
    async with serving(script, tls=tls) as server, calling(tls=trusting) as client:
        exchange = await client.send(0, url=f"https://localhost:{server.port}/v1/x")
        await exchange.head()
        await asyncio.sleep(0.3)  # long enough to send everything
        assert READ_AHEAD_BYTES < exchange.buffered_bytes <= 8 * READ_AHEAD_BYTES
        assert sent < size / 2
        got = 0
        while piece := await exchange.chunk():
            got += len(piece)
        assert got == size
        exchange.close()
        assert client.counts == (1, 0)
