"""Security F16: an abandoned answer stayed in memory until the garbage collector ran, which is
seldom.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import socket
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from gateway.errors import RequestError
from gateway.providers.http1.answer import Answer
from gateway.providers.http1.connection import UpstreamExchange
from tests import plain_http
from tests.attacks.settling import ask, only_event, policy
from tests.gateway_process import Gateway, StartGateway
from tests.integration.raw_upstream import RawUpstream, raw_upstream
from tests.providers.scripted import Client, Peer, Server, calling, serving
from tests.waiting import eventually, soon

MIB = 2**20
HEAD = b"HTTP/1.1 200 OK\r\ncontent-length: 2000000\r\n\r\n"
INPUTS, DIMENSIONS = 2048, 3072
MAY_STAY_BYTES = 64 * MIB  # limit from contract/edge.md, three seconds after an attack


async def _silent(peer: Peer) -> None:
    await peer.request()
    await peer.gone()


async def _buffered(peer: Peer) -> None:
    await peer.request()
    await peer.send(HEAD + b"x" * MIB)
    await peer.gone()


async def _cut(peer: Peer) -> None:
    await peer.request()
    await peer.send(HEAD + b"x" * MIB)
    peer.close()


async def _malformed(peer: Peer) -> None:
    await peer.request()
    await peer.send(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhelloXX\r\n")
    await peer.gone()


async def _whole(peer: Peer) -> None:
    await peer.request()
    await peer.send(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok")
    await peer.gone()


async def at_once(exchange: UpstreamExchange) -> None:
    exchange.close()


async def after_a_head(exchange: UpstreamExchange) -> None:
    await exchange.head()
    await soon(lambda: exchange.buffered_bytes, "some of it")
    exchange.close()


async def after_its_end(exchange: UpstreamExchange) -> None:
    with contextlib.suppress(RequestError):
        await exchange.head()
        while await exchange.chunk():
            pass
    exchange.close()


async def over_a_limit(exchange: UpstreamExchange) -> None:
    with contextlib.suppress(RequestError):
        await exchange.read(1000)
    exchange.close()


async def while_waited_for(exchange: UpstreamExchange) -> None:
    task = asyncio.create_task(exchange.head())
    await asyncio.sleep(0)
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    exchange.close()


STATES = [
    (_silent, at_once),
    (_silent, while_waited_for),
    (_silent, after_its_end),
    (_buffered, after_a_head),
    (_buffered, over_a_limit),
    (_cut, after_its_end),
    (_cut, over_a_limit),
    (_malformed, after_its_end),
    (_whole, after_its_end),
    (_whole, at_once),
]


@pytest.mark.parametrize(("script", "ends"), STATES, ids=lambda one: one.__name__.strip("_"))
async def test_a_closed_exchange_goes_with_its_last_reference(
    script: Callable[[Peer], Awaitable[None]], ends: Callable[[UpstreamExchange], Awaitable[None]]
) -> None:
    """The exchange referred to itself through its failure's exception, together with all its
    pieces.
    """
    async with serving(script) as server, calling() as client:
        # the first exchange of each kind also makes cached objects
        await _once(server, client, ends)
        gc.collect()
        gc.disable()
        try:
            for _ in range(3):
                await _once(server, client, ends)
            await server.until(lambda: server.open_connections <= 1)
            await soon(lambda: not _alive(), "the end of each exchange")
        finally:
            gc.enable()


async def _once(
    server: Server, client: Client, ends: Callable[[UpstreamExchange], Awaitable[None]]
) -> None:
    await ends(await client.send(server.port, first_byte_s=0.2))


def _alive() -> list[object]:
    return [one for one in gc.get_objects() if isinstance(one, (UpstreamExchange, Answer))]


def endless(connection: socket.socket) -> None:
    connection.sendall(
        b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nconnection: close\r\n\r\n{"
    )
    while True:
        connection.sendall(b" " * MIB)


def embeddings(connection: socket.socket) -> None:
    """Return the answer to 2,048 inputs of 3,072 dimensions, as decimals: 130 MB."""
    vector = b"[" + b",".join([b"-0.0123456789012345"] * DIMENSIONS) + b"]"
    items = b",".join([b'{"object":"embedding","index":0,"embedding":' + vector + b"}"] * INPUTS)
    body = (
        b'{"object":"list","data":[%b],"model":"m","usage":{"prompt_tokens":2048,"total_tokens":2048}}'
        % items
    )
    assert len(body) > 120_000_000
    connection.sendall(
        b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
        % len(body)
        + body
    )


@pytest.fixture
def upstream() -> Iterator[RawUpstream]:
    yield from raw_upstream({"endless": endless, "large": embeddings})


def test_an_endless_answer_is_bought_once_and_leaves_nothing(
    start_gateway: StartGateway, upstream: RawUpstream
) -> None:
    """RSS went from 338 to 531 to 723 MB with one request each, and stayed there."""
    gateway = start_gateway(
        policy(
            upstream.url,
            {"endless": "openai_compatible", "other": "openai_compatible"},
            {"both": ["endless", "other"]},
        )
    )
    idle_bytes = resident_bytes(gateway)
    for _ in range(3):
        answer = ask(gateway, "both")
        assert (answer.status_code, "larger than" in answer.text) == (502, True)
        assert only_event(gateway, answer)["outcome"] == "upstream_cut"
    assert upstream.asked == ["endless"] * 3
    eventually(
        lambda: resident_bytes(gateway) < idle_bytes + MAY_STAY_BYTES,
        f"less than {idle_bytes + MAY_STAY_BYTES:,} bytes (now {resident_bytes(gateway):,})",
    )


def test_the_largest_legal_request_for_embeddings_is_served(
    start_gateway: StartGateway, upstream: RawUpstream
) -> None:
    """It ended in 502, was billed three times, and left 192 MB."""
    gateway = start_gateway(policy(upstream.url, {"large": "openai_compatible"}))
    idle_bytes = resident_bytes(gateway)
    for _ in range(2):
        answer = ask(gateway, "large", "embeddings", input=["a"] * INPUTS)
        assert answer.status_code == 200, answer.text[:300]
        assert len(answer.content) > 120_000_000
        assert json.loads(answer.content[-200:].partition(b'"usage":')[2][:-1])["cost_usd"] > 0
        row = only_event(gateway, answer)
        assert (row["outcome"], row["usage_source"], row["input_tokens"]) == (
            "ok",
            "provider",
            2048,
        )
        del answer
    assert upstream.asked == ["large"] * 2
    eventually(
        lambda: resident_bytes(gateway) < idle_bytes + MAY_STAY_BYTES,
        f"less than {idle_bytes + MAY_STAY_BYTES:,} bytes (now {resident_bytes(gateway):,})",
    )
    assert plain_http.get(f"http://127.0.0.1:{gateway.port}/healthz", timeout=10).status_code == 200


def resident_bytes(gateway: Gateway) -> int:
    """Return the memory of the serving processes, in bytes."""
    assert gateway.process is not None
    pids = [gateway.process.pid]
    for pid in pids:
        for task in Path(f"/proc/{pid}/task").glob("*/children"):
            pids += [int(child) for child in task.read_text().split()]
    lines = [line for pid in pids for line in Path(f"/proc/{pid}/status").read_text().splitlines()]
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmRSS"))
