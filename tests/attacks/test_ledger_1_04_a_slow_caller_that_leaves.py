"""Ledger 1.4: bytes that had arrived for a slow caller, but were not forwarded before it left,
were not metered.
"""

from __future__ import annotations

import json

from gateway.domain.ledger.usage_event import Outcome
from gateway.domain.pricing.tokens import UsageSource
from tests import factories
from tests.fakes import FakeUpstreamAnswer
from tests.providers.scripted import Peer, calling, serving
from tests.unit.request.test_request_service import body, piece, stage
from tests.waiting import soon


async def test_only_the_received_output_is_metered() -> None:
    """17,133 of 40,000 tokens were booked; the rest was charged to other teams' unknown
    attempts.
    """
    pieces = [piece("x", made) for made in range(1, 101)]
    upstream = FakeUpstreamAnswer(pieces, arrived=60)
    on = stage(upstream)
    answer = await on.answer(
        body(stream=True), factories.deployment(provider="vllm", is_self_hosted=True)
    )
    assert answer.rest is not None
    await answer.rest.aclose()
    await soon(lambda: on.journal.events, "the event")
    assert (on.event.outcome, on.event.usage_source) == (Outcome.CLIENT_GONE, UsageSource.DERIVED)
    # The one that was forwarded, and those that the kernel had.
    assert on.event.usage.output_tokens == 61
    assert upstream.closed == 1


async def test_the_kernel_says_how_much_has_arrived() -> None:
    """The gateway reads 256 KiB ahead; the rest waits in the socket and must count too."""
    sent = b"x" * 600_000

    async def answers(peer: Peer) -> None:
        await peer.request()
        await peer.send(
            b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: 900000\r\n\r\n"
            + sent
        )
        await peer.gone()

    async with serving(answers) as server, calling() as client:
        exchange = await client.send(server.port, body=json.dumps({}).encode())
        await exchange.head()
        read = 0
        await soon(lambda: exchange.arrived_bytes() >= 400_000, "what was sent")
        while read < len(sent):
            arrived = exchange.arrived_bytes()
            chunk = await exchange.chunk()
            assert len(chunk) <= max(arrived, len(sent) - read)
            read += len(chunk)
        assert (read, exchange.arrived_bytes()) == (len(sent), 0)
        exchange.close()
        assert exchange.arrived_bytes() == 0
