"""Moves settled events from the journals of this worker and of ended processes to Postgres in
batches, and releases them only after the commit.

Events are read from the journal and not kept in memory. So memory stays flat during an outage of
Postgres, and a start after a crash is a normal start. If a commit's confirmation is lost, the batch
is written again; the ledger takes each event once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

import structlog

from gateway.domain.ledger.records import Written
from gateway.domain.ledger.usage_event import Key
from gateway.errors import DatabaseUnavailable
from gateway.services.database_exchange import FAILED, DatabaseExchange, wait_for
from gateway.services.ports import (
    Clock,
    EventLedger,
    JournalNotes,
    LeftEvents,
    OwnEvents,
    SettledBatch,
    SettledEvents,
)

log = structlog.get_logger()

BATCH_EVENTS = 1000
MAX_PAUSE_S = 5.0
NOTE_EVERY_S = 15.0
ADOPT_EVERY_S = 2.0


@dataclass(frozen=True, slots=True)
class CommittedBatch:
    """One committed batch; `is_own` is True if this worker settled its events."""

    keys: tuple[Key, ...]
    written: Written
    is_own: bool


class EventWriter:
    """Writes the journals' events: first those of ended processes, then this worker's own.

    `adopt` takes over the journals of ended processes. It is called repeatedly: a dead neighbour's
    leases return with its journal, and no other process may start for days.
    """

    def __init__(
        self,
        own: OwnEvents,
        adopt: Callable[[], Sequence[LeftEvents]],
        ledger: EventLedger,
        journals: JournalNotes,
        clock: Clock,
        *,
        every_s: float,
        on_written: Callable[[CommittedBatch], None],
        on_failure: Callable[[], None],
        replica: str = "",
    ) -> None:
        """Make the writer of this worker's journal `own`; `run` starts it."""
        self._own, self._adopt = own, adopt
        self._adopted: list[LeftEvents] = []
        self._adopted_at_s: float | None = None
        self._ledger, self._journals, self._clock = ledger, journals, clock
        self._noted_at_s: float | None = None
        self._replica = replica
        self._on_written, self._on_failure = on_written, on_failure
        self._whole_until_s = clock.monotonic()
        self.has_taken_leave = False  # True once Postgres knows that this journal is drained
        self._stopping = asyncio.Event()
        # One thread: in a pool, every thread would come to hold a batch's memory.
        self._postgres = DatabaseExchange("event-writer", clock, pauses_s=(every_s, MAX_PAUSE_S))

    @property
    def lag_s(self) -> float:
        """Return the age in seconds of the time up to which Postgres has every settled event."""
        return self._clock.monotonic() - self._whole_until_s

    @property
    def whole_until_s(self) -> float:
        """Return the clock time up to which Postgres has every settled and synced event."""
        return self._whole_until_s

    @property
    def failing_s(self) -> float | None:
        """Return the seconds since writes began to fail; None while they succeed."""
        return self._postgres.away_s

    async def run(self) -> None:
        """Write settled events to Postgres until stopped, and then once more. After a failure, wait
        before the next try.
        """
        while not self._stopping.is_set():
            await self.write_all()
            await wait_for(self._stopping, self._postgres.pause_s)
        if await self.write_all() and self._own.is_drained:
            # The journal stays registered then; the next start deregisters it.
            with suppress(DatabaseUnavailable):
                await self._postgres.ask(self._journals.drained, self._own.journal_id)
                self.has_taken_leave = True
        self._postgres.close()

    def stop(self) -> None:
        """Let `run` end after its current batch, because a thread cannot be interrupted."""
        self._stopping.set()

    async def write_all(self) -> bool:
        """Write every event settled by now to Postgres.

        Returns False if Postgres did not take it; nothing is lost then.
        """
        return await self._postgres.turn(
            self._write_journals(),
            on_failure=self._note_failure,
            failures=(DatabaseUnavailable, OSError),  # or our journal cannot be read at the moment
        )

    async def _write_journals(self) -> None:
        """Write all readable journals to Postgres once: those of ended processes, then this
        worker's own.
        """
        await self._adopt_left_journals()
        await self._note_alive()
        for journal in tuple(self._adopted):
            await self._write_left(journal)
        await self._write_journal(self._own)

    def _note_failure(self, problem: str) -> None:
        """Log a failed write with the time of the next try, and report it to the metrics."""
        if problem != FAILED:
            retry_s = round(self._postgres.pause_s, 1)
            log.warning("events_not_written", problem=problem, retry_s=retry_s)
        self._on_failure()

    async def _write_journal(self, journal: SettledEvents) -> None:
        """Write one journal's settled events to Postgres batch by batch, and release them."""
        started_s, end = self._clock.monotonic(), journal.end()
        while True:
            batch, written = await self._postgres.ask(self._ship_batch, journal, end)
            if written is None:
                break
            journal.acknowledge(batch)
            self._on_written(
                CommittedBatch(tuple(batch.keys), written, is_own=journal is self._own)
            )
        journal.acknowledge(batch)
        if journal is self._own:
            self._whole_until_s = started_s

    async def _adopt_left_journals(self) -> None:
        """Take over the journals that ended processes left on this volume."""
        now_s = self._clock.monotonic()
        if self._adopted_at_s is None or now_s - self._adopted_at_s >= ADOPT_EVERY_S:
            self._adopted_at_s = now_s
            self._adopted += await self._postgres.ask(self._adopt)

    async def _note_alive(self) -> None:
        """Register this worker's journal in Postgres, and renew the registration from time to time.

        After a failure this comes first, before any read: if the database is away, a retry should
        not read a batch for nothing.
        """
        now_s = self._clock.monotonic()
        if (
            self._noted_at_s is None
            or self._postgres.is_away
            or now_s - self._noted_at_s >= NOTE_EVERY_S
        ):
            await self._postgres.ask(
                partial(self._journals.register, self._own.journal_id, replica=self._replica)
            )
            self._noted_at_s = now_s

    async def _write_left(self, journal: LeftEvents) -> None:
        """Write an ended process's journal to Postgres and deregister it. If it cannot be read,
        leave it for the next turn.
        """
        try:
            await self._write_journal(journal)
            await self._postgres.ask(self._journals.drained, journal.journal_id)
            journal.finish()
        except OSError as problem:
            log.error("journal_not_read", journal=str(journal.journal_id), problem=str(problem))
            journal.release()
        self._adopted.remove(journal)

    def _ship_batch(
        self, journal: SettledEvents, end: object
    ) -> tuple[SettledBatch, Written | None]:
        """Read the journal's next batch up to `end` and commit it to Postgres. Runs in a thread."""
        batch = journal.read(end, max_events=BATCH_EVENTS)
        if not batch.documents:
            return batch, None
        return batch, self._ledger.write_documents(batch.documents, journal_id=journal.journal_id)


def write_left(
    adopt: Callable[[], Sequence[LeftEvents]], ledger: EventLedger, journals: JournalNotes
) -> None:
    """Write the journals of ended processes to Postgres at once, because a start needs their disk
    space.

    Raises `DatabaseUnavailable`.
    """
    for journal in adopt():
        try:
            while (batch := journal.read(journal.end(), max_events=BATCH_EVENTS)).documents:
                ledger.write_documents(batch.documents, journal_id=journal.journal_id)
                journal.acknowledge(batch)
            journals.drained(journal.journal_id)
            journal.finish()
        except OSError as problem:
            log.error("journal_not_read", journal=str(journal.journal_id), problem=str(problem))
            journal.release()
