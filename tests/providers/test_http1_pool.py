"""Connections are reused if that is safe, never lost, and never more than the limit."""

from __future__ import annotations

import asyncio
import gc
import os
import random
import socket
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import pytest
import uvicorn

from gateway.errors import UpstreamError, UpstreamUnreachable
from gateway.providers.http1.pool import IDLE_S
from tests.conftest import SEED
from tests.providers.scripted import CHUNKED, OK, Peer, answering, calling, serving, turns_until


async def test_one_connection_serves_one_after_another() -> None:
    """A new handshake for each request would cost more than the request."""
    async with serving(answering(OK)) as server, calling() as client:
        for _ in range(50):
            assert await client.fetch(server.port) == (200, b"ok")
        assert (server.connections, client.counts) == (1, (1, 0))


async def test_exchanges_at_the_same_time_have_connections_of_their_own() -> None:
    """Without pipelining, a slow answer delays no other."""
    async with serving(answering(OK)) as server, calling() as client:
        exchanges = [await client.send(server.port) for _ in range(20)]
        assert client.counts == (20, 20)
        for exchange in exchanges:
            assert await exchange.read(10) == b"ok"
            exchange.close()
        assert (server.connections, client.counts) == (20, (20, 0))


NOT_KEPT = {
    "the upstream says close": b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: "
    b"2\r\n\r\nok",
    "it keeps connections no longer": b"HTTP/1.1 200 OK\r\nkeep-alive: "
    b"timeout=1\r\ncontent-length: 2\r\n\r\nok",
    "it speaks HTTP/1.0": b"HTTP/1.0 200 OK\r\ncontent-length: 2\r\n\r\nok",
    "it said more than was asked": OK + b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nno",
}


@pytest.mark.parametrize("why", NOT_KEPT)
async def test_these_answers_prevent_connection_reuse(why: str) -> None:
    """Otherwise the next request would be lost, or would read another request's answer."""
    async with serving(answering(NOT_KEPT[why])) as server, calling() as client:
        for number in range(1, 4):
            assert await client.fetch(server.port) == (200, b"ok")
            assert (server.connections, client.counts) == (number, (0, 0))


async def test_an_answer_that_was_not_read_to_its_end_costs_its_connection() -> None:
    """The unread rest would become the next request's answer."""
    async with serving(answering(CHUNKED + b"2\r\nok\r\n")) as server, calling() as client:
        exchange = await client.send(server.port)
        assert await exchange.chunk() == b"ok"
        exchange.close()
        await server.until(lambda: server.open_connections == 0)
        assert client.counts == (0, 0)


async def test_a_connection_that_the_upstream_closed_is_not_used() -> None:
    """An upstream closes idle connections; the next request must not fail because of that."""
    go = asyncio.Event()

    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(OK)
        await go.wait()

    async with serving(script) as server, calling() as client:
        for number in range(1, 4):
            go.clear()
            assert await client.fetch(server.port) == (200, b"ok")
            go.set()
            await server.until(lambda: server.open_connections == 0)
            await turns_until(lambda: client.counts[0] == 0)
            assert server.connections == number


async def test_a_close_counts_in_the_turn_in_which_it_is_seen() -> None:
    """In one turn of the event loop, one callback reads the upstream's end and another looks for
    a connection.
    """
    async with serving(answering(OK)) as server, calling() as client:
        assert await client.fetch(server.port) == (200, b"ok")
        (connection,) = client.transport.pool.connections
        connection.eof_received()
        assert await client.fetch(server.port) == (200, b"ok")
        assert server.connections == 2


async def test_an_upstream_that_speaks_unasked_is_hung_up_on() -> None:
    """A 408 on an idle connection must not become the answer to the next request."""
    go = asyncio.Event()

    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(
            b"HTTP/1.1 200 OK\r\nkeep-alive: timeout=3600\r\ncontent-length: 2\r\n\r\nok"
        )
        await go.wait()
        await peer.send(b"HTTP/1.1 408 Request Timeout\r\ncontent-length: 0\r\n\r\n")
        await peer.gone()

    async with serving(script) as server, calling() as client:
        assert await client.fetch(server.port) == (200, b"ok")
        go.set()
        await server.until(lambda: server.open_connections == 0)
        assert client.counts == (0, 0)


def closing_after_its_answer(listener: socket.socket, is_closed: threading.Event) -> None:
    """Serve in a separate thread: the first connection is answered and closed."""
    for _ in range(2):
        connection, _ = listener.accept()
        with connection:
            connection.recv(65536)
            connection.sendall(OK)
        is_closed.set()


async def test_a_close_that_the_loop_has_not_seen_yet_is_seen() -> None:
    """The event loop was blocked while the upstream closed, so the socket itself is checked
    before its reuse.
    """
    is_closed = threading.Event()
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        server = threading.Thread(target=closing_after_its_answer, args=(listener, is_closed))
        server.start()
        async with calling() as client:
            port = listener.getsockname()[1]
            assert await client.fetch(port) == (200, b"ok")
            is_closed.wait(20)  # blocks the event loop
            assert await client.fetch(port) == (200, b"ok")
        server.join(20)


def test_idle_connections_are_dropped_before_vllm_drops_them() -> None:
    """If a server closes while our request is on its way, the POST may not be repeated."""
    its_own_s = uvicorn.Config(app="").timeout_keep_alive
    assert its_own_s >= IDLE_S + 0.5


async def test_idle_connections_grow_old() -> None:
    """They are closed one second before the upstream would close them, even without new calls."""
    answer = b"HTTP/1.1 200 OK\r\nkeep-alive: timeout=2, max=9\r\ncontent-length: 2\r\n\r\nok"
    async with serving(answering(answer)) as server, calling() as client:
        assert await client.fetch(server.port) == (200, b"ok")
        assert client.counts == (1, 0)
        await server.until(lambda: server.open_connections == 0)
        assert client.counts == (0, 0)


async def test_no_more_connections_than_allowed() -> None:
    """The third caller waits for one of two connections and gets the first that becomes free."""
    async with serving(answering(OK)) as server, calling(max_connections=2) as client:
        first, second = await client.send(server.port), await client.send(server.port)
        third = asyncio.ensure_future(client.send(server.port))
        assert await first.read(10) == b"ok"
        assert not third.done()
        first.close()
        exchange = await third
        assert (server.connections, client.counts) == (2, (2, 2))
        assert await exchange.read(10) == b"ok"
        exchange.close()
        second.close()


async def test_waiting_for_a_connection_has_an_end() -> None:
    """The error must give the reason: the upstream is not at fault."""
    async with serving(answering(OK)) as server, calling(max_connections=1) as client:
        held = await client.send(server.port)
        with pytest.raises(
            UpstreamUnreachable,
            match="up was not called: all 1 connections of the gateway are in use",
        ):
            await client.send(server.port, connect_s=0.05)
        held.close()
        assert await client.fetch(server.port) == (200, b"ok")


async def test_a_cancelled_waiter_takes_no_connection() -> None:
    """A caller may be cancelled in the turn in which it would get the connection; then the next
    one gets it.
    """
    async with serving(answering(OK)) as server, calling(max_connections=1) as client:
        for turns in range(6):
            held = await client.send(server.port)
            leaver = asyncio.ensure_future(client.send(server.port))
            stayer = asyncio.ensure_future(client.fetch(server.port))
            await asyncio.sleep(0)
            held.close()
            for _ in range(turns):
                await asyncio.sleep(0)
            leaver.cancel()
            try:
                (await leaver).close()
            except asyncio.CancelledError:
                pass
            assert await stayer == (200, b"ok")
            assert client.counts[1] == 0


async def test_an_idle_connection_gives_way_to_another_origin() -> None:
    """Idle connections count too, but they must never make a caller wait."""
    async with (
        serving(answering(OK)) as one,
        serving(answering(OK)) as other,
        calling(max_connections=2) as client,
    ):
        for port in (one.port, one.port, other.port, one.port, other.port):
            first, second = await client.send(port), await client.send(port)
            for exchange in (first, second):
                assert await exchange.read(10) == b"ok"
                exchange.close()
            assert client.counts == (2, 0)
        await one.until(lambda: one.open_connections == 0)


@contextmanager
def black_hole() -> Iterator[int]:
    """Yield a port whose connection queue is full: the kernel drops every further SYN."""
    with closing(socket.create_server(("127.0.0.1", 0), backlog=0)) as listener:
        fillers = []
        for _ in range(4):
            filler = socket.socket()
            filler.setblocking(False)
            filler.connect_ex(listener.getsockname())
            fillers.append(filler)
        yield listener.getsockname()[1]
        for filler in fillers:
            filler.close()


async def test_a_black_hole_is_unreachable_after_the_connect_timeout() -> None:
    """Row 4: the wait is limited, and the half-open socket is closed."""
    with black_hole() as port:
        async with calling() as client:
            with pytest.raises(
                UpstreamUnreachable, match=r"up could not be connected to in 0\.1 s"
            ):
                await client.send(port, connect_s=0.1)
            assert client.counts == (0, 0)


async def test_a_cancelled_connect_sends_nothing() -> None:
    """The caller left before the connection was made: no request, slot or socket may remain."""
    with black_hole() as port:
        async with calling(max_connections=1) as client:
            sending = asyncio.ensure_future(client.send(port))
            for _ in range(10):
                await asyncio.sleep(0)
            assert client.counts == (0, 1)
            sending.cancel()
            with pytest.raises(asyncio.CancelledError):
                await sending
            assert client.counts == (0, 0)


def open_descriptors() -> int:
    """Return how many files and sockets this process has open."""
    return len(os.listdir("/proc/self/fd"))


async def moody(peer: Peer) -> None:
    """Answer as the request's body says: well, slowly, in pieces, halfway or not at all."""
    while True:
        mood = (await peer.request())[-1] % 6
        if mood == 0:
            await peer.send(OK)
        elif mood == 1:
            await asyncio.sleep(0.001)
            await peer.send(OK)
        elif mood in (2, 3):
            await peer.send(CHUNKED)
            for _ in range(3):
                await asyncio.sleep(0)
                await peer.send(b"3\r\nabc\r\n")
            if mood == 3:
                return
            await peer.send(b"0\r\n\r\n")
        elif mood == 4:
            peer.reset()
            return
        else:
            await peer.gone()
            return


async def test_5000_exchanges_cut_anywhere_leave_nothing_behind(rng: random.Random) -> None:
    """No connection, slot, task, timer or descriptor may leak, and the pool must still work.
    httpx lost 9 of 10 slots here.
    """
    endings: dict[str, int] = {}
    gc.collect()
    before = open_descriptors()

    async with serving(moody) as server, calling(max_connections=10) as client:

        async def exchange_once(mood: int) -> None:
            exchange = await client.send(server.port, body=bytes([mood]), connect_s=20)
            try:
                await exchange.head()
                await exchange.read(1000)
            finally:
                exchange.close()

        async def cut_somewhere() -> None:
            # On a slow machine a cut comes before every other ending, so a fifth of the exchanges
            # end without a cut.
            is_cut = rng.randrange(5) > 0
            mood = rng.randrange(256) if is_cut else rng.choice((0, 4))
            task = asyncio.ensure_future(exchange_once(mood))
            if is_cut:
                await asyncio.sleep(rng.choice((0, 0.0005, 0.002, 0.008, 0.03)))
                task.cancel()
            (ending,) = await asyncio.gather(task, return_exceptions=True)
            assert ending is None or isinstance(ending, (asyncio.CancelledError, UpstreamError)), (
                repr(ending)
            )
            name = type(ending).__name__
            endings[name] = endings.get(name, 0) + 1

        async def worker() -> None:
            for _ in range(5000 // 25):
                await cut_somewhere()

        await asyncio.gather(*(worker() for _ in range(25)))
        print(f"seed {SEED}, endings {endings}, connections {server.connections}")
        assert (
            min(endings.get(name, 0) for name in ("NoneType", "CancelledError", "UpstreamError"))
            > 100
        ), endings
        assert client.counts[1] == 0
        assert client.counts[0] <= 10
        # Ten exchanges at once.
        for exchange in [await client.send(server.port, body=b"\0") for _ in range(10)]:
            assert await exchange.read(10) == b"ok"
            exchange.close()
        assert client.counts == (10, 0)
        await client.transport.close()
        assert client.counts == (0, 0)
        await server.until(lambda: server.open_connections == 0)
    for _ in range(3):
        await asyncio.sleep(0)
    assert asyncio.all_tasks() == {asyncio.current_task()}
    # uvloop does not expose its timers
    timers = getattr(asyncio.get_running_loop(), "_scheduled", ())
    assert [timer for timer in timers if not timer.cancelled()] == []
    assert open_descriptors() <= before + 1  # the event loop may open one of its own late


class SlowResolver(asyncio.SelectorEventLoop):
    """Counts queries for names and answers on demand."""

    def __init__(self) -> None:
        super().__init__()
        self.questions = 0
        self.answer: Any = None

    async def getaddrinfo(self, host: Any, port: Any, **how: Any) -> Any:
        if host != "engine.internal":
            return await super().getaddrinfo(host, port, **how)
        self.questions += 1
        self.answer = self.create_future()
        await self.answer
        return await super().getaddrinfo("127.0.0.1", port, **how)


def test_a_slow_resolver_is_asked_once() -> None:
    """Row 2: each lookup may block a thread for its whole time, so a hundred callers share one
    lookup.
    """

    async def story() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, SlowResolver)
        closing_answer = OK.replace(b"\r\n\r\n", b"\r\nconnection: close\r\n\r\n")
        async with serving(answering(closing_answer)) as server, calling() as client:
            url = f"http://engine.internal:{server.port}/v1/x"
            impatient = [
                asyncio.ensure_future(client.send(0, url=url, connect_s=0.05)) for _ in range(100)
            ]
            endings = await asyncio.gather(*impatient, return_exceptions=True)
            assert all(isinstance(ending, UpstreamUnreachable) for ending in endings)
            patient = asyncio.ensure_future(client.fetch(0, url=url))
            await asyncio.sleep(0)
            loop.answer.set_result(None)
            assert await patient == (200, b"ok")
            assert [await client.fetch(0, url=url) for _ in range(3)] == [(200, b"ok")] * 3
            assert (loop.questions, server.connections) == (1, 4)

    with asyncio.Runner(loop_factory=SlowResolver) as runner:
        runner.run(story())
