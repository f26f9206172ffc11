"""The current leases of a budget by worker, for operators; `budgets` moves the money."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from sqlalchemy import text

from gateway.storage.postgres.database import Database

_LEASES = """
SELECT lease.journal_id, journal.replica, lease.outstanding_nusd, lease.held_nusd, lease.renewed_at
FROM tollgate.leases AS lease LEFT JOIN tollgate.journals AS journal ON journal.id =
  lease.journal_id
WHERE lease.account_id = :account_id AND lease.starts_at = :starts_at
ORDER BY lease.outstanding_nusd DESC, lease.journal_id
"""


@dataclass(frozen=True, slots=True)
class WorkerLease:
    """One worker's lease in a budget's period, with the time of the worker's last heartbeat in
    Postgres.
    """

    journal_id: UUID
    replica: str | None
    outstanding_nusd: int
    held_nusd: int
    renewed_at: datetime


def leases_of(database: Database, account_id: str, starts_at: datetime) -> tuple[WorkerLease, ...]:
    """Return the leases of one account's period, the largest first.

    Raises `DatabaseUnavailable`.
    """
    with database.begin() as connection:
        rows = connection.execute(text(_LEASES), {"account_id": account_id, "starts_at": starts_at})
        return tuple(WorkerLease(*row) for row in rows)
