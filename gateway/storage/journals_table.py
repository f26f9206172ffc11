"""What Postgres knows of the journals: whose they are, when they were last heard of, and what became of them.

The journals themselves are files (`journal`); who holds one is known from its lock alone, never from here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

import psycopg
from sqlalchemy import text

from gateway.errors import BadUsage, NothingFound
from gateway.storage.database import Database

UNNAMED = "unknown"  # a journal that wrote before its start could be noted

_BEAT = f"""
INSERT INTO tollgate.journals AS journal (id, replica, written) VALUES (%(id)s, '{UNNAMED}', %(inserted)s)
ON CONFLICT (id) DO UPDATE SET heartbeat = now(), written = journal.written + excluded.written,
    state = CASE journal.state WHEN 'lost' THEN 'lost' ELSE 'live' END
"""  # noqa: S608 - a constant
_REGISTER = """
INSERT INTO tollgate.journals (id, replica) VALUES (:id, :replica)
ON CONFLICT (id) DO UPDATE SET heartbeat = now(), replica = excluded.replica, state = 'live'
"""
_DRAINED = """
INSERT INTO tollgate.journals (id, replica, state) VALUES (:id, :unnamed, 'drained')
ON CONFLICT (id) DO UPDATE SET heartbeat = now(), state = 'drained'
"""
_LOST = """
UPDATE tollgate.journals SET state = 'lost', note = :note
WHERE id = :id AND state = 'live' RETURNING id
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredJournal:
    """A journal. `written` counts the events that came from it; `state` is live, drained or lost."""

    id: UUID
    replica: str
    started_at: datetime
    heartbeat: datetime
    written: int
    state: str
    note: str | None


# A live worker says that it is there every quarter of a minute.
_LAGGING = """
SELECT EXISTS (SELECT FROM tollgate.journals WHERE state = 'live'
               AND heartbeat BETWEEN now() - interval '1 day' AND now() - interval '1 minute')
"""


class JournalTable:
    """Notes the lives of journals."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def register(self, journal_id: UUID, *, replica: str) -> None:
        """Note that a worker holds this journal from now on. Raises `DatabaseUnavailable`."""
        self._execute(_REGISTER, {"id": journal_id, "replica": replica})

    def beat(self, journal_id: UUID) -> None:
        """Note that the journal is alive though it has nothing to write. Raises `DatabaseUnavailable`."""
        self._execute(_BEAT.replace("%(id)s", ":id").replace("%(inserted)s", "0"), {"id": journal_id})

    def drained(self, journal_id: UUID) -> None:
        """Note that all of the journal is in the ledger and nobody holds it any more. Raises `DatabaseUnavailable`."""
        self._execute(_DRAINED, {"id": journal_id, "unnamed": UNNAMED})

    def lose(self, journal_id: UUID, *, reason: str) -> None:
        """Note that a journal will not come back. Raises `NothingFound`, or `BadUsage` where it cannot be lost."""
        with self._database.begin() as connection:
            values = {"id": journal_id, "note": reason}
            if connection.execute(text(_LOST), values).first() is not None:
                return
            state = connection.execute(
                text("SELECT state FROM tollgate.journals WHERE id = :id"), {"id": journal_id}
            ).scalar_one_or_none()
        if state is None:
            raise NothingFound(f"No journal {journal_id}. tollgate journal list shows them.")
        raise BadUsage(f"Journal {journal_id} is {state}, so it cannot be declared lost. Nothing was changed.")

    def is_lagging(self) -> bool:
        """True while a journal may hold events that are not in the ledger: heard of within a day, not within a minute.

        Raises `DatabaseUnavailable`.
        """
        with self._database.begin() as connection:
            return bool(connection.execute(text(_LAGGING)).scalar_one())

    def all(self) -> Sequence[StoredJournal]:
        """Return every journal, those heard of last first."""
        with self._database.begin() as connection:
            rows = connection.execute(
                text(
                    "SELECT id, replica, started_at, heartbeat, written, state, note FROM tollgate.journals "
                    "ORDER BY heartbeat DESC, id"
                )
            ).mappings()
            return [StoredJournal(**row) for row in rows]

    def _execute(self, statement: str, values: dict[str, Any]) -> None:
        with self._database.begin() as connection:
            connection.execute(text(statement), values)


def beat(connection: psycopg.Connection[Any], journal_id: UUID, *, inserted: int) -> None:
    """Note inside the ledger's own transaction that a journal is alive and how many events came from it."""
    connection.execute(_BEAT.encode(), {"id": journal_id, "inserted": inserted})
