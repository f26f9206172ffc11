"""A deployment that contradicts itself is out of use: here at once, elsewhere soon, and again only
by a person.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress

from gateway.domain.residency.stated_place import Contradiction
from gateway.services.deployments.ejections import FORGOTTEN_AFTER_S, Ejections
from tests.factories import REQUEST_ID
from tests.fakes import FakeClock, FakeEjections
from tests.waiting import soon

FOUND = Contradiction(deployment="gpt-eu", promised="eu", stated="us")


async def noted(store: FakeEjections, clock: FakeClock) -> tuple[Ejections, list[str]]:
    seen: list[str] = []
    ejections = Ejections(store, clock, on_ejected=seen.append, retry_s=0.0)
    ejections.note(FOUND, request_id=REQUEST_ID, attempt=1)
    return ejections, seen


def test_it_is_out_at_once_and_counted_once() -> None:
    """The next request must not go there, in any state of Postgres."""

    async def story() -> None:
        ejections, seen = await noted(FakeEjections(is_away=True), FakeClock())
        ejections.note(FOUND, request_id=REQUEST_ID, attempt=2)
        assert ejections.is_out("gpt-eu")
        assert not ejections.is_out("qwen-eu")
        assert ejections.out({"partner": "global"}) == {"gpt-eu": "us", "partner": "global"}
        assert (seen, ejections.noted) == (["gpt-eu"], 1)

    asyncio.run(story())


def test_other_replicas_learn_of_an_ejection_when_postgres_is_back() -> None:
    """A replica that never saw the answer must not use the deployment either."""

    async def story() -> None:
        store = FakeEjections(is_away=True)
        ejections, _ = await noted(store, FakeClock())
        running = asyncio.create_task(ejections.run())
        await asyncio.sleep(0)
        store.is_away = False
        await soon(lambda: store.ejected == [(FOUND, REQUEST_ID, 1)], "told")
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running

    asyncio.run(story())


def test_a_readmitted_deployment_is_used_again() -> None:
    """Postgres decides once it knows the ejection: this worker's memory must not outlive it."""

    async def story() -> None:
        clock, store = FakeClock(), FakeEjections()
        ejections, _ = await noted(store, clock)
        running = asyncio.create_task(ejections.run())
        await soon(lambda: bool(store.ejected), "told")
        await asyncio.sleep(0)
        assert ejections.out({}) == {"gpt-eu": "us"}, "told, but the snapshot is older"
        assert ejections.out({"gpt-eu": "us"}) == {"gpt-eu": "us"}, (
            "from here on the snapshot says it"
        )
        assert ejections.out({}) == {}, "readmitted"
        ejections.note(FOUND, request_id=REQUEST_ID, attempt=1)
        await soon(lambda: len(store.ejected) == 2, "told again")
        await asyncio.sleep(0)
        clock.advance(FORGOTTEN_AFTER_S + 1)
        assert ejections.out({}) == {}, "readmitted before any snapshot had it"
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running

    asyncio.run(story())
