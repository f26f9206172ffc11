"""One budget in full: grants, alerts, spenders and periods."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from uuid import UUID

from gateway.reports.dimensions import Dimension
from gateway.reports.questions.budgets import (
    OWNERS,
    SPENT,
    BudgetStanding,
    running_budgets,
    standing_of,
)
from gateway.reports.report import Dataset
from gateway.reports.sources.connection import ReadSnapshot
from gateway.reports.sources.facts import events, facts, source_for

MOST_SPENDERS = 5
MOST_PERIODS = 6
BY = (Dimension.ROUTE, Dimension.KEY)
BRIEF = timedelta(
    days=8
)  # a longer period is read from sums by UTC day, because it may have many millions of events

_ROWS = f"""
SELECT * FROM finance.budgets WHERE account = :budget AND starts_at IS NOT NULL
ORDER BY starts_at DESC LIMIT {MOST_PERIODS}
"""  # noqa: S608 - a constant
_ALERTS = """
SELECT threshold, spent_usd, raised_at, delivered_at, given_up_at, last_error FROM
  finance.budget_alerts
WHERE account = :budget AND starts_at = :starts_at ORDER BY threshold
"""
_GRANTS = """
SELECT grant_id, amount_usd, author, reason, created_at, expires_at, is_expired FROM
  finance.budget_grants
WHERE account = :budget AND starts_at = :starts_at ORDER BY created_at, grant_id
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetGrant:
    """An amount granted on top of a limit.

    Without `expires_at` it lasts as long as the budget.
    """

    grant_id: UUID
    amount_usd: Decimal
    author: str
    reason: str
    created_at: datetime
    expires_at: datetime | None
    is_expired: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class RaisedAlert:
    """A reached threshold, as a share of limit and grants, and whether the webhook accepted it."""

    threshold: Decimal
    spent_usd: Decimal
    raised_at: datetime
    delivered_at: datetime | None
    given_up_at: datetime | None
    last_error: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Spender:
    """One key's spending on one route; unknown costs count at their hold.

    Holds of lost journals are left out.
    """

    route: str | None
    key_id: str | None
    attempts: int
    spent_usd: Decimal


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetDetail:
    """`standing` is the state of the running period, or of the last one.

    `spenders` are the few with the highest spending, by UTC days if `spenders_by_day`. `periods`
    are the latest, newest first.
    """

    standing: BudgetStanding
    grants: tuple[BudgetGrant, ...]
    alerts: tuple[RaisedAlert, ...]
    spenders: tuple[Spender, ...]
    spenders_by_day: bool
    periods: tuple[BudgetStanding, ...]


def budget_detail(snapshot: ReadSnapshot, budget: str, now: datetime) -> BudgetDetail | None:
    """Return one budget by its account, None if there is none."""
    periods = tuple(standing_of(row, now) for row in snapshot.rows(_ROWS, budget=budget))
    running = next((one for one in running_budgets(snapshot, now, only=budget)), None)
    standing = running or next(iter(periods), None)
    if standing is None:
        return None
    is_brief = standing.ends_at is not None and standing.ends_at - standing.starts_at <= BRIEF
    grants, alerts = (
        snapshot.rows(sql, budget=budget, starts_at=standing.starts_at)
        for sql in (_GRANTS, _ALERTS)
    )
    return BudgetDetail(
        standing=standing,
        grants=tuple(BudgetGrant(**row) for row in grants),
        alerts=tuple(RaisedAlert(**row) for row in alerts),
        spenders=_spenders(snapshot, standing, is_brief=is_brief),
        spenders_by_day=not is_brief,
        periods=periods,
    )


def _spenders(
    snapshot: ReadSnapshot, one: BudgetStanding, *, is_brief: bool
) -> tuple[Spender, ...]:
    if one.scope is None or one.owner is None:
        return ()
    by = OWNERS[one.scope]
    own = dict(zip(by, (one.team, one.owner) if len(by) > 1 else (one.owner,), strict=True))
    parts = [f"{dimension.sql} = :{dimension.value}" for dimension in own]
    parts += [
        "occurred_at >= :starts_at",
        "(CAST(:ends_at AS timestamptz) IS NULL OR occurred_at < :ends_at)",
    ]
    source = events(Dataset.REAL) if is_brief else source_for(Dataset.REAL, (*by, *BY))
    rows = snapshot.rows(
        "SELECT by_route AS route, by_key AS key_id, CAST(sum(attempts) AS bigint) AS attempts, "
        f"{SPENT} AS spent_usd {facts(source, ' AND '.join(parts), by=BY)} GROUP BY 1, 2 ORDER BY "
        f"4 DESC, 1, 2 LIMIT {MOST_SPENDERS}",
        starts_at=one.starts_at,
        ends_at=one.ends_at,
        **{dimension.value: value for dimension, value in own.items()},
    )
    return tuple(Spender(**row) for row in rows)
