"""Books true-ups: adjustments that bring the ledger to a provider's bill, posted to the oldest
month that is not closed; computes no amount.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import date, timedelta
from uuid import uuid4

from sqlalchemy import Connection, text

from gateway.domain.reconciliation.imports import BookedTrueUps
from gateway.domain.reconciliation.metered import Owner
from gateway.domain.reconciliation.statement import Cause, RowKey
from gateway.domain.reconciliation.true_ups import KIND, TrueUp, TrueUpKey
from gateway.storage.postgres.database import Database
from gateway.storage.postgres.locks import TableLock

_BOOKED = """
SELECT bill.day, bill.account, bill.model, bill.token_kind, bill.cause, booked.team,
  booked.cost_centre, sum(booked.amount_nusd) AS amount_nusd
FROM tollgate.true_ups AS bill JOIN tollgate.adjustments AS booked USING (adjustment_id)
WHERE bill.provider = :provider AND bill.day >= :first AND bill.day < :next
GROUP BY 1, 2, 3, 4, 5, 6, 7
"""
_POSTED = "SELECT posted FROM tollgate.posting_months(ARRAY[CAST(:month AS date)])"
_ADJUST = """
INSERT INTO tollgate.adjustments (adjustment_id, team, cost_centre, posted_period, occurred_at,
  amount_nusd, kind, reason, author)
VALUES (:adjustment_id, :team, :cost_centre, :posted, CAST(:day AS timestamp) AT TIME ZONE 'UTC',
  :amount_nusd, :kind, :reason, session_user)
"""
_NOTE = """
INSERT INTO tollgate.true_ups (adjustment_id, provider, account, day, model, token_kind, cause,
  evidence)
VALUES (:adjustment_id, :provider, :account, :day, :model, :token_kind, :cause, :evidence)
"""


def book(
    database: Database,
    provider: str,
    month: date,
    *,
    make: Callable[[Mapping[TrueUpKey, int]], Sequence[TrueUp]],
    reason: str,
) -> BookedTrueUps:
    """Book the true-ups that `make` returns for the ones booked so far, in one transaction."""
    with database.begin(reason=reason, is_long=True) as connection:
        connection.execute(text(TableLock.ADJUSTMENTS.taken))
        found = make(_booked(connection, provider, month))
        posted: date = connection.execute(text(_POSTED), {"month": month}).scalar_one()
        rows = [_to_row(one, provider=provider, posted=posted, reason=reason) for one in found]
        if rows:
            connection.execute(text(_ADJUST), rows)
            connection.execute(text(_NOTE), rows)
    return BookedTrueUps(
        adjustments=len(found),
        amount_nusd=sum(one.amount_nusd for one in found),
        posted_period=posted,
    )


def _booked(connection: Connection, provider: str, month: date) -> dict[TrueUpKey, int]:
    """Return the amounts that are booked for a month's days."""
    following = (month + timedelta(days=32)).replace(day=1)
    wanted = {"provider": provider, "first": month, "next": following}
    return {
        TrueUpKey(
            RowKey(row.day, row.account, row.model, row.token_kind),
            Cause(row.cause),
            None if row.team is None else Owner(row.team, row.cost_centre),
        ): int(row.amount_nusd)
        for row in connection.execute(text(_BOOKED), wanted)
    }


def _to_row(one: TrueUp, *, provider: str, posted: date, reason: str) -> dict[str, object]:
    """Return the values of a true-up for both of its tables."""
    owner = one.at.owner
    return {
        "adjustment_id": uuid4(),
        "team": None if owner is None else owner.team,
        "cost_centre": None if owner is None else owner.cost_centre,
        "posted": posted,
        "amount_nusd": one.amount_nusd,
        "kind": KIND,
        "reason": reason,
        "provider": provider,
        "account": one.at.key.account,
        "day": one.at.key.day,
        "model": one.at.key.model,
        "token_kind": one.at.key.token_kind,
        "cause": one.at.cause.value,
        "evidence": one.evidence,
    }
