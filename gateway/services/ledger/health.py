"""One worker's journal and writer as they stand, for readiness and metrics."""

from __future__ import annotations

from typing import Protocol

from gateway.domain.ledger.health import LedgerHealth
from gateway.services.ledger.writer import EventWriter
from gateway.services.request.meter import Meter


class JournalFigures(Protocol):
    """How a journal stands; `storage.journal.JournalStats` has more."""

    @property
    def used_bytes(self) -> int:
        """Taken."""

    @property
    def max_bytes(self) -> int:
        """At most."""

    @property
    def room_bytes(self) -> int:
        """What it may still take, and its disk still has."""

    @property
    def oldest_intent_age_s(self) -> float | None:
        """Of the attempt that runs longest."""


class JournalStatus(Protocol):
    """This worker's journal; `storage.ledger.event_journal.JournalStatus` is one."""

    @property
    def is_full(self) -> bool:
        """Nothing more is admitted."""

    @property
    def is_gone(self) -> bool:
        """Its folder was removed or moved away."""

    def stats(self) -> JournalFigures:
        """How it stands."""


def ledger_health(own: JournalStatus, writer: EventWriter, meter: Meter) -> LedgerHealth:
    """Return the figures of this moment. Does not block."""
    journal = own.stats()
    return LedgerHealth(
        journal_used_bytes=journal.used_bytes,
        journal_max_bytes=journal.max_bytes,
        oldest_unsettled_s=journal.oldest_intent_age_s,
        writer_lag_s=writer.lag_s if meter.waiting_events else None,
        waiting_events=meter.waiting_events,
        is_full=own.is_full,
        is_gone=own.is_gone,
        journal_room_bytes=journal.room_bytes,
        failing_since_s=writer.failing_s,
    )
