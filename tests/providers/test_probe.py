"""The probe over real sockets: one deadline, verified TLS, and nothing sent anywhere else."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from urllib.parse import urlsplit

import httpcore2
import pytest

from gateway.providers.engine_sampler import MOST_BYTES, EngineSampler
from gateway.providers.timed_stream import connect
from tests import factories
from tests.fakes import CountingListener
from tests.providers.authority import Authority
from tests.providers.scripted import Peer, Script, Server, serving

NOW = datetime(2026, 11, 20, 12, tzinfo=UTC)
HEAD = b"HTTP/1.1 200 OK\r\ncontent-length: 100000\r\n\r\n"
PAGE = b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\npage"


async def page(url: str, *, timeout_s: float = 20.0) -> str | None:
    """Fetch a page in a thread, as the gateway does."""
    probe = EngineSampler(lambda: NOW, timeout_s=timeout_s)
    engine = factories.deployment("qwen", base_url=f"{url}/v1", is_self_hosted=True)
    return await asyncio.to_thread(probe.metrics_page, engine)


async def drips_its_head(peer: Peer) -> None:
    await peer.head()
    while True:
        await peer.send(b"H")
        await asyncio.sleep(0.01)


async def drips_its_body(peer: Peer) -> None:
    await peer.head()
    await peer.send(HEAD)
    while True:
        await peer.send(b"x")
        await asyncio.sleep(0.01)


async def stalls(peer: Peer) -> None:
    await peer.head()
    await peer.send(HEAD + b"xx")
    await peer.gone()


async def is_silent(peer: Peer) -> None:
    await peer.head()
    await peer.gone()


@pytest.mark.parametrize(
    ("script", "is_right"),
    [
        (is_silent, lambda found: found is None),
        (drips_its_head, lambda found: found is None),
        (drips_its_body, lambda found: found and not found.strip("x")),
        (stalls, lambda found: found == "xx"),
    ],
)
async def test_no_answer_outlives_the_deadline(
    script: Script, is_right: Callable[[str | None], bool]
) -> None:
    """A byte now and then must not hold a thread for hours. An engine that sent its head is up."""
    async with serving(script) as server:
        assert is_right(await page(f"http://127.0.0.1:{server.port}", timeout_s=0.3))
        await server.until(lambda: server.open_connections == 0)


async def test_a_handshake_that_hangs_ends_at_the_deadline() -> None:
    """The deadline includes TLS."""
    async with serving(Peer.gone) as server:
        assert await page(f"https://127.0.0.1:{server.port}", timeout_s=0.3) is None


def test_a_connection_without_time_left_for_tls_is_closed() -> None:
    """Its file descriptor must not stay open for as long as someone holds the error."""
    left = iter([5.0])  # for the connection, and nothing after it

    def left_s() -> float:
        try:
            return next(left)
        except StopIteration:
            raise httpcore2.TimeoutException from None

    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = urlsplit(f"https://127.0.0.1:{listener.getsockname()[1]}")
        with pytest.raises(httpcore2.TimeoutException) as raised:
            connect(address, left_s=left_s, tls=ssl.create_default_context)
        assert raised.tb is not None, "it holds the frames, so nothing is closed by being dropped"
        with listener.accept()[0] as accepted:
            accepted.settimeout(5)
            assert accepted.recv(1) == b""


@pytest.mark.parametrize("answer", [b"", b"220 mail.example ESMTP\r\n\r\n", b"x" * 200_000])
async def test_what_is_no_answer_is_none(answer: bytes) -> None:
    """Another program listens on the engine's port."""

    async def script(peer: Peer) -> None:
        await peer.head()
        await peer.send(answer)

    async with serving(script) as server:
        assert await page(f"http://127.0.0.1:{server.port}") is None


async def test_a_page_without_end_is_cut() -> None:
    """The gateway's memory is not the engine's to fill."""

    async def floods(peer: Peer) -> None:
        await peer.head()
        await peer.send(b"HTTP/1.1 200 OK\r\n\r\n")
        while True:
            await peer.send(b"x" * 65536)

    async with serving(floods) as server:
        found = await page(f"http://127.0.0.1:{server.port}")
    assert found is not None
    assert MOST_BYTES <= len(found) <= MOST_BYTES + 2**20


async def test_a_host_that_does_not_exist_is_no_answer() -> None:
    """A name that is too long to be one is an error of the lookup, and ends no round."""
    assert await page(f"http://{'a' * 64}.internal:8000") is None


async def test_a_private_authority_is_trusted_and_no_bad_certificate(
    authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    """TLS is never downgraded: an engine that cannot prove its name gets no request."""
    monkeypatch.setenv("SSL_CERT_FILE", str(authority.path))
    async with tls_engine(authority, "good") as server:
        assert await page(f"https://localhost:{server.port}") == "page"
    for kind in ("expired", "wrong-host", "self-signed"):
        async with tls_engine(authority, kind) as server:
            assert await page(f"https://localhost:{server.port}") is None
            assert server.requests == []


async def test_a_proxy_of_the_environment_is_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    """A probe goes to the declared address or is not sent."""
    proxy = CountingListener()
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, f"http://127.0.0.1:{proxy.port}")
    try:
        async with serving(tells_its_page) as server:
            assert await page(f"http://127.0.0.1:{server.port}") == "page"
        assert proxy.connections == 0
    finally:
        proxy.close()


async def test_a_request_has_these_fields_alone() -> None:
    """No cookie, no credential, and no compression, whose size has no limit."""
    async with serving(tells_its_page) as server:
        await page(f"http://127.0.0.1:{server.port}")
    first, *fields = server.requests[0].decode().rstrip().split("\r\n")
    assert first == "GET /metrics HTTP/1.1"
    assert fields == [
        f"host: 127.0.0.1:{server.port}",
        "accept: text/plain",
        "connection: close",
    ]


async def tells_its_page(peer: Peer) -> None:
    head = await peer.head()
    peer.server.requests.append(head)
    await peer.send(PAGE)


@asynccontextmanager
async def tls_engine(authority: Authority, kind: str) -> AsyncIterator[Server]:
    async with serving(tells_its_page, tls=authority.server(kind), host="localhost") as server:
        yield server
