"""Reads a caller's own spending this month and today, and its budgets, for `GET /v1/usage/me`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal

from sqlalchemy import BigInteger, ColumnElement, Subquery, cast, func, select

from gateway.domain.budgets.budgets import Account
from gateway.domain.budgets.grants import grant_command
from gateway.domain.money import usd_from_nusd
from gateway.reports.dimensions import Columns, Dimension
from gateway.reports.question import Question
from gateway.reports.report import Dataset
from gateway.reports.sources.aggregate import ATTEMPTS, SPENT, total_or_zero
from gateway.reports.sources.connection import ReadSnapshot, Row
from gateway.reports.sources.facts import Conditions, fact, facts, source_for
from gateway.reports.sources.notes import SURENESS, notes_on, read_freshness

_MEASURES = (ATTEMPTS, *SPENT)


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnSpend:
    """Attempts and money of one period. `cost_usd` is None if there are attempts but no known
    cost. `total_usd` adds the later adjustments.
    """

    attempts: int
    input_tokens: int | None
    output_tokens: int | None
    cost_usd: Decimal | None
    adjustments_usd: Decimal
    total_usd: Decimal | None
    held_usd: Decimal
    unknown_attempts: int


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnBudget:
    """One budget that a caller's requests are charged to, in its running period.

    `remaining_usd` is limit and grants minus spent and `leased_usd`, the amount that gateways hold
    for requests. `held_usd` is the part of it that requests in flight reserved. `grant` is an
    admin's command for more.
    """

    budget: str
    kind: str
    period: str
    limit_usd: Decimal
    granted_usd: Decimal
    spent_usd: Decimal
    held_usd: Decimal
    leased_usd: Decimal
    remaining_usd: Decimal
    resets_at: datetime | None
    grant: str


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnUsage:
    """The usage of a team and of one of its keys.

    `month` is by posted period, `today` by the moment received; UTC.
    """

    team: str
    key_id: str
    month: str
    today: date
    team_month: OwnSpend
    team_today: OwnSpend
    key_month: OwnSpend
    key_today: OwnSpend
    complete_until: datetime | None
    budgets: tuple[OwnBudget, ...]
    notes: tuple[str, ...]


def usage_me(
    snapshot: ReadSnapshot,
    *,
    team: str,
    key_id: str,
    now: datetime,
    dataset: Dataset,
    accounts: Sequence[Account] = (),
) -> OwnUsage:
    """Return a caller's own figures: its team's spending, its key's spending, and the budgets of
    both.
    """
    now = now.astimezone(UTC)
    today = now.replace(hour=0, minute=0, second=0, microsecond=0)
    month = today.date().replace(day=1)
    chosen = _spending(dataset, team=team, key_id=key_id, month=month, today=today)
    spent = {
        name: _spend_of_row(snapshot.row(select(*_FIGURES).select_from(facts_of)))
        for name, facts_of in chosen.items()
    }
    total = snapshot.row(select(*SURENESS).select_from(chosen["team_month"]))
    question = Question(dataset=dataset, month=month)
    fresh = read_freshness(snapshot, question)
    return OwnUsage(
        team=team,
        key_id=key_id,
        month=f"{month:%Y-%m}",
        today=today.date(),
        complete_until=fresh.complete_until,
        budgets=_budgets(snapshot, accounts, now),
        notes=notes_on(question, total, fresh),
        **spent,
    )


def _spending(
    dataset: Dataset, *, team: str, key_id: str, month: date, today: datetime
) -> dict[str, Subquery]:
    """Return the subqueries of the spending facts of the team and of its key, this month and
    today.
    """

    def in_month(row: Columns) -> list[ColumnElement[bool]]:
        return [row.team == team, row.posted_period == month]

    def since_midnight(row: Columns) -> list[ColumnElement[bool]]:
        return [row.team == team, row.occurred_at >= today]

    def of_key(conditions: Conditions) -> Conditions:
        return lambda row: [*conditions(row), row.key_id == key_id]

    teams, keys = (source_for(dataset, by=by, moments=(today,)) for by in ((), (Dimension.KEY,)))
    return {
        "team_month": facts(teams, in_month),
        "team_today": facts(teams, since_midnight),
        "key_month": facts(keys, of_key(in_month)),
        "key_today": facts(keys, of_key(since_midnight)),
    }


_FIGURES = (
    *(measure.value.label(measure.name) for measure in _MEASURES),
    cast(func.sum(fact("input_tokens")), BigInteger).label("input_tokens"),
    cast(func.sum(fact("output_tokens")), BigInteger).label("output_tokens"),
    total_or_zero("unknown_attempts").label("unknown_attempts"),
)


def _spend_of_row(row: Row) -> OwnSpend:
    """Return the spend that a row of sums states."""
    return OwnSpend(
        attempts=int(row["attempts"]),
        input_tokens=row["input_tokens"] if row["attempts"] else 0,
        output_tokens=row["output_tokens"] if row["attempts"] else 0,
        cost_usd=row["cost_usd"],
        adjustments_usd=row["adjustments_usd"],
        total_usd=row["total_usd"],
        held_usd=row["held_usd"],
        unknown_attempts=int(row["unknown_attempts"]),
    )


_BUDGETS = """
SELECT account, starts_at, limit_usd, granted_usd, spent_usd, held_usd, leased_usd, remaining_usd
FROM finance.budgets WHERE account = ANY(:accounts) AND (starts_at IS NULL OR starts_at =
  ANY(:starts))
"""


def _budgets(
    snapshot: ReadSnapshot, accounts: Sequence[Account], now: datetime
) -> tuple[OwnBudget, ...]:
    """Return the state of a caller's budgets in their running periods, also of unused ones."""
    if not accounts:
        return ()
    starts = {account.account_id: account.rule.period_at(now).starts_at for account in accounts}
    rows = snapshot.rows(_BUDGETS, accounts=list(starts), starts=list(starts.values()))
    found = {
        row["account"]: row for row in rows if row["starts_at"] in (None, starts[row["account"]])
    }
    return tuple(_budget(account, found.get(account.account_id), now) for account in accounts)


def _budget(account: Account, row: Row | None, now: datetime) -> OwnBudget:
    """Return a caller's budget as Postgres has it, or as the policy declares it if nothing was
    charged yet.
    """
    rule, none = account.rule, Decimal(0)
    declared = {
        "limit_usd": usd_from_nusd(rule.limit_nusd),
        "remaining_usd": usd_from_nusd(rule.limit_nusd),
    }
    unused = {
        "granted_usd": none,
        "spent_usd": none,
        "held_usd": none,
        "leased_usd": none,
    } | declared
    figures = (
        unused
        if row is None
        else {name: unused[name] if row[name] is None else row[name] for name in unused}
    )
    return OwnBudget(
        budget=account.account_id,
        kind=rule.kind.value,
        period=rule.period.value,
        resets_at=rule.period_at(now).ends_at,
        grant=grant_command(account.account_id, "AMOUNT_USD"),
        **figures,
    )
