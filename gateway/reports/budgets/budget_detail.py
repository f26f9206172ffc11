"""Reads one budget in full, for CLI and dashboard: its standing, grants, alerts, largest spenders
and periods.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from uuid import UUID

from sqlalchemy import BigInteger, ColumnElement, cast, desc, func, select

from gateway.reports.budgets.budgets import (
    OWNERS,
    SPENT,
    BudgetStanding,
    running_budgets,
    standing_of,
)
from gateway.reports.dimensions import Columns, Dimension
from gateway.reports.report import Dataset
from gateway.reports.sources.connection import ReadSnapshot
from gateway.reports.sources.facts import events, fact, facts, source_for

MOST_SPENDERS = 5
MOST_PERIODS = 6
BY = (Dimension.ROUTE, Dimension.KEY)
# A longer period is read from sums by UTC day, because it may have many millions of events.
BRIEF = timedelta(days=8)

_ROWS = """
SELECT * FROM finance.budgets WHERE account = :budget AND starts_at IS NOT NULL
ORDER BY starts_at DESC LIMIT :most_periods
"""
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
    """A reached threshold, as a share of limit and grants, and whether a receiver accepted it."""

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
    rows = snapshot.rows(_ROWS, budget=budget, most_periods=MOST_PERIODS)
    periods = tuple(standing_of(row, now) for row in rows)
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
    """Return the keys and routes that spent most in a budget's period, largest first."""
    if one.scope is None or one.owner is None:
        return ()
    by = OWNERS[one.scope]
    own = dict(zip(by, (one.team, one.owner) if len(by) > 1 else (one.owner,), strict=True))

    def conditions(row: Columns) -> Iterator[ColumnElement[bool]]:
        yield from (dimension.of(row) == value for dimension, value in own.items())
        yield row.occurred_at >= one.starts_at
        if one.ends_at is not None:
            yield row.occurred_at < one.ends_at

    moments = [one.starts_at, *([] if one.ends_at is None else [one.ends_at])]
    source = (
        events(Dataset.REAL)
        if is_brief
        else source_for(Dataset.REAL, by=BY, filters=by, moments=moments)
    )
    chosen = facts(source, conditions, by=BY)
    route, key_id = (chosen.c[dimension.label] for dimension in BY)
    attempts = cast(func.sum(fact("attempts")), BigInteger)
    rows = snapshot.rows(
        select(
            route.label("route"),
            key_id.label("key_id"),
            attempts.label("attempts"),
            SPENT.label("spent_usd"),
        )
        .group_by(route, key_id)
        .order_by(desc("spent_usd"), route, key_id)
        .limit(MOST_SPENDERS)
    )
    return tuple(Spender(**row) for row in rows)
