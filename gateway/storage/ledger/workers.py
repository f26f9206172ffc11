"""Which policy version each live worker serves from: each says so in the row of its journal.

What they serve is known to them alone; whoever applied a version waits here to hear that all have
it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from sqlalchemy import text

from gateway.storage.ledger.journals_table import UNNAMED
from gateway.storage.postgres.database import Database

# Its own start may not be noted yet; whoever gave its journal up is not contradicted.
_NOTE = """
INSERT INTO tollgate.journals AS journal (id, replica, policy_version, policy_seen_at)
VALUES (:id, :unnamed, :version, now())
ON CONFLICT (id) DO UPDATE SET policy_version = excluded.policy_version, policy_seen_at =
  excluded.policy_seen_at
"""
# A worker says that it is there every quarter of a minute.
_SERVING = """
SELECT id, replica, policy_version, policy_seen_at FROM tollgate.journals
WHERE state = 'live' AND heartbeat > now() - interval '1 minute' ORDER BY replica, id
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingWorker:
    """A live worker. `policy_version` is None before it said which."""

    id: UUID
    replica: str
    policy_version: int | None
    policy_seen_at: datetime | None


def note_version(database: Database, journal_id: UUID, version: int) -> None:
    """Note that the worker which holds this journal serves from a version now.

    Raises `DatabaseUnavailable`.
    """
    with database.begin() as connection:
        connection.execute(text(_NOTE), {"id": journal_id, "unnamed": UNNAMED, "version": version})


def serving_workers(database: Database) -> Sequence[ServingWorker]:
    """Return the workers that were heard of within a minute. Raises `DatabaseUnavailable`."""
    with database.begin() as connection:
        return [ServingWorker(**row) for row in connection.execute(text(_SERVING)).mappings()]
