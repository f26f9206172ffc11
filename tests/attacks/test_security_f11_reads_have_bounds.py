"""Security F11: reads of own usage and receipts were unlimited, and shared the threads of the
background jobs.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from typing import cast

import httpx2
import pytest

from gateway.domain.budgets.limits import LimitedBy
from gateway.errors import Unavailable
from gateway.services.limits.limiter import Limiter, LimitGrant
from gateway.services.limits.own_reads import AT_ONCE_PER_TEAM, OwnReads
from tests import plain_http
from tests.gateway_process import FakeUpstreamProcess, Gateway, StartGateway
from tests.integration.policy import small
from tests.integration.postgres_gate import PostgresGate
from tests.waiting import eventually, soon


class Unlimited:
    """Limits that admit every read."""

    async def admit_read(self, limited: Sequence[LimitedBy]) -> LimitGrant:
        return LimitGrant(cast(Limiter, None), [], taken_s=0, tokens=0)


async def test_a_flood_of_one_team_leaves_the_others_their_reads() -> None:
    """Forty loops of one team delayed another team's receipt from 0.01 s to 2.2 s."""
    admission, began = threading.Event(), list[str]()

    def hang() -> str:
        began.append("red")
        admission.wait(60)
        return "red"

    reads = OwnReads(Unlimited().admit_read, patience_s=30)
    flood = [asyncio.create_task(reads.read("red", (), hang)) for _ in range(40)]
    await soon(lambda: len(began) == AT_ONCE_PER_TEAM, "the first reads of red")
    assert await reads.read("blue", (), lambda: "blue") == "blue"
    assert len(began) == AT_ONCE_PER_TEAM
    admission.set()
    assert set(await asyncio.gather(*flood)) == {"red"}
    await reads.close()


async def test_a_read_that_hangs_is_a_503_and_frees_its_place_when_it_ends() -> None:
    """The read blocked its thread for more than a minute. Its slot is freed only at its end;
    earlier would admit too many.
    """
    admission, ended = threading.Event(), list[bool]()
    reads = OwnReads(Unlimited().admit_read, patience_s=0.05)
    for _ in range(AT_ONCE_PER_TEAM):
        with pytest.raises(Unavailable, match="did not answer within"):
            await reads.read("red", (), lambda: ended.append(admission.wait(60)))
    with pytest.raises(Unavailable):
        await reads.read("red", (), lambda: ended.append(True))
    admission.set()
    await soon(lambda: len(ended) == AT_ONCE_PER_TEAM, "the end of the threads")
    assert await reads.read("red", (), lambda: "read") == "read"
    await reads.close()


@pytest.fixture
def gateway(
    admission: PostgresGate, start_gateway: StartGateway, fake_upstream: FakeUpstreamProcess
) -> Gateway:
    """Return a gateway that reaches Postgres through the gate."""
    return start_gateway(small(fake_upstream.url), database_url=admission.url)


def usage(gateway: Gateway) -> httpx2.Response:
    """Return the caller's own usage."""
    headers = {"authorization": f"Bearer {gateway.key}"}
    return plain_http.get(f"{gateway.base_url}/usage/me", headers=headers, timeout=60)


def chat(gateway: Gateway) -> int:
    """Return the status of one small request."""
    body = {"model": "vllm", "messages": [{"role": "user", "content": "hello"}]}
    headers = {"authorization": f"Bearer {gateway.key}"}
    return plain_http.post(
        f"{gateway.base_url}/chat/completions", json=body, headers=headers, timeout=60
    ).status_code


def test_a_postgres_that_hangs_ends_a_read_with_a_503(
    gateway: Gateway, admission: PostgresGate
) -> None:
    """The read hung for more than 60 s, the longest that `usage` waits.

    Requests continue meanwhile, and so do reads once new connections work.
    """
    assert usage(gateway).status_code == 200
    admission.accept_without_answering()
    for _ in range(2):
        assert usage(gateway).status_code == 503
        assert chat(gateway) == 200
    admission.open()
    eventually(lambda: usage(gateway).status_code == 200, "Postgres")
    admission.freeze()
    assert usage(gateway).status_code in (200, 503), (
        "the connection is replaced, if that is soon enough"
    )
    eventually(lambda: usage(gateway).status_code == 200, "a new connection")


def test_reads_count_under_the_teams_request_limit(
    start_gateway: StartGateway, fake_upstream: FakeUpstreamProcess
) -> None:
    """A team must not get a thousand free reads per second: reads have the same limit and the
    same 429.
    """
    limited = small(fake_upstream.url).replace(
        "routes: [vllm]", "routes: [vllm], limits: {requests_per_minute: 5}"
    )
    gateway = start_gateway(limited)
    answers = [usage(gateway) for _ in range(7)]
    assert [answer.status_code for answer in answers] == [200] * 5 + [429] * 2
    assert answers[-1].json()["error"]["code"] == "rate_limited"
    assert chat(gateway) == 429
