"""Raises budget alerts in Postgres, each threshold once per period by any worker; delivers none
(`storage/alerts/deliveries.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import Connection, Row, text

from gateway.domain.budgets.alerts import LOOK_BACK, BudgetAlert, crossed
from gateway.domain.budgets.budgets import BudgetKind, BudgetPeriod, BudgetScope
from gateway.domain.pricing.pricing import MOST_NUSD
from gateway.storage.budgets.budgets import rule_from_row
from gateway.storage.postgres.database import Database

MOST_AT_ONCE = 1000

# Select periods that run or ended a moment ago and reached a threshold of their limit that was not
# raised. The domain computes the share that remains after the grants. The rule is that of
# `budget_rule_in_force`, if it is still declared.
_SPENDINGS = """
SELECT period.account_id, period.starts_at, period.spent_nusd + carried.spent_nusd AS spent_nusd,
       rule.*, granted.nusd + carried.granted_nusd AS granted_nusd, whose.owner AS account_owner
FROM tollgate.budget_periods AS period
LEFT JOIN tollgate.budgets AS own ON own.rule_id = period.account_id AND own.is_current
JOIN tollgate.budgets AS rule ON rule.rule_id = coalesce(own.rule_id, period.rule_id)
    AND rule.is_current AND cardinality(rule.alert_at) > 0
CROSS JOIN LATERAL (
    SELECT CAST(coalesce(sum(amount_nusd), 0) AS bigint) FROM tollgate.budget_grants AS given
    WHERE given.account_id = period.account_id AND given.starts_at = period.starts_at
      AND (given.expires_at IS NULL OR given.expires_at > :now)
) AS granted (nusd)
-- Of the windows that overlap this one, if there are any.
CROSS JOIN LATERAL (
    SELECT CAST(coalesce(sum(of_them.spent_nusd), 0) AS numeric) AS spent_nusd,
           CAST(coalesce(sum(of_them.granted_nusd), 0) AS bigint) AS granted_nusd
    FROM (SELECT WHERE EXISTS (
        SELECT FROM tollgate.budget_periods AS other
        WHERE other.account_id = period.account_id AND other.starts_at <> period.starts_at
          AND (other.ends_at IS NULL OR other.ends_at > period.starts_at)
          AND other.starts_at < coalesce(period.ends_at, 'infinity'))) AS overlapped
    CROSS JOIN LATERAL tollgate.budget_carried(period.account_id, period.starts_at, period.ends_at)
      AS of_them
) AS carried
-- The owner is NULL if the rule now belongs to another one.
CROSS JOIN LATERAL tollgate.budget_owner(period.account_id, rule.rule_id, rule.owner) AS whose
  (owner)
WHERE whose.owner IS NOT NULL AND (period.ends_at IS NULL OR period.ends_at > :since) AND EXISTS (
    SELECT FROM unnest(rule.alert_at) AS declared (share)
    WHERE period.spent_nusd + carried.spent_nusd >= share * rule.limit_nusd AND NOT EXISTS (
        SELECT FROM tollgate.budget_alerts AS raised WHERE raised.account_id = period.account_id
            AND raised.starts_at = period.starts_at AND raised.threshold = share))
"""
_RAISE = """
INSERT INTO tollgate.budget_alerts (account_id, starts_at, threshold, ends_at, rule_id, scope,
  team, owner, kind,
                                    period, time_zone, limit_nusd, granted_nusd, spent_nusd,
                                      raised_at)
VALUES (:account_id, :starts_at, :threshold, :ends_at, :rule_id, :scope, :team, :owner, :kind,
        :period, :time_zone, :limit_nusd, :granted_nusd, :spent_nusd, :now)
ON CONFLICT (account_id, starts_at, threshold) DO NOTHING
"""
_UNANNOUNCED = """
SELECT * FROM tollgate.budget_alerts WHERE announced_at IS NULL
ORDER BY raised_at, account_id, starts_at, threshold LIMIT :most
"""
_ANNOUNCED = """
UPDATE tollgate.budget_alerts SET announced_at = :now WHERE alert_id = ANY(:alert_ids) AND
  announced_at IS NULL
"""


class BudgetAlertStore:
    """A store that raises budget alerts.

    Safe with several workers at once: each method is one transaction.
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    def raise_crossed(self, *, now: datetime) -> None:
        """Store an alert for each threshold that a budget's spending has reached and that has none
        in its period; deliver none.

        Raises `DatabaseUnavailable`.
        """
        with self._database.begin() as connection:
            reached = _reached(connection, now)
            if reached:
                connection.execute(text(_RAISE), reached)

    def unannounced(self) -> tuple[BudgetAlert, ...]:
        """Return the stored alerts that no worker has written to its log yet, oldest first. Raises
        `DatabaseUnavailable`.
        """
        with self._database.begin() as connection:
            rows = connection.execute(text(_UNANNOUNCED), {"most": MOST_AT_ONCE})
            return tuple(budget_alert_from_row(row) for row in rows)

    def note_announced(self, alert_ids: Sequence[UUID], *, now: datetime) -> None:
        """Record that a worker wrote these alerts to its log; their delivery is separate. Raises
        `DatabaseUnavailable`.
        """
        with self._database.begin() as connection:
            connection.execute(text(_ANNOUNCED), {"alert_ids": list(alert_ids), "now": now})


def _reached(connection: Connection, now: datetime) -> list[dict[str, Any]]:
    """Return an alert's row for each threshold that a budget has reached, in key order: concurrent
    inserts do not deadlock.
    """
    found = []
    for row in connection.execute(text(_SPENDINGS), {"now": now, "since": now - LOOK_BACK}):
        rule = rule_from_row(row)
        if rule.period_at(row.starts_at).starts_at != row.starts_at:
            continue  # its beginning moved since: the window that took it over raises the alert
        # A period's spent figure is unbounded, an alert's is not.
        spent_nusd = min(int(row.spent_nusd), MOST_NUSD)
        for threshold in crossed(
            rule,
            starts_at=row.starts_at,
            spent_nusd=spent_nusd,
            granted_nusd=row.granted_nusd,
            now=now,
        ):
            found.append(
                {
                    "account_id": row.account_id,
                    "starts_at": row.starts_at,
                    "threshold": threshold,
                    "ends_at": rule.period_at(row.starts_at).ends_at,
                    "rule_id": rule.rule_id,
                    "scope": rule.scope.value,
                    "team": rule.team,
                    "owner": row.account_owner,
                    "kind": rule.kind.value,
                    "period": rule.period.value,
                    "time_zone": rule.time_zone,
                    "limit_nusd": rule.limit_nusd,
                    "granted_nusd": row.granted_nusd,
                    "spent_nusd": spent_nusd,
                    "now": now,
                }
            )
    return sorted(
        found, key=lambda values: (values["account_id"], values["starts_at"], values["threshold"])
    )


def budget_alert_from_row(row: Row[*tuple[object, ...]]) -> BudgetAlert:
    """Return the budget alert of a row."""
    return BudgetAlert(
        alert_id=row.alert_id,
        account_id=row.account_id,
        scope=BudgetScope(row.scope),
        team=row.team,
        owner=row.owner,
        kind=BudgetKind(row.kind),
        period=BudgetPeriod(row.period),
        time_zone=row.time_zone,
        starts_at=row.starts_at,
        ends_at=row.ends_at,
        threshold=row.threshold,
        limit_nusd=row.limit_nusd,
        granted_nusd=row.granted_nusd,
        spent_nusd=row.spent_nusd,
        raised_at=row.raised_at,
    )
