"""Reads the demo data's budgets: invented limits, and the spending of the generated events, as rows
of `finance.budgets`. Real budgets are not touched.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from decimal import Decimal

from sqlalchemy import ColumnElement, select

from gateway.domain.budgets.budgets import BudgetPeriod, BudgetScope, period_at
from gateway.domain.budgets.demo import DEMO_BUDGETS
from gateway.reports.dimensions import Columns, Dimension
from gateway.reports.report import Dataset
from gateway.reports.sources.connection import ReadSnapshot, Row
from gateway.reports.sources.facts import facts, source_for

ZONE = "UTC"


def demo_rows(
    snapshot: ReadSnapshot, spent: ColumnElement[Decimal], *, at: datetime
) -> Sequence[Row]:
    """Return a row for the budget of each demo team with events in the month that contains `at`:
    readers of some teams see those alone.

    `spent` sums the spending of facts.
    """
    span = period_at(BudgetPeriod.MONTH, ZONE, at)

    def in_month(row: Columns) -> list[ColumnElement[bool]]:
        return [row.occurred_at >= span.starts_at, row.occurred_at < span.ends_at]

    by = (Dimension.TEAM,)
    moments = [moment for moment in (span.starts_at, span.ends_at) if moment is not None]
    source = source_for(Dataset.DEMO, by=by, moments=moments)
    chosen = facts(source, in_month, by=by)
    team = chosen.c[Dimension.TEAM.label]
    spending = {
        row["team"]: row["spent_usd"]
        for row in snapshot.rows(
            select(team.label("team"), spent.label("spent_usd")).select_from(chosen).group_by(team)
        )
    }
    return [
        {
            "account": f"{name}/{BudgetPeriod.MONTH}",
            "rule": f"{name}/{BudgetPeriod.MONTH}",
            "scope": BudgetScope.TEAM,
            "team": name,
            "owner": name,
            "period": BudgetPeriod.MONTH,
            "kind": budget.kind,
            "time_zone": ZONE,
            "starts_at": span.starts_at,
            "ends_at": span.ends_at,
            "limit_usd": budget.limit_usd,
            "granted_usd": Decimal(0),
            "spent_usd": spending[name],
            "held_usd": Decimal(0),
            "leased_usd": Decimal(0),
            "taken_over_usd": Decimal(0),
            "remaining_usd": max(budget.limit_usd - spending[name], Decimal(0)),
            "is_current": True,
        }
        for name, budget in DEMO_BUDGETS.items()
        if name in spending
    ]
