"""The limits of an exchange besides silence: its request's remaining time, the first token, and
its origin's share.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from gateway.errors import UpstreamNotCalled, UpstreamTimeout
from gateway.providers.http1.connection import UpstreamExchange
from gateway.providers.transport import SHARE_OF_AN_ORIGIN, Http1Transport, open_transport
from gateway.wire.dialect import UpstreamRequest
from tests.providers.scripted import Client, Peer, answering, calling, permit, serving

OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"
HEAD = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
PING = b"8\r\n: ping\n\n\r\n"


async def pings(peer: Peer) -> None:
    """Keep the connection open with pings but send no token."""
    await peer.request()
    await peer.send(HEAD)
    while True:
        await peer.send(PING)
        await asyncio.sleep(0.01)


async def silence(peer: Peer) -> None:
    await peer.request()
    await asyncio.sleep(60)


async def streamed(
    client: Client, port: int, *, within_s: float = 60.0, **timeouts: float
) -> UpstreamExchange:
    """Send a request whose answer comes in pieces."""
    call = UpstreamRequest(
        url=f"http://127.0.0.1:{port}/v1/x", headers={}, body=b"{}", is_streamed=True
    )
    return await client.transport.send(permit(call.url, **timeouts), call, within_s=within_s)


async def drained(exchange: UpstreamExchange) -> None:
    try:
        await exchange.head()
        while await exchange.chunk():
            pass
    finally:
        exchange.close()


async def test_headers_and_pings_are_no_first_token() -> None:
    """An engine answers 200 and then queues the request; keep-alive bytes are not the awaited
    token.
    """
    async with serving(pings) as server, calling() as client:
        with pytest.raises(
            UpstreamTimeout, match=r"up began to answer, but gave no content in 0\.2 s"
        ):
            await drained(await streamed(client, server.port, first_token_s=0.2, idle_s=30))


async def test_after_the_first_token_its_deadline_is_gone() -> None:
    """After it, only the idle timeout and the total timeout apply."""
    async with serving(pings) as server, calling() as client:
        exchange = await streamed(client, server.port, first_token_s=0.2, idle_s=30, total_s=0.6)
        exchange.note_first_token()
        with pytest.raises(UpstreamTimeout, match="did not finish"):
            await drained(exchange)


async def test_a_whole_answer_has_no_first_token() -> None:
    """A plain answer sends nothing until it is complete, and may take its time."""
    async with serving(pings) as server, calling() as client:
        exchange = await client.send(server.port, first_token_s=0.1, idle_s=30, total_s=0.4)
        with pytest.raises(UpstreamTimeout, match="did not finish"):
            await drained(exchange)


@pytest.mark.parametrize("script", [silence, pings])
async def test_the_remaining_time_of_a_request_bounds_its_attempt(script: object) -> None:
    """A deployment may take ten minutes, but not if its request has one second left."""
    async with serving(script) as server, calling() as client:  # type: ignore[arg-type]  # both are scripts
        exchange = await streamed(client, server.port, within_s=0.2)
        with pytest.raises(UpstreamTimeout, match=r"in 0\.2 s"):
            await drained(exchange)


@asynccontextmanager
async def sharing(max_connections: int, *, max_per_origin: int) -> AsyncIterator[Client]:
    client = Client(
        Http1Transport(max_connections, ssl.create_default_context(), max_per_origin=max_per_origin)
    )
    try:
        yield client
    finally:
        await client.transport.close()


async def test_one_address_cannot_take_all_connections() -> None:
    """Its further callers get an error at once; other addresses are not affected."""
    async with (
        serving(silence) as hung,
        serving(answering(OK)) as well,
        sharing(4, max_per_origin=3) as client,
    ):
        held = [await client.send(hung.port) for _ in range(3)]
        with pytest.raises(UpstreamNotCalled, match="all 3 connections that its address may have"):
            await client.send(hung.port)
        assert await client.fetch(well.port) == (200, b"ok")
        for exchange in held:
            exchange.close()
        again = await client.send(hung.port)
        again.close()


async def test_a_share_is_given_back_however_an_exchange_ends() -> None:
    """An exchange may be answered, closed in the middle, refused or cancelled while connecting.
    A leak would block an address.
    """
    async with (
        serving(answering(OK)) as server,
        serving(silence) as hung,
        sharing(2, max_per_origin=1) as client,
    ):
        for _ in range(3):
            assert await client.fetch(server.port) == (200, b"ok")
            (await client.send(hung.port)).close()
            connecting = asyncio.ensure_future(client.send(hung.port))
            await asyncio.sleep(0)
            connecting.cancel()
            await asyncio.gather(connecting, return_exceptions=True)
        assert client.transport.pool.busy == 0


async def test_the_transport_that_serves_keeps_some_for_others() -> None:
    """The share is a quarter; a gateway with one connection may still use it."""
    for connections, most in ((1000, int(1000 * SHARE_OF_AN_ORIGIN)), (1, 1)):
        transport = open_transport(connections)
        assert transport.pool.max_per_origin == most
        await transport.close()
