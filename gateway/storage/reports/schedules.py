"""Stores the schedules of statements, and gives the gateways the closed months that are to be
sent, in Postgres; sends none.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

import psycopg
from sqlalchemy import text
from sqlalchemy.exc import IntegrityError

from gateway.domain.alerts.delivery import FARTHEST_TRY
from gateway.domain.reports.schedule import DueStatement, NewSchedule, SentStatement, receiver_of
from gateway.errors import BadUsage, NothingFound
from gateway.storage.postgres.database import Database

_ADD = """
INSERT INTO tollgate.report_schedules (name, cost_centre, every, receiver, sent_to)
VALUES (:name, :cost_centre, 'month', :receiver, :sent_to)
"""
_REMOVE = "DELETE FROM tollgate.report_schedules WHERE name = :name RETURNING schedule_id"
_NAMES = "SELECT name FROM tollgate.report_schedules ORDER BY name LIMIT 20"
# A month that was closed before is history: `report statement` has it.
_OPEN = """
INSERT INTO tollgate.statement_deliveries
    (schedule_id, month, version, name, sent_to, opened_at, next_try_at)
SELECT schedule.schedule_id, close.month, close.version, schedule.name, schedule.sent_to, :now, :now
FROM tollgate.report_schedules AS schedule
JOIN tollgate.month_closes AS close ON close.closed_at > schedule.created_at
WHERE NOT EXISTS (SELECT FROM tollgate.statement_deliveries AS begun
    WHERE begun.schedule_id = schedule.schedule_id AND begun.month = close.month
      AND begun.version = close.version)
ORDER BY close.month, close.version, schedule.name
ON CONFLICT (schedule_id, month, version) DO NOTHING
"""
# Older months first, so that a receiver gets them in their order; a schedule that was removed sends
# nothing more.
_TAKE = """
UPDATE tollgate.statement_deliveries AS taken SET next_try_at = :until
FROM tollgate.report_schedules AS schedule
WHERE schedule.schedule_id = taken.schedule_id AND taken.delivery_id = (
    SELECT waiting.delivery_id FROM tollgate.statement_deliveries AS waiting
    JOIN tollgate.report_schedules AS owner USING (schedule_id)
    WHERE waiting.next_try_at <= :now OR waiting.next_try_at > :wrong
    ORDER BY waiting.next_try_at, waiting.month, waiting.version, waiting.name
    LIMIT 1 FOR UPDATE OF waiting SKIP LOCKED)
RETURNING taken.delivery_id, taken.opened_at, taken.month, taken.version, taken.tries,
    schedule.name, schedule.cost_centre, schedule.receiver
"""
_RECORD = """
UPDATE tollgate.statement_deliveries
SET tries = :tries, last_error = coalesce(:error, last_error), next_try_at = :next_try_at,
    delivered_at = :delivered_at, given_up_at = :given_up_at
WHERE delivery_id = :delivery_id AND next_try_at IS NOT NULL
"""


class ScheduleStore:
    """A store of the schedules, for the people who keep them."""

    def __init__(self, database: Database) -> None:
        """Take the database; no connection is opened yet."""
        self._database = database

    def add(self, schedule: NewSchedule) -> None:
        """Store a schedule. Raises `BadUsage` if its name is taken."""
        values = {
            "name": schedule.name,
            "cost_centre": schedule.cost_centre,
            "receiver": schedule.receiver.stored,
            "sent_to": schedule.receiver.shown,
        }
        try:
            with self._database.begin() as connection:
                connection.execute(text(_ADD), values)
        except IntegrityError as refused:
            cause = refused.orig
            name = cause.diag.constraint_name if isinstance(cause, psycopg.Error) else None
            if name != "schedules_have_one_name":
                raise
            raise BadUsage(
                f"There is a schedule '{schedule.name}' already. Nothing was added. To replace it: "
                f"tollgate report schedule remove {schedule.name}"
            ) from None

    def remove(self, name: str) -> None:
        """Remove a schedule; statements that wait are not sent any more. Raises `NothingFound`."""
        with self._database.begin() as connection:
            if connection.execute(text(_REMOVE), {"name": name}).one_or_none() is not None:
                return
            names = ", ".join(connection.execute(text(_NAMES)).scalars())
        raise NothingFound(f"No schedule is called '{name}'. There is: {names or 'none yet'}.")


class StatementDeliveries:
    """A store of the deliveries of all schedules.

    Safe with several workers at once: each method is one transaction.
    """

    def __init__(self, database: Database) -> None:
        """Take the database; no connection is opened yet."""
        self._database = database

    def open(self, *, now: datetime) -> None:
        """Note each closed version of a month that a schedule has not begun to send. Raises
        `DatabaseUnavailable`.
        """
        with self._database.begin() as connection:
            connection.execute(text(_OPEN), {"now": now})

    def take(self, *, now: datetime, until: datetime) -> DueStatement | None:
        """Claim and return the next delivery, or None if none is due. No other worker gets it
        before `until`.

        Raises `DatabaseUnavailable`.
        """
        with self._database.begin() as connection:
            row = connection.execute(
                text(_TAKE), {"now": now, "until": until, "wrong": now + FARTHEST_TRY}
            ).one_or_none()
        if row is None:
            return None
        return DueStatement(
            delivery_id=row.delivery_id,
            opened_at=row.opened_at,
            schedule=row.name,
            cost_centre=row.cost_centre,
            receiver=receiver_of(row.receiver),
            month=row.month,
            version=row.version,
            tries=row.tries,
        )

    def record(self, sent: SentStatement) -> None:
        """Record the result of a try; a repetition changes nothing. Raises
        `DatabaseUnavailable`.
        """
        values: dict[str, Any] = {
            "delivery_id": sent.delivery_id,
            "tries": sent.tries,
            "error": sent.error,
            "delivered_at": sent.delivered_at,
            "next_try_at": sent.next_try_at,
            "given_up_at": sent.given_up_at,
        }
        with self._database.begin() as connection:
            connection.execute(text(_RECORD), values)
