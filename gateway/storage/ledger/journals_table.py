"""Records each journal's replica, heartbeat and state in Postgres, and ends the leases and claims
of drained or lost ones.

A journal's leases end with it: if all its events are written, the leases return to their budgets;
if it is lost, they are booked as spent. The claims of its requests' idempotency keys end too. The
journals themselves are files (`journal`). Only a journal's lock shows whether a worker holds it,
never this table.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any
from uuid import UUID

import psycopg
from sqlalchemy import Connection, text

from gateway.domain.ledger.journals import ServingWorker, StoredJournal
from gateway.errors import BadUsage, NothingFound
from gateway.storage.budgets.idempotency import close_orphans
from gateway.storage.ledger.served_versions import UNNAMED, serving_workers
from gateway.storage.postgres.database import Database, within

LAGGING_LIMIT_S = 3.0  # a caller waits for it

_BEAT = """
INSERT INTO tollgate.journals AS journal (id, replica, written) VALUES (%(id)s, %(unnamed)s,
  %(inserted)s)
ON CONFLICT (id) DO UPDATE SET heartbeat = now(), written = journal.written + excluded.written,
    state = CASE journal.state WHEN 'lost' THEN 'lost' ELSE 'live' END
"""
_REGISTER = """
INSERT INTO tollgate.journals (id, replica) VALUES (:id, :replica)
ON CONFLICT (id) DO UPDATE SET heartbeat = now(), replica = excluded.replica, state = 'live'
"""
_DRAINED = """
INSERT INTO tollgate.journals (id, replica, state) VALUES (:id, :unnamed, 'drained')
ON CONFLICT (id) DO UPDATE SET heartbeat = now(), state = 'drained'
"""
_LOST = """
UPDATE tollgate.journals SET state = 'lost', note = :note, times_lost = times_lost + 1
WHERE id = :id AND state = 'live' AND heartbeat <= coalesce(now() - CAST(:silent AS interval),
  heartbeat) RETURNING id
"""
_SILENT = """
SELECT id FROM tollgate.journals WHERE state = 'live' AND heartbeat <= now() - CAST(:silent AS
  interval) ORDER BY id
"""
# The month that a loss is posted to. Queried before anything else is locked.
_POSTED = (
    "SELECT posted FROM tollgate.posting_months(ARRAY[date_trunc('month', now() AT TIME "
    "ZONE 'UTC')::date])"
)

# A request takes leases from all its budgets at once. So a team's loss is its largest lease, and a
# cost centre's loss is the part above those of its teams. The leases without a known rule share one
# line without a name.
_BOOK_LOSSES = """
WITH ended AS MATERIALIZED (
    SELECT rule.team, coalesce(rule.owner, '') AS owner, lease.outstanding_nusd
    FROM tollgate.end_leases(:id, true) AS lease
    LEFT JOIN tollgate.budget_periods AS period USING (account_id, starts_at)
    LEFT JOIN tollgate.budgets AS rule ON rule.rule_id = period.rule_id
), teams AS (
    SELECT team, coalesce((SELECT cost_centre FROM tollgate.usage_events AS event WHERE event.team
      = ended.team
                           ORDER BY occurred_at DESC LIMIT 1), '') AS cost_centre,
           max(outstanding_nusd) AS amount_nusd
    FROM ended WHERE team IS NOT NULL GROUP BY team
), centres AS (
    SELECT '' AS team, owner AS cost_centre, max(outstanding_nusd) - coalesce((
        SELECT sum(amount_nusd) FROM teams WHERE teams.cost_centre = owner), 0) AS amount_nusd
    FROM ended WHERE team IS NULL GROUP BY owner
)
INSERT INTO tollgate.adjustments (adjustment_id, team, cost_centre, posted_period, occurred_at,
  amount_nusd, kind,
                                  reason, author)
SELECT gen_random_uuid(), team, cost_centre, :posted, now(), amount_nusd, 'lost_journal',
       format('journal %s: %s', CAST(:id AS text), CAST(:note AS text)), session_user
FROM (SELECT * FROM teams UNION ALL SELECT * FROM centres) AS lost WHERE amount_nusd > 0
"""
# The journal turned up after all: the cost of its events is known now, so the bookings in their
# place are reversed.
_UNBOOK_LOSSES = """
INSERT INTO tollgate.adjustments (adjustment_id, team, cost_centre, posted_period, occurred_at,
  amount_nusd, kind,
                                  reason, author)
SELECT gen_random_uuid(), team, cost_centre, :posted, now(), -sum(amount_nusd), 'lost_journal',
       format('journal %s: turned up and is written', CAST(:id AS text)), session_user
FROM tollgate.adjustments WHERE kind = 'lost_journal' AND starts_with(reason,
  format('journal %s: ', CAST(:id AS text)))
GROUP BY team, cost_centre HAVING sum(amount_nusd) <> 0
"""


# A live worker sends a heartbeat every 15 seconds.
_LAGGING = """
SELECT EXISTS (SELECT FROM tollgate.journals WHERE state = 'live'
               AND heartbeat BETWEEN now() - interval '1 day' AND now() - interval '1 minute')
"""


class JournalTable:
    """A table that records the states of journals."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def register(self, journal_id: UUID, *, replica: str) -> None:
        """Record that a worker holds this journal from now on. Raises `DatabaseUnavailable`."""
        self._execute(_REGISTER, {"id": journal_id, "replica": replica})

    def record_heartbeat(self, journal_id: UUID) -> None:
        """Record that the journal is alive though it has nothing to write.

        Raises `DatabaseUnavailable`.
        """
        with self._database.begin() as connection:
            connection.exec_driver_sql(_BEAT, _heartbeat_values(journal_id, inserted=0))

    def drained(self, journal_id: UUID) -> None:
        """Record that all of a journal is in the ledger and no worker holds it; its leases return.

        If the journal was booked as lost before, its losses are reversed. Raises
        `DatabaseUnavailable`.
        """
        values = {"id": journal_id, "unnamed": UNNAMED}
        with self._database.begin() as connection:
            posted = connection.execute(text(_POSTED)).scalar_one()
            connection.execute(text(_DRAINED), values)
            connection.execute(text("SELECT count(*) FROM tollgate.end_leases(:id, false)"), values)
            close_orphans(connection, journal_id)
            if connection.execute(text("SELECT tollgate.undo_losses(:id)"), values).scalar_one():
                connection.execute(text(_UNBOOK_LOSSES), values | {"posted": posted})

    def declare_lost(self, journal_id: UUID, *, reason: str) -> None:
        """Record that a journal will not come back, and book its leases as spent.

        Raises `NothingFound` if it is unknown, or `BadUsage` if its state is not live.
        """
        with self._database.begin(reason=reason) as connection:
            if _declare_lost(connection, journal_id, note=reason):
                return
            state = connection.execute(
                text("SELECT state FROM tollgate.journals WHERE id = :id"), {"id": journal_id}
            ).scalar_one_or_none()
        if state is None:
            raise NothingFound(f"No journal {journal_id}. tollgate journal list shows them.")
        raise BadUsage(
            f"Journal {journal_id} is {state}, so it cannot be declared lost. Nothing was changed."
        )

    def lose_silent(self, older_than: timedelta) -> int:
        """Declare the live journals lost that sent no heartbeat for `older_than`, and return their
        number.

        Each has its own transaction, so that budgets are not locked for all of them. Raises
        `DatabaseUnavailable`.
        """
        note = f"not heard of for {older_than / timedelta(hours=1):g} h"
        with self._database.begin() as connection:
            silent = connection.execute(text(_SILENT), {"silent": older_than}).scalars().all()
        lost = 0
        for journal_id in silent:
            with self._database.begin() as connection:
                lost += _declare_lost(connection, journal_id, note=note, silent=older_than)
        return lost

    def is_lagging(self) -> bool:
        """Return True if a journal may hold unwritten events: its last heartbeat is over a minute,
        under a day old.

        Raises `DatabaseUnavailable`.
        """
        with within(LAGGING_LIMIT_S), self._database.begin() as connection:
            return bool(connection.execute(text(_LAGGING)).scalar_one())

    def serving(self) -> Sequence[ServingWorker]:
        """Return the workers with a heartbeat within a minute, and the policy version that each
        serves.
        """
        return serving_workers(self._database)

    def all(self) -> Sequence[StoredJournal]:
        """Return every journal, the latest heartbeat first."""
        with self._database.begin() as connection:
            rows = connection.execute(
                text(
                    "SELECT id, replica, started_at, heartbeat, written, state, note FROM "
                    "tollgate.journals ORDER BY heartbeat DESC, id"
                )
            ).mappings()
            return [StoredJournal(**row) for row in rows]

    def _execute(self, statement: str, values: dict[str, Any]) -> None:
        """Run one statement in a transaction of its own."""
        with self._database.begin() as connection:
            connection.execute(text(statement), values)


def record_heartbeat(
    connection: psycopg.Connection[Any], journal_id: UUID, *, inserted: int
) -> None:
    """Record, inside the ledger's transaction, a journal's heartbeat and the number of its new
    events.
    """
    connection.execute(_BEAT.encode(), _heartbeat_values(journal_id, inserted=inserted))


def _heartbeat_values(journal_id: UUID, *, inserted: int) -> dict[str, object]:
    """Return the SQL parameters of a journal's heartbeat and the number of its new events."""
    return {"id": journal_id, "unnamed": UNNAMED, "inserted": inserted}


def _declare_lost(
    connection: Connection, journal_id: UUID, *, note: str, silent: timedelta | None = None
) -> bool:
    """Declare a live journal lost, and book its leases as spent; return False if it is not live, or
    not silent for `silent`.
    """
    posted = connection.execute(text(_POSTED)).scalar_one()
    values = {"id": journal_id, "note": note, "silent": silent, "posted": posted}
    if connection.execute(text(_LOST), values).first() is None:
        return False
    connection.execute(text(_BOOK_LOSSES), values)
    close_orphans(connection, journal_id, is_lost=True)
    return True
