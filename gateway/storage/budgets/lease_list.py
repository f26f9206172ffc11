"""Lists the workers' leases of one budget's period, for operators; `budgets` exchanges them."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import text

from gateway.domain.budgets.grants import WorkerLease
from gateway.storage.postgres.database import Database

_LEASES = """
SELECT lease.journal_id, journal.replica, lease.outstanding_nusd, lease.held_nusd, lease.renewed_at
FROM tollgate.leases AS lease LEFT JOIN tollgate.journals AS journal ON journal.id =
  lease.journal_id
WHERE lease.account_id = :account_id AND lease.starts_at = :starts_at
ORDER BY lease.outstanding_nusd DESC, lease.journal_id
"""


def leases_of(database: Database, account_id: str, starts_at: datetime) -> tuple[WorkerLease, ...]:
    """Return the leases of one account's period, the largest first.

    Raises `DatabaseUnavailable`.
    """
    with database.begin() as connection:
        rows = connection.execute(text(_LEASES), {"account_id": account_id, "starts_at": starts_at})
        return tuple(WorkerLease(*row) for row in rows)
