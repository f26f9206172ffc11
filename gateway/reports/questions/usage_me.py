"""A caller's own spending this month and today, for `GET /v1/usage/me`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal

from gateway.domain.budgets.budgets import Account
from gateway.domain.money import usd_from_nusd
from gateway.reports.dimensions import Dimension
from gateway.reports.question import Question
from gateway.reports.report import Dataset
from gateway.reports.sources.aggregate import ATTEMPTS, SPENT, figures_of
from gateway.reports.sources.connection import ReadSnapshot, Row
from gateway.reports.sources.facts import facts, source_for
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
    groups = {
        "team_month": "posted_period = :month",
        "team_today": "occurred_at >= :today",
        "key_month": "posted_period = :month AND key_id = :key_id",
        "key_today": "occurred_at >= :today AND key_id = :key_id",
    }
    values = {"team": team, "key_id": key_id, "month": month, "today": today}
    of_team, of_key = (source_for(dataset, splits) for splits in ((), (Dimension.KEY,)))
    own = {
        group: facts(
            of_key if group.startswith("key") else of_team, f"team = :team AND {condition}"
        )
        for group, condition in groups.items()
    }
    spent = {
        group: _spent(snapshot.row(f"SELECT {_FIGURES} {chosen}", **values))
        for group, chosen in own.items()
    }
    total = snapshot.row(f"SELECT {SURENESS} {own['team_month']}", **values)
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


_FIGURES = ", ".join(
    [
        figures_of(_MEASURES),
        "CAST(sum(input_tokens) AS bigint) AS input_tokens",
        "CAST(sum(output_tokens) AS bigint) AS output_tokens",
        "coalesce(sum(unknown_attempts), 0) AS unknown_attempts",
    ]
)


def _spent(row: Row) -> OwnSpend:
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
    if not accounts:
        return ()
    starts = {account.account_id: account.rule.period_at(now).starts_at for account in accounts}
    rows = snapshot.rows(_BUDGETS, accounts=list(starts), starts=list(starts.values()))
    found = {
        row["account"]: row for row in rows if row["starts_at"] in (None, starts[row["account"]])
    }
    return tuple(_budget(account, found.get(account.account_id), now) for account in accounts)


def _budget(account: Account, row: Row | None, now: datetime) -> OwnBudget:
    """Return the budget as Postgres has it, or as the policy declares it if nothing was charged
    yet.
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
        grant=f"tollgate budget grant {account.account_id} AMOUNT_USD --reason …",
        **figures,
    )
