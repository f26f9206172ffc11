"""The side of the ledger: an event is metered, lies in this worker's journal, and is written to Postgres."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import partial
from socket import gethostname

from gateway.domain.ledger_health import LedgerHealth
from gateway.errors import BadUsage, DatabaseUnavailable
from gateway.services.ledger_health import ledger_health
from gateway.services.ledger_watch import LedgerWatch
from gateway.services.meter import Meter
from gateway.services.months import AHEAD
from gateway.services.purses import Purses
from gateway.services.writer import EventWriter, Progress, write_left
from gateway.serving.dispatch import Deployments
from gateway.serving.ground import Ground
from gateway.storage.event_journal import LeftJournals, OwnJournal, open_own
from gateway.storage.journal import NoRoom
from gateway.storage.journals_table import JournalTable
from gateway.storage.ledger_state import read_state


@dataclass(frozen=True, slots=True, kw_only=True)
class Ledger:
    """The journal and what stands before and behind it. `watch` looks at the ledger in Postgres."""

    own: OwnJournal
    journals: JournalTable
    meter: Meter
    writer: EventWriter
    watch: LedgerWatch

    def health(self) -> LedgerHealth:
        """How the ledger is, from memory."""
        return ledger_health(self.own, self.writer, self.meter)


def open_journal(ground: Ground) -> OwnJournal:
    """This worker's journal; a failed sync of it ends the process. Raises `BadUsage`.

    Where left journals fill the disk they are written first: after a crash there may be room for no other one.
    """
    settings, stores = ground.settings, ground.stores
    open_journal_there = partial(
        open_own, settings.journal_path, max_bytes=settings.journal_max_bytes, syncs=settings.journal_fsync,
        on_failed_sync=_end_process, on_synced=ground.metrics.journal_sync.observe,
    )  # fmt: skip
    try:
        return open_journal_there()
    except NoRoom as no_room:
        try:
            write_left(LeftJournals(settings.journal_path).adopt, stores.ledger, JournalTable(stores.database))
        except DatabaseUnavailable as away:
            raise BadUsage(f"{no_room.message} Or start Postgres, which takes it: {away.message}") from away
        return open_journal_there()


def build_ledger(ground: Ground, own: OwnJournal, *, purses: Purses, deployments: Deployments) -> Ledger:
    """Each settled event is also counted in the metrics and learnt from."""
    settings, metrics, database, clock = ground.settings, ground.metrics, ground.stores.database, ground.clock
    journals = JournalTable(database)

    on_settled = (metrics.count_event, deployments.outlook.note)
    meter = Meter(own, on_settled=on_settled, ejections=deployments.ejections)

    def on_written(progress: Progress) -> None:
        if progress.is_own:
            meter.note_written(progress.keys)
        metrics.note_written(progress.written)

    writer = EventWriter(
        own, LeftJournals(settings.journal_path).adopt, ground.stores.ledger, journals, clock,
        every_s=settings.write_every_s, on_written=on_written, on_failure=metrics.write_failures.inc,
        replica=gethostname(),
    )  # fmt: skip
    purses.written_until_s = lambda: writer.whole_until_s
    watch = LedgerWatch(
        lambda: read_state(database, partitions_until=clock.now().date() + AHEAD), on_state=metrics.note_state
    )
    return Ledger(own=own, journals=journals, meter=meter, writer=writer, watch=watch)


def _end_process(error: OSError) -> None:
    """After a failed sync nobody knows what is on the disk. What is in the journal is found by the next start."""
    os.write(2, f"The journal's disk failed ({error}): this process ends at once.\n".encode())
    os._exit(74)  # EX_IOERR
