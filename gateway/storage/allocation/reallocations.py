"""Writes re-allocations and their approvals to Postgres, whose triggers check the login and book
the two adjustments.
"""

from __future__ import annotations

from datetime import date
from uuid import UUID

import psycopg
from sqlalchemy import Connection, text
from sqlalchemy.exc import IntegrityError

from gateway.domain.allocation.reallocation import ApprovedReallocation, NewReallocation
from gateway.domain.money import usd_from_nusd
from gateway.errors import NothingFound, OperatorError
from gateway.storage.postgres.database import Database

_ADD = """
INSERT INTO tollgate.reallocations (month, from_cost_centre, to_cost_centre, amount_nusd, reason)
VALUES (:month, :from_cost_centre, :to_cost_centre, :amount_nusd, :reason)
RETURNING reallocation_id
"""
_FIND = """
SELECT amount_nusd, author_login, author FROM tollgate.reallocations WHERE reallocation_id = :id
"""
_APPROVE = """
INSERT INTO tollgate.reallocation_approvals (reallocation_id, reason) VALUES (:id, :reason)
ON CONFLICT DO NOTHING RETURNING posted_period
"""
_POSTED = "SELECT posted_period FROM tollgate.reallocation_approvals WHERE reallocation_id = :id"


class ReallocationStore:
    """A store of re-allocations."""

    def __init__(self, database: Database) -> None:
        """Take the database; no connection is opened yet."""
        self._database = database

    def add(self, entry: NewReallocation) -> UUID:
        """Store a proposed re-allocation, which books nothing yet; return its id."""
        row = {
            "month": entry.month,
            "from_cost_centre": entry.from_cost_centre,
            "to_cost_centre": entry.to_cost_centre,
            "amount_nusd": entry.amount_nusd,
            "reason": entry.reason,
        }
        with self._database.begin(reason=entry.reason) as connection:
            return UUID(str(connection.execute(text(_ADD), row).scalar_one()))

    def approve(self, reallocation_id: UUID, *, reason: str) -> ApprovedReallocation:
        """Approve a re-allocation and book its two adjustments; a second time changes nothing.

        Raises `NothingFound`, or `OperatorError` if this login or person entered it.
        """
        of = {"id": reallocation_id, "reason": reason}
        with self._database.begin(reason=reason) as connection:
            entry = connection.execute(text(_FIND), of).one_or_none()
            if entry is None:
                raise NothingFound(
                    f"There is no re-allocation {reallocation_id}. See: tollgate reallocation list"
                )
            try:
                posted = _posted_period(connection, of)
            except IntegrityError as refused:
                raise _explained(
                    refused, author=entry.author, login=entry.author_login
                ) from refused
        return ApprovedReallocation(
            reallocation_id=reallocation_id,
            amount_usd=usd_from_nusd(entry.amount_nusd),
            posted_period=posted,
        )


def _posted_period(connection: Connection, of: dict[str, object]) -> date:
    """Approve a re-allocation unless it is approved already; return the month it is posted to."""
    found = connection.execute(text(_POSTED), of).scalar_one_or_none()
    if found is None:
        found = connection.execute(text(_APPROVE), of).scalar_one_or_none()
    if found is None:  # another approval was committed in between
        found = connection.execute(text(_POSTED), of).scalar_one()
    posted: date = found
    return posted


def _explained(refused: IntegrityError, *, author: str | None, login: str) -> Exception:
    """Return the error for a refused approval, with the next step; any other fault unchanged."""
    cause = refused.orig
    name = cause.diag.constraint_name if isinstance(cause, psycopg.Error) else None
    if name == "approver_is_another_login":
        return OperatorError(
            f"The database login {login} entered this re-allocation, so another one approves it. "
            'Nothing was booked. With one home: TOLLGATE_FINANCE_DATABASE_URL="$(tollgate db url '
            '--as finance)" tollgate reallocation approve …'
        )
    if name == "approver_is_another_person":
        return OperatorError(
            f"{author} entered this re-allocation, so another person approves it. Nothing was "
            "booked."
        )
    return refused
