"""A record that the ledger's tables could not take."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from uuid import UUID


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetter:
    """A rejected record, stored whole. `error` gives the reason without its content."""

    letter_id: UUID
    journal_id: UUID | None
    recorded_at: datetime
    error: str
    document: bytes
