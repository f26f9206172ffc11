"""Declares a worker's journal as Postgres lists it and as this machine's disk lists it, and the
policy version that its worker serves.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from uuid import UUID


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredJournal:
    """A journal as Postgres knows it.

    `written` counts the events that came from it; `state` is live, drained or lost.
    """

    id: UUID
    replica: str
    started_at: datetime
    heartbeat: datetime
    written: int
    state: str
    note: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingWorker:
    """A live worker. `policy_version` is None until the worker reports it."""

    id: UUID
    replica: str
    policy_version: int | None
    policy_seen_at: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalJournal:
    """One journal on this machine, with the disk space of its records and whether a worker holds
    it.
    """

    journal_id: UUID
    used_bytes: int
    is_held: bool
