"""A webhook's receiver, and an engine, that answer with informational answers without end."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime
from pathlib import Path

import pytest

from gateway.domain.alerts.delivery import NotDelivered
from gateway.domain.budgets.alerts import message_of
from gateway.domain.policy.policy import Alerts
from gateway.providers.alerts.webhook import Webhook
from gateway.providers.engine_sampler import EngineSampler
from tests import factories
from tests.providers.scripted import Peer, serving
from tests.providers.test_webhook import ALERT
from tests.waiting import plain_loop_s

NOW = datetime(2026, 11, 24, 12, tzinfo=UTC)
FLOODS = (
    b"HTTP/1.1 100 \r\n\r\n",
    b"HTTP/1.1 103 a\r\na:b\r\n\r\n",
    b"HTTP/1.1 103 a\r\n" + b"a:b\r\n" * 4000 + b"\r\n",
)
UNTIL_S = 2.0


async def longest_turn_s() -> float:
    """Return the most CPU seconds of the loop's thread between two turns, until cancelled."""
    longest_s, began_s = 0.0, time.thread_time()
    try:
        while True:
            await asyncio.sleep(0)
            now_s = time.thread_time()
            longest_s, began_s = max(longest_s, now_s - began_s), now_s
    except asyncio.CancelledError:
        return longest_s


@pytest.mark.parametrize("flood", FLOODS, ids=["short", "one field", "many fields"])
async def test_the_loop_goes_on(flood: bytes, tmp_path: Path) -> None:
    """Each piece of 64 KiB, with 4,000 of them, took up to 109 ms of CPU on the gateway's loop."""
    secret = tmp_path / "secret"
    secret.write_text("secret")

    async def script(peer: Peer) -> None:
        await peer.head()
        while True:
            await peer.send(flood * (2**16 // len(flood) + 1))

    async with serving(script) as server:
        url = f"http://127.0.0.1:{server.port}/"
        webhook = Webhook(lambda: NOW, timeout_s=UNTIL_S)
        engine = factories.deployment("odd", base_url=f"{url}v1", is_self_hosted=True)
        watching = asyncio.create_task(longest_turn_s())
        async with asyncio.timeout(60):  # the flood has no end
            with pytest.raises(NotDelivered, match="did not answer"):
                await webhook.send(message_of(ALERT), Alerts(webhook=url, secret=f"file:{secret}"))
            probe = EngineSampler(lambda: NOW, timeout_s=UNTIL_S)
            assert await asyncio.to_thread(probe.metrics_page, engine) is None
        watching.cancel()
        assert await watching < plain_loop_s(2**20)
