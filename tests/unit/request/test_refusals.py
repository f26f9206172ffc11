"""Refused requests leave no event; they are counted by rule, and a count that is written twice is
the same.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from datetime import UTC, datetime
from uuid import uuid4

from gateway.domain.policy.policy import DataClass, ResidencyRule
from gateway.domain.routing.decide import Decision, decide
from gateway.domain.routing.refusal_count_key import RefusalCountKey
from gateway.services.request.refusals import Refusals
from tests import factories
from tests.fakes import FakeClock, FakeRefusals

HOUR = datetime(2026, 11, 20, 12, tzinfo=UTC)
REFUSED = RefusalCountKey(
    HOUR, "payments", "assistant", "confidential", "residency_denied", ("class:confidential",)
)


def refused_decision() -> Decision:
    rule = ResidencyRule(rule_id="class:confidential", regions=frozenset({"us"}))
    version = factories.version(factories.policy(classes={DataClass.CONFIDENTIAL: rule}))
    policy = version.policy
    decision = decide(
        version,
        team=policy.teams["payments"],
        route=policy.routes["assistant"],
        data_class=DataClass.CONFIDENTIAL,
        facts=factories.facts(),
        prices={"one": factories.price()},
        day=HOUR.date(),
    )
    assert decision.refusal() is not None
    return decision


def test_they_are_counted_by_hour_and_rule() -> None:
    """An auditor asks how often a rule kept data in, not only that none left."""

    async def story() -> None:
        store, clock, journal = FakeRefusals(), FakeClock(), uuid4()
        refusals = Refusals(store.write, clock, journal_id=journal)
        for _ in range(3):
            refusals.note(refused_decision(), "residency_denied")
        await refusals.write()
        assert store.counts == {(journal, REFUSED): 3}
        refusals.note(refused_decision(), "residency_denied")
        await refusals.close()
        assert store.counts == {(journal, REFUSED): 4}, "so many so far, not so many more"

    asyncio.run(story())


def test_nothing_is_lost_while_postgres_is_away() -> None:
    """The count of an hour comes later, whole."""

    async def story() -> None:
        store, clock, journal = FakeRefusals(is_away=True), FakeClock(), uuid4()
        refusals = Refusals(store.write, clock, journal_id=journal)
        refusals.note(refused_decision(), "residency_denied")
        await refusals.write()
        clock.advance(4 * 3600)
        refusals.note(refused_decision(), "residency_denied")
        await refusals.write()
        assert store.counts == {}
        store.is_away = False
        await refusals.write()
        assert store.counts[journal, REFUSED] == 1
        assert sum(store.counts.values()) == 2
        await refusals.write()
        assert len(store.counts) == 2, "nothing new, nothing written"

    asyncio.run(story())


def test_a_stop_in_the_middle_of_a_write_loses_no_count() -> None:
    """The job is cancelled at every clean stop, and the close after it must find its unwritten
    counts.
    """

    async def story() -> None:
        store, journal = FakeRefusals(is_away=True), uuid4()
        refusals = Refusals(store.write, FakeClock(), journal_id=journal)
        refusals.note(refused_decision(), "residency_denied")
        writing = asyncio.create_task(refusals.write())
        await asyncio.sleep(0)
        writing.cancel()
        with suppress(asyncio.CancelledError):
            await writing
        store.is_away = False
        await refusals.close()
        assert store.counts == {(journal, REFUSED): 1}

    asyncio.run(story())
