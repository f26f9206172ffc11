"""The state of one worker's journal and writer, for readiness and metrics."""

from __future__ import annotations

from typing import Protocol

from gateway.domain.ledger.health import LedgerHealth
from gateway.services.ledger.writer import EventWriter
from gateway.services.request.meter import Meter


class JournalFigures(Protocol):
    """A journal's figures; `storage.journal.JournalStats` has more."""

    @property
    def used_bytes(self) -> int:
        """Used bytes."""

    @property
    def max_bytes(self) -> int:
        """Maximum size."""

    @property
    def room_bytes(self) -> int:
        """Bytes that the journal may still take and its disk still has."""

    @property
    def oldest_intent_age_s(self) -> float | None:
        """Age of the longest-running attempt."""


class JournalStatus(Protocol):
    """This worker's journal; `storage.ledger.event_journal.JournalStatus` implements it."""

    @property
    def is_full(self) -> bool:
        """Return True if the journal admits no more requests."""

    @property
    def is_gone(self) -> bool:
        """Return True if its folder was removed or moved."""

    def stats(self) -> JournalFigures:
        """Return the current figures."""


def ledger_health(own: JournalStatus, writer: EventWriter, meter: Meter) -> LedgerHealth:
    """Return the current figures without blocking."""
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
