"""Opens this worker's journal, and builds the meter, the writer to Postgres and the ledger's watch;
`process.py` runs their loops.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import partial
from socket import gethostname

from gateway.domain.calendar_months import last_required_month
from gateway.domain.ledger.health import LedgerHealth
from gateway.errors import BadUsage, DatabaseUnavailable
from gateway.services.budgets.leases import BudgetLeases
from gateway.services.ledger.watch import LedgerWatch
from gateway.services.ledger.writer import CommittedBatch, EventWriter, write_left
from gateway.services.request.meter import Meter
from gateway.serving.context import ProcessContext
from gateway.serving.dispatch import Deployments
from gateway.storage.journal import NoRoom
from gateway.storage.ledger.event_journal import LeftJournals, OwnJournal, open_own
from gateway.storage.ledger.journals_table import JournalTable
from gateway.storage.ledger.state import read_state


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerParts:
    """The journal with the parts before and behind it. `watch` reads the ledger's state in
    Postgres.
    """

    own: OwnJournal
    journals: JournalTable
    meter: Meter
    writer: EventWriter
    watch: LedgerWatch

    def health(self) -> LedgerHealth:
        """Return the ledger's health (journal size, lag and failures), from memory."""
        journal, writer, meter = self.own.stats(), self.writer, self.meter
        return LedgerHealth(
            journal_used_bytes=journal.used_bytes,
            journal_max_bytes=journal.max_bytes,
            oldest_unsettled_s=journal.oldest_intent_age_s,
            writer_lag_s=writer.lag_s if meter.waiting_events else None,
            waiting_events=meter.waiting_events,
            is_full=self.own.is_full,
            is_gone=self.own.is_gone,
            journal_room_bytes=journal.room_bytes,
            failing_since_s=writer.failing_s,
        )


def open_journal(context: ProcessContext) -> OwnJournal:
    """Open this worker's journal; a failed sync of it ends the process. Raises `BadUsage`.

    If left journals fill the disk, they are written first: after a crash there may be room for no
    new one.
    """
    settings, stores = context.settings, context.stores
    open_journal_there = partial(
        open_own,
        settings.journal_path,
        max_bytes=settings.journal_max_bytes,
        syncs=settings.journal_fsync,
        on_failed_sync=_end_process,
        on_synced=context.metrics.journal_sync.observe,
    )
    try:
        return open_journal_there()
    except NoRoom as no_room:
        try:
            write_left(
                LeftJournals(settings.journal_path).adopt,
                stores.ledger,
                JournalTable(stores.database),
            )
        except DatabaseUnavailable as away:
            raise BadUsage(
                f"{no_room.message} Or start Postgres, which takes it: {away.message}"
            ) from away
        return open_journal_there()


def build_ledger(
    context: ProcessContext,
    own: OwnJournal,
    *,
    budget_leases: BudgetLeases,
    deployments: Deployments,
) -> LedgerParts:
    """Build the ledger side of a process. Each settled event is also counted in the metrics and
    feeds the estimates.
    """
    settings, metrics, database, clock = (
        context.settings,
        context.metrics,
        context.stores.database,
        context.clock,
    )
    journals = JournalTable(database)

    on_settled = (metrics.count_event, deployments.estimates.note)
    meter = Meter(own, on_settled=on_settled, ejections=deployments.ejections)

    def on_written(progress: CommittedBatch) -> None:
        if progress.is_own:
            meter.note_written(progress.keys)
        metrics.note_written(progress.written)

    writer = EventWriter(
        own,
        LeftJournals(settings.journal_path).adopt,
        context.stores.ledger,
        journals,
        clock,
        every_s=settings.write_every_s,
        on_written=on_written,
        on_failure=metrics.write_failures.inc,
        replica=gethostname(),
    )
    budget_leases.written_until_s = lambda: writer.whole_until_s
    watch = LedgerWatch(
        lambda: read_state(database, partitions_until=last_required_month(clock.now().date())),
        on_state=metrics.note_state,
    )
    return LedgerParts(own=own, journals=journals, meter=meter, writer=writer, watch=watch)


def _end_process(error: OSError) -> None:
    """End the process: after a failed sync the state of the disk is unknown.

    The next start recovers the journal's records.
    """
    os.write(2, f"The journal's disk failed ({error}): this process ends at once.\n".encode())
    os._exit(74)  # EX_IOERR
