"""Refused requests leave no event; they are counted by rule, and a count that is written twice is
the same.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from uuid import uuid4

from gateway.domain.routing.refusal_count_key import MOST_ROWS, RefusalCountKey
from gateway.services.request.refusals import Refusals
from gateway.storage.budgets.refusals import RefusalFolder
from tests.fakes import FakeClock, FakeRefusals
from tests.waiting import soon

HOUR = datetime(2026, 11, 20, 12, tzinfo=UTC)
REFUSED = RefusalCountKey(
    HOUR,
    "payments",
    "assistant",
    "confidential",
    "residency_denied",
    ("class:confidential",),
    rule="class:confidential",
)


def note(refusals: Refusals, **more: str) -> None:
    """Count one request that a residency rule refused."""
    refusals.note(
        "payments",
        "residency_denied",
        rules=("class:confidential",),
        route="assistant",
        data_class="confidential",
        **more,
    )


def test_they_are_counted_by_hour_and_rule() -> None:
    """An auditor asks how often a rule kept data in, not only that none left."""

    async def story() -> None:
        store, clock, journal = FakeRefusals(), FakeClock(), uuid4()
        refusals = Refusals(store, clock, journal_id=journal, files=store)
        for _ in range(3):
            note(refusals)
        await refusals.write()
        assert store.counts == {(journal, REFUSED): 3}
        note(refusals)
        await refusals.close()
        assert store.counts == {(journal, REFUSED): 4}, "so many so far, not so many more"

    asyncio.run(story())


def test_nothing_is_lost_while_postgres_is_away() -> None:
    """The count of an hour comes later, whole."""

    async def story() -> None:
        store, clock, journal = FakeRefusals(is_away=True), FakeClock(), uuid4()
        refusals = Refusals(store, clock, journal_id=journal, files=store)
        note(refusals)
        await refusals.write()
        clock.advance(4 * 3600)
        note(refusals)
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
        refusals = Refusals(store, FakeClock(), journal_id=journal, files=store)
        note(refusals)
        writing = asyncio.create_task(refusals.write())
        await asyncio.sleep(0)
        writing.cancel()
        with suppress(asyncio.CancelledError):
            await writing
        store.is_away = False
        await refusals.close()
        assert store.counts == {(journal, REFUSED): 1}

    asyncio.run(story())


def test_a_kill_while_postgres_is_away_loses_no_count(tmp_path: Path) -> None:
    """Counts of an outage were in memory alone. The next worker of the machine writes them."""

    async def story() -> None:
        store, files = FakeRefusals(is_away=True), RefusalFolder(tmp_path / "refusals")
        killed, next_one = uuid4(), uuid4()
        refusals = Refusals(store, FakeClock(), journal_id=killed, files=files)
        note(refusals)
        await refusals.write()
        note(refusals)
        await refusals.write()  # and then it is killed
        assert store.counts == {}
        later = Refusals(store, FakeClock(), journal_id=next_one, files=files, every_s=0.001)
        running = asyncio.create_task(later.run())
        store.is_away = False
        await soon(lambda: store.counts, "the counts that were left")
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running
        assert store.counts == {(killed, REFUSED): 2}
        await soon(lambda: not [*files.left()], "an empty folder")

    asyncio.run(story())


def test_a_team_has_at_most_a_thousand_kinds_an_hour() -> None:
    """A caller may name projects without end; the rest is counted under one rule by code."""

    async def story() -> None:
        store, journal = FakeRefusals(), uuid4()
        refusals = Refusals(store, FakeClock(), journal_id=journal, files=store)
        for n in range(3 * MOST_ROWS):
            note(refusals, project=f"p{n}")
        await refusals.write()
        assert len(store.counts) <= MOST_ROWS
        assert sum(store.counts.values()) == 3 * MOST_ROWS
        assert store.counts[journal, REFUSED.as_other] > MOST_ROWS

    asyncio.run(story())
