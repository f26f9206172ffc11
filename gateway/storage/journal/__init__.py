"""Keeps intents and settlements in a journal on local disk, durable before anything is sent, and
adopts dead workers' journals.

After a crash the next start adopts a journal.
"""

from gateway.storage.journal.adoption import (
    AdoptedJournal,
    Recovered,
    adopt_free,
    journals_on,
)
from gateway.storage.journal.journal import (
    SETTLEMENT_EXTRA_BYTES,
    Journal,
    JournalStats,
    NoJournalRoom,
    NoRoom,
    RecordTooLarge,
)
from gateway.storage.journal.reader import Batch, Damage, Position, Segments, SettlementReader
from gateway.storage.journal.sizes import capacity_requests

__all__ = [
    "SETTLEMENT_EXTRA_BYTES",
    "AdoptedJournal",
    "Batch",
    "Damage",
    "Journal",
    "JournalStats",
    "NoJournalRoom",
    "NoRoom",
    "Position",
    "RecordTooLarge",
    "Recovered",
    "Segments",
    "SettlementReader",
    "adopt_free",
    "capacity_requests",
    "journals_on",
]
