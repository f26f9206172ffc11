"""One exchange over a real socket: the sent bytes, the received bytes and every possible
failure.
"""

from __future__ import annotations

import asyncio
import random
import socket
import threading
from collections.abc import Callable, Coroutine
from contextlib import closing
from functools import partial
from typing import Any, TypeVar

import pytest

from gateway.errors import ResidencyDenied, UpstreamError, UpstreamTimeout, UpstreamUnreachable
from gateway.providers.http1.connection import READ_AHEAD_BYTES
from gateway.providers.transport import head_bytes, target_of
from gateway.wire.dialect import UpstreamRequest
from tests.providers.recorded_answers import EVENTS, MALFORMED, RECORDED, STREAM, chunked
from tests.providers.scripted import (
    CHUNKED,
    OK,
    Peer,
    Script,
    answering,
    calling,
    permit,
    serving,
    turns_until,
)

T = TypeVar("T")
NO_SUCCESS = {"not HTTP", "switching protocols", "short status"}


def says(*pieces: bytes, ends: str = "waits") -> Script:
    """Return a script that answers one request with these pieces, sent one by one; then it
    waits, closes or resets.
    """

    async def script(peer: Peer) -> None:
        await peer.request()
        for piece in pieces:
            await peer.send(piece)
            await asyncio.sleep(0)
        if ends == "reset":
            peer.reset()
        elif ends == "waits":
            await peer.gone()

    return script


async def test_the_sent_request_matches_byte_for_byte() -> None:
    """Request line, host with its port, the call's headers, the length and the body must match
    byte for byte, with nothing added.
    """
    async with serving(answering(OK)) as server, calling() as client:
        url = f"http://127.0.0.1:{server.port}/v1/chat/completions?api-version=1"
        assert await client.fetch(server.port, url=url, body=b'{"a":1}') == (200, b"ok")
        assert server.requests == [
            b"POST /v1/chat/completions?api-version=1 HTTP/1.1\r\n"
            b"host: 127.0.0.1:%d\r\nx-request-id: 1\r\ncontent-length: 7\r\n\r\n"
            % server.port
            + b'{"a":1}'
        ]


@pytest.mark.parametrize("name", RECORDED)
async def test_each_recorded_answer_arrives(name: str) -> None:
    """Every framing must work over a real socket. A redirect is an ordinary answer and is not
    followed.
    """
    one = RECORDED[name]
    script = says(one.raw[:20], one.raw[20:], ends="closes" if one.ends_at_close else "waits")
    async with serving(script) as server, calling() as client:
        assert await client.fetch(server.port) == (one.status, one.body)
        assert client.counts == (int(one.may_keep_alive), 0)
        assert len(server.requests) == 1


async def test_a_stream_comes_as_it_is_made() -> None:
    """Each piece must arrive before the next is sent: nothing may wait for more data."""
    go_on = asyncio.Event()

    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(CHUNKED)
        for number in range(5):
            await go_on.wait()
            go_on.clear()
            await peer.send(b"2\r\nt%d\r\n" % number)
        await go_on.wait()
        await peer.send(b"0\r\n\r\n")

    async with serving(script) as server, calling() as client:
        exchange = await client.send(server.port)
        assert (await exchange.head())[0] == 200
        for number in range(5):
            go_on.set()
            assert await exchange.chunk() == b"t%d" % number
        go_on.set()
        assert (await exchange.chunk(), await exchange.chunk()) == (b"", b"")
        exchange.close()
        assert client.counts == (1, 0)


@pytest.mark.parametrize("name", MALFORMED)
async def test_a_malformed_answer_is_an_error_and_ends_the_connection(name: str) -> None:
    """It must not become an answer or a hang, and the socket is not used again. One whose status
    is a success was bought, so nothing else is tried.
    """
    async with serving(says(MALFORMED[name])) as server, calling() as client:
        with pytest.raises(UpstreamError, match="up sent an answer that cannot be read") as caught:
            await client.fetch(server.port)
        assert client.counts == (0, 0)
    assert caught.value.is_final is (name not in NO_SUCCESS)


async def test_a_malformed_error_may_be_tried_elsewhere() -> None:
    """It was refused, so it was not bought."""
    raw = MALFORMED["two lengths"].replace(b"200 OK", b"503 No")
    async with serving(says(raw)) as server, calling() as client:
        with pytest.raises(UpstreamError) as caught:
            await client.fetch(server.port)
    assert not caught.value.is_final


@pytest.mark.parametrize("ends", ["closes", "reset"])
@pytest.mark.parametrize("sent", [b"", b"HTTP/1.1 200 OK\r\ncontent-le"])
async def test_a_close_without_an_answer_is_an_error(ends: str, sent: bytes) -> None:
    """The request is not sent again, because the upstream may have begun to work on it."""
    async with serving(says(sent, ends=ends)) as server, calling() as client:
        exchange = await client.send(server.port)
        for _ in range(2):  # a second call gives the same error instead of a hang
            with pytest.raises(UpstreamError, match="up closed the connection without an answer"):
                await exchange.head()
        exchange.close()
        assert server.connections == 1


@pytest.mark.parametrize("ends", ["closes", "reset"])
@pytest.mark.parametrize(
    "framing",
    [b"transfer-encoding: chunked\r\n\r\n5\r\nhello\r\n", b"content-length: 9\r\n\r\nhello"],
)
async def test_a_cut_body_is_an_error_after_its_received_part(ends: str, framing: bytes) -> None:
    """The received part is forwarded first, because it is metered. A proper close also counts as
    a cut.
    """
    taken = asyncio.Event()

    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(b"HTTP/1.1 200 OK\r\n" + framing)
        await taken.wait()
        if ends == "reset":
            peer.reset()

    async with serving(script) as server, calling() as client:
        exchange = await client.send(server.port)
        assert await exchange.chunk() == b"hello"
        taken.set()
        for _ in range(2):
            with pytest.raises(UpstreamError, match="The connection to up broke"):
                await exchange.chunk()
        exchange.close()
        assert client.counts == (0, 0)


async def test_bytes_buffered_before_a_cut_are_not_lost() -> None:
    """The cut may be detected before the first piece is read."""
    async with (
        serving(says(STREAM + b"5\r\nhello\r\n", ends="closes")) as server,
        calling() as client,
    ):
        exchange = await client.send(server.port)
        await server.until(lambda: server.open_connections == 0)
        await exchange.head()
        await turns_until(lambda: client.counts[0] == 0)
        assert await exchange.chunk() == b"hello"
        with pytest.raises(UpstreamError):
            await exchange.chunk()
        exchange.close()


SLOW = {
    "no head": (says(), {"first_byte_s": 0.05}, "up did not begin to answer in 0.05 s"),
    "half a head": (
        says(b"HTTP/1.1 200 OK\r\nx:"),
        {"first_byte_s": 0.05},
        "up did not begin to answer in 0.05 s",
    ),
    "total before the head": (says(), {"total_s": 0.05}, "up did not begin to answer in 0.05 s"),
    "no body": (says(CHUNKED), {"idle_s": 0.05}, "up stopped answering in the middle"),
    "half a body": (
        says(CHUNKED + b"5\r\nhello\r\n"),
        {"idle_s": 0.05},
        "up stopped answering in the middle",
    ),
    "half a body without length": (
        says(b"HTTP/1.1 200 OK\r\n\r\nhalf"),
        {"idle_s": 0.05},
        "up stopped answering in",
    ),
    "only informational": (
        says(b"HTTP/1.1 100 Continue\r\n\r\n"),
        {"first_byte_s": 0.05},
        "up did not begin",
    ),
}


@pytest.mark.parametrize("name", SLOW)
async def test_a_silent_upstream_is_a_timeout(name: str) -> None:
    """Each deadline works alone; the connection is closed, and the upstream sees the close."""
    script, timeouts, message = SLOW[name]
    async with serving(script) as server, calling() as client:
        with pytest.raises(UpstreamTimeout, match=message):
            # No other deadline can end the exchange instead of the tested one.
            async with asyncio.timeout(20):
                await client.fetch(
                    server.port,
                    **{"first_byte_s": 3600, "idle_s": 3600, "total_s": 3600} | timeouts,
                )
        assert client.counts == (0, 0)
        await server.until(lambda: server.open_connections == 0)


def answering_while_we_are_busy(
    listener: socket.socket, is_busy: threading.Event, is_sent: threading.Event
) -> None:
    """Serve in a separate thread: the body comes while the client's event loop is blocked."""
    connection, _ = listener.accept()
    with connection:
        connection.recv(65536)
        connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n")
        is_busy.wait(20)
        connection.sendall(b"ok")
        is_sent.set()


async def test_an_upstream_is_not_silent_because_we_were_deaf() -> None:
    """The event loop was blocked past the deadline while the answer lay in the socket."""
    is_busy, is_sent, never = threading.Event(), threading.Event(), threading.Event()
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        server = threading.Thread(
            target=answering_while_we_are_busy, args=(listener, is_busy, is_sent)
        )
        server.start()
        async with calling() as client:
            exchange = await client.send(listener.getsockname()[1], idle_s=0.1)
            await exchange.head()
            is_busy.set()
            is_sent.wait(20)
            never.wait(0.2)  # blocks the event loop for longer than the idle timeout
            assert await exchange.read(10) == b"ok"
            exchange.close()
        server.join(20)


async def trickle(peer: Peer) -> None:
    """Send a byte now and then, forever."""
    await peer.request()
    await peer.send(CHUNKED)
    while True:
        await peer.send(b"1\r\n.\r\n")
        await asyncio.sleep(0.01)


async def test_a_trickle_ends_at_the_total() -> None:
    """An upstream that is never silent for long must still come to an end."""
    async with serving(trickle) as server, calling() as client:
        with pytest.raises(UpstreamTimeout, match=r"up did not finish its answer in 0\.2 s"):
            await client.fetch(server.port, idle_s=5, total_s=0.2)
        assert client.counts == (0, 0)


async def test_a_trickle_is_not_idle() -> None:
    """The idle time counts from the last byte, not from the head; an older timer must do no
    harm.
    """
    async with serving(trickle) as server, calling() as client:
        exchange = await client.send(server.port, idle_s=0.5, first_byte_s=0.5)
        got = b""
        async with asyncio.timeout(20):
            while len(got) < 100:
                got += await exchange.chunk()
        exchange.close()
        assert set(got) == set(b".")


async def test_the_deadlines_of_one_exchange_are_not_those_of_the_next() -> None:
    """One timer of the connection serves all exchanges. A short deadline must not cut the next
    exchange, and a long one must not delay its deadline.
    """
    waited = asyncio.Event()

    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(OK)
        await peer.request()
        await asyncio.sleep(0.1)
        await peer.send(OK)
        await peer.request()
        await waited.wait()

    async with serving(script) as server, calling() as client:
        assert await client.fetch(server.port, first_byte_s=0.05, idle_s=0.05, total_s=0.05) == (
            200,
            b"ok",
        )
        assert await client.fetch(server.port, first_byte_s=20) == (200, b"ok")
        with pytest.raises(UpstreamTimeout):
            await client.fetch(server.port, first_byte_s=0.05)
        assert server.connections == 1


async def test_a_slow_reader_stops_the_upstream_and_is_not_idle() -> None:
    """Reading ahead is limited, and time without reading does not count against the upstream."""
    size, sent = 64 * 1024 * 1024, 0
    piece = bytes(1024 * 1024)

    async def script(peer: Peer) -> None:
        nonlocal sent
        await peer.request()
        await peer.send(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % size)
        while sent < size:
            await peer.send(piece)
            sent += len(piece)
        await peer.gone()

    async with serving(script) as server, calling() as client:
        exchange = await client.send(server.port, idle_s=0.2, total_s=60)
        await exchange.head()
        await asyncio.sleep(0.5)  # longer than the idle timeout, and long enough to send everything
        assert READ_AHEAD_BYTES < exchange.buffered_bytes <= 3 * READ_AHEAD_BYTES
        assert sent < size / 2
        got = 0
        while piece_got := await exchange.chunk():
            got += len(piece_got)
        assert got == size
        exchange.close()
        assert client.counts == (1, 0)


async def test_after_a_pause_the_idle_time_starts_again() -> None:
    """The upstream could not send while we did not read, so its next byte may take the full idle
    time.
    """
    # The last byte causes the pause: no byte is left.
    size, reads_on = (
        READ_AHEAD_BYTES + 1,
        asyncio.Event(),
    )

    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % (size + 1) + bytes(size))
        await reads_on.wait()
        await asyncio.sleep(0.1)
        await peer.send(b"!")
        await peer.gone()

    async with serving(script) as server, calling() as client:
        exchange = await client.send(server.port, idle_s=0.5)
        await exchange.head()
        await asyncio.sleep(0.7)  # longer than the idle timeout
        reads_on.set()
        assert await exchange.read(2 * size) == bytes(size) + b"!"
        exchange.close()


async def test_after_a_pause_the_idle_time_counts_again() -> None:
    """The timer has fired meanwhile and sleeps until the total timeout; a new read must wake it
    earlier.
    """
    size = 1_000_000
    silent = says(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % (2 * size) + bytes(size))
    async with serving(silent) as server, calling() as client:
        exchange = await client.send(server.port, first_byte_s=3600, idle_s=0.1, total_s=3600)
        await exchange.head()
        await asyncio.sleep(0.3)  # longer than the idle timeout
        with pytest.raises(UpstreamTimeout, match="stopped answering"):
            await asyncio.wait_for(exchange.read(2 * size), 20)
        assert exchange.buffered_bytes == size
        exchange.close()


async def test_the_total_counts_for_a_slow_reader_too() -> None:
    """A caller that never reads must not occupy the upstream forever."""
    big = b"HTTP/1.1 200 OK\r\ncontent-length: 99999999\r\n\r\n" + bytes(2_000_000)
    async with serving(says(big)) as server, calling() as client:
        exchange = await client.send(server.port, total_s=0.3)
        await exchange.head()
        await server.until(lambda: server.connections == 1 and server.open_connections == 0)
        with pytest.raises(UpstreamTimeout, match="did not finish"):
            await exchange.read(1 << 30)
        exchange.close()


@pytest.mark.parametrize("size", [1000, 1001])
async def test_a_read_has_a_limit_to_the_byte(size: int) -> None:
    """An answer at the limit passes; one byte more is an error."""
    answer = says(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % size + bytes(size))
    async with serving(answer) as server, calling() as client:
        exchange = await client.send(server.port)
        if size == 1000:
            assert await exchange.read(1000) == bytes(1000)
        else:
            with pytest.raises(UpstreamError, match="larger than 1000 bytes"):
                await exchange.read(1000)
        exchange.close()


async def test_an_endless_answer_is_not_read_to_its_end() -> None:
    """Row 20: the upstream sends 64 MiB in one chunk, and only the first bytes are read."""
    size = 64 * 1024 * 1024
    answer = CHUNKED + b"%x\r\n" % size + bytes(size)
    async with serving(says(answer)) as server, calling() as client:
        exchange = await client.send(server.port)
        with pytest.raises(UpstreamError, match="larger than"):
            await exchange.read(1_000_000)
        assert exchange.buffered_bytes < 2_000_000
        exchange.close()
        await server.until(lambda: server.open_connections == 0)


class Impatient:
    """A reader that cancels every wait after a few turns of the event loop and starts it again,
    until it is done.
    """

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self.cancelled = 0

    async def wait(self, begin: Callable[[], Coroutine[Any, Any, T]]) -> T:
        async with asyncio.timeout(20):
            while True:
                waiting = asyncio.ensure_future(begin())
                for _ in range(self._rng.randrange(4)):
                    await asyncio.sleep(0)
                waiting.cancel()
                try:
                    return await waiting
                except asyncio.CancelledError:
                    self.cancelled += 1


@pytest.mark.parametrize("is_in_pieces", [True, False])
async def test_a_cancelled_wait_loses_nothing(is_in_pieces: bool, rng: random.Random) -> None:
    """The caller leaves and the answer is read on; for any point of cancellation, the bytes must
    be the same.
    """
    raw = STREAM + chunked(EVENTS[:70], EVENTS[70:71], EVENTS[71:])

    async def script(peer: Peer) -> None:
        while True:
            await peer.request()
            for at in range(0, len(raw), 3):
                await peer.send(raw[at : at + 3])
                await asyncio.sleep(0)

    async with serving(script) as server, calling() as client:
        for _ in range(20):
            impatient = Impatient(rng)
            exchange = await client.send(server.port)
            assert (await impatient.wait(exchange.head))[0] == 200
            if is_in_pieces:
                taken = b""
                while piece := await impatient.wait(exchange.chunk):
                    taken += piece
            else:
                taken = await impatient.wait(partial(exchange.read, 10**6))
            assert taken == EVENTS
            assert impatient.cancelled > 3, "no wait was cut: this test saw nothing"
            exchange.close()
        assert server.connections == 1


async def test_a_cancelled_read_can_go_on_in_pieces() -> None:
    """A drain uses `chunk` after a cancelled `read`, and continues at the same position."""
    more = asyncio.Event()

    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(CHUNKED + b"5\r\nhello\r\n")
        await more.wait()
        await peer.send(b"5\r\nworld\r\n0\r\n\r\n")

    async with serving(script) as server, calling() as client:
        exchange = await client.send(server.port)
        reading = asyncio.ensure_future(exchange.read(1000))
        await turns_until(lambda: exchange.buffered_bytes > 0)
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
        assert await exchange.chunk() == b"hello"
        more.set()
        assert await exchange.read(1000) == b"world"
        exchange.close()
        assert client.counts == (1, 0)


async def test_a_cancelled_read_leaves_no_larger_buffer_behind() -> None:
    """`read` may buffer as much as its limit; a later reader of chunks has the usual limit
    again.
    """

    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(b"HTTP/1.1 200 OK\r\ncontent-length: 99999999\r\n\r\n" + bytes(99_999_999))

    async with serving(script) as server, calling() as client:
        exchange = await client.send(server.port)
        await exchange.head()
        reading = asyncio.ensure_future(exchange.read(1 << 30))
        await asyncio.sleep(0)
        reading.cancel()
        await asyncio.sleep(0.3)  # long enough to receive much more
        # Libuv reads up to 8 MiB before the cancellation takes effect.
        assert exchange.buffered_bytes < 10_000_000
        exchange.close()
        await server.until(lambda: server.open_connections == 0)


async def test_close_in_mid_answer_is_seen_by_the_upstream_at_once() -> None:
    """A GPU must not work for an absent caller. A second close does nothing; waiters get an
    error.
    """
    async with serving(trickle) as server, calling() as client:
        exchange = await client.send(server.port)
        await exchange.chunk()
        waiting = asyncio.ensure_future(exchange.read(10**6))
        await asyncio.sleep(0)
        exchange.close()
        exchange.close()
        assert client.counts == (0, 0)
        with pytest.raises(UpstreamError):
            await waiting
        await server.until(lambda: server.open_connections == 0)


async def test_an_early_answer_to_a_long_request_is_read() -> None:
    """The upstream may refuse before it has read everything. The refusal arrives, and the
    connection is not used again.
    """

    seen = asyncio.Event()

    async def script(peer: Peer) -> None:
        await peer.head()
        await peer.send(b"HTTP/1.1 413 Content Too Large\r\ncontent-length: 3\r\n\r\nbig")
        await seen.wait()

    async with serving(script) as server, calling() as client:
        exchange = await client.send(server.port, body=bytes(32 * 1024 * 1024))
        assert ((await exchange.head())[0], await exchange.read(100)) == (413, b"big")
        exchange.close()
        seen.set()
        assert client.counts == (0, 0)


async def test_a_long_request_arrives_whole() -> None:
    """The body is larger than the socket takes at once."""
    body = bytes(range(256)) * 32 * 1024
    async with serving(answering(OK)) as server, calling() as client:
        assert await client.fetch(server.port, body=body) == (200, b"ok")
        assert server.requests[0].endswith(b"\r\n\r\n" + body)
        assert client.counts == (1, 0)


async def test_nothing_is_sent_to_an_address_outside_the_permit() -> None:
    """The address is compared with the permit even before the name lookup."""
    async with serving(answering(OK)) as server, calling() as client:
        call = UpstreamRequest(url=f"http://127.0.0.1:{server.port}/v1/x", headers={}, body=b"")
        with pytest.raises(ResidencyDenied):
            await client.transport.send(permit("http://127.0.0.1:9/v1"), call)
        assert (server.connections, client.counts) == (0, (0, 0))


ODD_HEADERS = [
    {"x-a": "1\r\nx-b: 2"},
    {"x-a": "1\nx-b: 2"},
    {"x-a": "1\r"},
    {"x-a\r\nx-b": "2"},
    {"x-a": "\0"},
    {"x-a": "secret €"},
]


@pytest.mark.parametrize("headers", ODD_HEADERS)
async def test_a_header_cannot_become_two(headers: dict[str, str]) -> None:
    """Such a header is refused before anything is sent; the message names the header but not its
    value.
    """
    async with serving(answering(OK)) as server, calling() as client:
        url = f"http://127.0.0.1:{server.port}/v1/x"
        call = UpstreamRequest(url=url, headers={"x-ok": "1", **headers}, body=b"")
        with pytest.raises(ValueError, match=r"a header has .*x-a") as refused:
            await client.transport.send(permit(url), call)
        assert "secret" not in str(refused.value)
        assert (server.connections, client.counts) == (0, (0, 0))


@pytest.mark.parametrize("path", ["/v1/x y", "/v1/é", "/v1/\x7f"])
async def test_an_address_cannot_break_the_request_line(path: str) -> None:
    """A path is sent unchanged, so it must be valid already."""
    async with calling() as client:
        with pytest.raises(ValueError, match="printable ASCII"):
            await client.send(0, url=f"http://127.0.0.1:9{path}")


HOSTS = {
    "http://h.example": "h.example",
    "http://h.example:80": "h.example",
    "http://h.example:8080": "h.example:8080",
    "https://h.example:443/v1": "h.example",
    "https://h.example:80/v1": "h.example:80",
    "http://[::1]:8000/v1": "[::1]:8000",
    "http://[::1]/v1": "[::1]",
    "http://bücher.example/": "xn--bcher-kva.example",
    "http://user:word@h.example/": "h.example",
}


@pytest.mark.parametrize("url", HOSTS)
def test_the_host_header_is_right(url: str) -> None:
    """The default port is omitted, IPv6 has brackets, and credentials in an address are never
    sent.
    """
    head = head_bytes(target_of(url), UpstreamRequest(url=url, headers={}, body=b""))
    assert head.split(b"\r\n")[1] == b"host: " + HOSTS[url].encode()


def has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True


@pytest.mark.skipif(not has_ipv6(), reason="needs IPv6: this machine has no address ::1")
async def test_ipv6_works() -> None:
    """An engine may listen on IPv6 only."""
    async with serving(answering(OK), host="::1") as server, calling() as client:
        url = f"http://[::1]:{server.port}/v1/x"
        assert await client.fetch(server.port, url=url) == (200, b"ok")
        assert b"\r\nhost: [::1]:%d\r\n" % server.port in server.requests[0]


@pytest.mark.parametrize(
    "url", ["http://127.0.0.1:1/v1", "http://nobody.invalid/v1", f"http://{'a' * 70}.example/v1"]
)
async def test_an_unreachable_upstream_is_named_by_its_deployment(url: str) -> None:
    """Rows 1 and 2: a refused connection, an unknown name and an invalid name.

    The message contains neither host nor port.
    """
    async with calling() as client:
        with pytest.raises(UpstreamUnreachable, match=r"^up could not be") as refused:
            await client.send(0, url=url)
        assert url.split("/")[2] not in str(refused.value)
        assert client.counts == (0, 0)


async def test_a_large_answer_is_whole_though_reading_it_was_cancelled() -> None:
    """A separate thread joins the pieces, because allocating 126 MB paused the event loop for
    200 ms.
    """
    content = bytes(range(256)) * (8 * 2**20 // 256)
    answer = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(content)
    async with serving(answering(answer + content)) as server, calling() as client:
        exchange = await client.send(server.port)
        await exchange.head()
        reading = asyncio.create_task(exchange.read(len(content)))
        await turns_until(lambda: exchange._answer.is_complete)
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
        assert await exchange.read(len(content)) == content
        exchange.close()
        assert client.counts == (1, 0)
