"""From the journal to Postgres: nothing is lost while it is away, nothing is written twice, memory
stays flat.
"""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Sequence
from uuid import UUID

import pytest

from gateway.domain.ledger.records import Written
from gateway.domain.ledger.usage_event import Key
from gateway.errors import DatabaseUnavailable
from gateway.services.ledger.writer import BATCH_EVENTS, CommittedBatch, EventWriter, write_left
from gateway.services.supervisor import Supervisor
from tests.fakes import FakeClock, FakeLedger, FakeNotes, FakeSettled
from tests.waiting import soon


def settled(count: int, *, first: int = 0) -> FakeSettled:
    """A journal with so many events."""
    keys: list[Key] = [(UUID(int=first + n), 1) for n in range(count)]
    return FakeSettled(
        [(key, f"{key[0]}".encode()) for key in keys], journal_id=UUID(int=first + 1)
    )


class Stage:
    """A writer over fakes."""

    def __init__(
        self, own: FakeSettled, *left: FakeSettled, ledger: FakeLedger | None = None
    ) -> None:
        self.own, self.left, self.ledger, self.clock = (
            own,
            left,
            ledger or FakeLedger(),
            FakeClock(),
        )
        self.notes = FakeNotes()
        self.progress: list[CommittedBatch] = []
        self.failures = 0
        self.unadopted = list(left)
        self.writer = EventWriter(
            own,
            self.adopt,
            self.ledger,
            self.notes,
            self.clock,
            every_s=0.001,
            on_written=self.progress.append,
            on_failure=self._failed,
        )

    def adopt(self) -> list[FakeSettled]:
        found, self.unadopted = self.unadopted, []
        return found

    def _failed(self) -> None:
        self.failures += 1


async def test_a_settled_event_is_written_and_released() -> None:
    """The journal keeps an event until it is committed, and no longer."""
    on = Stage(settled(3))
    assert await on.writer.write_all()
    assert (len(on.ledger.rows), on.own.position, on.failures) == (3, 3, 0)
    assert [(len(made.keys), made.written) for made in on.progress] == [(3, Written(inserted=3))]


async def test_nothing_is_let_go_while_the_database_is_away() -> None:
    """It is read again when Postgres is back: the journal is the memory."""
    on = Stage(settled(3), ledger=FakeLedger(is_away=True))
    assert not await on.writer.write_all()
    on.clock.advance(7)
    assert (on.own.position, on.failures, on.writer.lag_s, on.writer.failing_s) == (0, 1, 7, 7)
    on.ledger.is_away = False
    assert await on.writer.write_all()
    assert (on.own.position, len(on.ledger.rows), on.writer.lag_s, on.writer.failing_s) == (
        3,
        3,
        0,
        None,
    )


async def test_nothing_is_read_for_a_database_that_is_still_away() -> None:
    """A try costs a connection, and not the reading of megabytes that Postgres will not take."""
    on = Stage(settled(3), ledger=FakeLedger(is_away=True))
    assert not await on.writer.write_all()
    on.notes.is_away = True
    reads = on.own.reads
    assert not await on.writer.write_all()
    assert (on.own.reads, on.failures) == (reads, 2)
    on.notes.is_away = on.ledger.is_away = False
    assert await on.writer.write_all()
    assert len(on.ledger.rows) == 3


async def test_a_batch_that_was_not_taken_is_let_go_at_once() -> None:
    """A batch is megabytes: one for each try would pile up until the collector came by."""
    batches: list[weakref.ref[Sequence[bytes]]] = []

    class Documents(list[bytes]):
        """A list that can be watched."""

    class Away(FakeLedger):
        """Postgres is away."""

        def write_documents(
            self, documents: Sequence[bytes], *, journal_id: UUID | None
        ) -> Written:
            watched = Documents(documents)
            batches.append(weakref.ref(watched))
            raise DatabaseUnavailable("away")

    on = Stage(settled(3), ledger=Away())
    gc.collect()
    gc.disable()
    try:
        assert not await on.writer.write_all()
        # The thread may still be on its way back from it; the collector is not asked.
        await soon(lambda: [batch() for batch in batches] == [None], "the batch let go")
    finally:
        gc.enable()


async def test_a_commit_with_a_lost_answer_is_written_again() -> None:
    """Twice is harmless, never is not: the ledger takes each event once."""
    on = Stage(settled(3), ledger=FakeLedger(loses_next_reply=True))
    assert not await on.writer.write_all()
    assert await on.writer.write_all()
    assert (len(on.ledger.rows), on.ledger.batches) == (3, [3, 3])


async def test_a_backlog_goes_in_bounded_batches() -> None:
    """An hour's backlog must not become one transaction, nor one list in memory."""
    on = Stage(settled(BATCH_EVENTS * 2 + 1))
    await on.writer.write_all()
    assert on.ledger.batches == [BATCH_EVENTS, BATCH_EVENTS, 1]


async def test_journals_of_the_gone_are_written_first_and_then_finished() -> None:
    """They are older; once they are in Postgres nothing of them is left here."""
    left = settled(2, first=100)
    on = Stage(settled(1), left)
    await on.writer.write_all()
    await on.writer.write_all()
    assert list(on.ledger.rows.values()) == [left.journal_id, left.journal_id, on.own.journal_id]
    assert left.is_finished
    assert (on.notes.registered, on.notes.gone) == ([on.own.journal_id], [left.journal_id]), "once"
    assert not on.own.is_finished
    # Events settled by others were never waiting here.
    assert [made.is_own for made in on.progress] == [False, True]


async def test_a_journal_that_could_not_be_written_is_not_finished() -> None:
    """Finishing deletes it."""
    left = settled(2, first=100)
    on = Stage(settled(1), left, ledger=FakeLedger(is_away=True))
    await on.writer.write_all()
    assert not left.is_finished
    on.ledger.is_away = False
    await on.writer.write_all()
    assert (left.is_finished, on.ledger.batches) == (True, [2, 1])


async def test_the_loop_continues_after_an_unexpected_error() -> None:
    """An unexpected error in one round is logged and counted; the next round writes the events."""

    class Clumsy(FakeLedger):
        has_failed = False

        def write_documents(
            self, documents: Sequence[bytes], *, journal_id: UUID | None
        ) -> Written:
            if not self.has_failed:
                self.has_failed = True
                raise ZeroDivisionError
            return super().write_documents(documents, journal_id=journal_id)

    on = Stage(settled(2), ledger=Clumsy())
    supervisor = Supervisor(on.clock, on_failure=lambda loop: None)
    supervisor.start({"writer": on.writer.run})
    await soon(lambda: on.own.position == 2, "the second round")
    on.writer.stop()
    await supervisor.cancel(but=["writer"])
    await supervisor.ended("writer")
    assert on.failures == 1


async def test_stopping_writes_the_remaining_events() -> None:
    """Events settled during the last round are in Postgres before the process ends."""
    on = Stage(settled(0))
    running = asyncio.create_task(on.writer.run())
    await asyncio.sleep(0)
    on.own.documents.extend(settled(4).documents)
    on.writer.stop()
    await running
    assert len(on.ledger.rows) == 4


async def test_a_neighbour_that_died_is_looked_for_now_and_then() -> None:
    """Its leases return with its journal; no other gateway may start here for days."""
    on = Stage(settled(1))
    await on.writer.write_all()
    left = settled(2, first=10)
    on.unadopted = [left]
    await on.writer.write_all()
    assert not left.is_finished  # a look costs a lock of the folder, so not every time
    on.clock.advance(2)
    await on.writer.write_all()
    assert left.is_finished
    assert on.notes.gone == [left.journal_id]


async def test_a_clean_stop_says_that_nothing_is_left() -> None:
    """This worker's leases then return at once, and not after a timeout."""
    on = Stage(settled(1))
    on.writer.stop()
    await on.writer.run()
    assert on.notes.gone == [on.own.journal_id]


async def test_a_stop_without_postgres_leaves_the_journal_to_the_next_start() -> None:
    """Events that are not written are not gone."""
    on = Stage(settled(1), ledger=FakeLedger(is_away=True))
    on.writer.stop()
    await on.writer.run()
    assert on.notes.gone == []


async def test_a_stop_while_our_journal_cannot_be_read_leaves_it() -> None:
    """It may be intact: the next try, or the next start, reads it."""
    on = Stage(settled(1))
    on.own.problem = OSError("no open files")
    on.writer.stop()
    await on.writer.run()
    assert (on.notes.gone, on.own.position, on.failures) == ([], 0, 1)


async def test_a_stop_with_attempts_that_are_not_settled_is_no_leave() -> None:
    """They are booked by whoever adopts the journal, and until then it keeps its lease."""

    class Unsettled(FakeSettled):
        @property
        def is_drained(self) -> bool:
            return False

    on = Stage(Unsettled())
    on.writer.stop()
    await on.writer.run()
    assert (on.notes.gone, on.failures) == ([], 0)


async def test_a_left_journal_that_cannot_be_read_keeps_no_other_waiting() -> None:
    """It is left to the next look, and our own events are written."""
    broken, left = settled(2, first=100), settled(2, first=200)
    broken.problem = OSError("no open files")
    on = Stage(settled(1), broken, left)
    assert await on.writer.write_all()
    assert (broken.is_released, broken.is_finished, left.is_finished) == (True, False, True)
    assert (len(on.ledger.rows), on.notes.gone) == (3, [left.journal_id])
    write_left(lambda: [broken, left], on.ledger, on.notes)
    assert on.notes.gone == [left.journal_id, left.journal_id]
    broken.problem, on.unadopted = None, [broken]
    on.clock.advance(2)
    assert await on.writer.write_all()
    assert (broken.is_finished, len(on.ledger.rows)) == (True, 5)


@pytest.mark.parametrize("step", ["register", "drained", "adopt"])
async def test_a_step_that_hangs_ends_and_the_next_round_writes(step: str) -> None:
    """Each goes through the writer's one thread and ends by its own limit; only the batch did,
    once.
    """

    class Hung(Stage):
        hangs = True

        def adopt(self) -> list[FakeSettled]:
            self.limit("adopt")
            return super().adopt()

        def limit(self, name: str) -> None:
            """The reaction of a session to a query that is not answered in time."""
            if name == step and self.hangs:
                self.hangs = False
                raise DatabaseUnavailable(
                    "Postgres holds the connection and did not answer in time."
                )

    class HungNotes(FakeNotes):
        def register(self, journal_id: UUID, *, replica: str) -> None:
            on.limit("register")
            super().register(journal_id, replica=replica)

        def drained(self, journal_id: UUID) -> None:
            on.limit("drained")
            super().drained(journal_id)

    left = settled(2, first=100)
    on = Hung(settled(1), left)
    on.writer._journals = on.notes = HungNotes()
    assert not await on.writer.write_all()
    on.clock.advance(2)
    assert await on.writer.write_all()
    assert (left.is_finished, len(on.ledger.rows), on.notes.gone) == (True, 3, [left.journal_id])
