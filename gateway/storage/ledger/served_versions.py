"""Records and lists the policy version that each live worker serves, in its journal's row in
Postgres.

Only the workers know the version that they serve. After applying a policy, the operator's command
waits until all workers have it.
"""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from sqlalchemy import text

from gateway.domain.ledger.journals import ServingWorker
from gateway.storage.postgres.database import Database

UNNAMED = "unknown"  # a journal that wrote before its start could be recorded

# The journal may not be registered yet. A journal that was declared lost stays lost.
_NOTE = """
INSERT INTO tollgate.journals AS journal (id, replica, policy_version, policy_seen_at)
VALUES (:id, :unnamed, :version, now())
ON CONFLICT (id) DO UPDATE SET policy_version = excluded.policy_version, policy_seen_at =
  excluded.policy_seen_at
"""
# A live worker sends a heartbeat every 15 seconds.
_SERVING = """
SELECT id, replica, policy_version, policy_seen_at FROM tollgate.journals
WHERE state = 'live' AND heartbeat > now() - interval '1 minute' ORDER BY replica, id
"""


def note_version(database: Database, journal_id: UUID, version: int) -> None:
    """Record that the worker with this journal serves a policy version now.

    Raises `DatabaseUnavailable`.
    """
    with database.begin() as connection:
        connection.execute(text(_NOTE), {"id": journal_id, "unnamed": UNNAMED, "version": version})


def serving_workers(database: Database) -> Sequence[ServingWorker]:
    """Return the workers with a heartbeat within a minute, and the policy version that each serves.
    Raises `DatabaseUnavailable`.
    """
    with database.begin() as connection:
        return [ServingWorker(**row) for row in connection.execute(text(_SERVING)).mappings()]
