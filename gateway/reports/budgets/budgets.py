"""Answers the report `budgets`, and reads each budget's used, remaining and forecast amount in a
period; changes no budget.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, time
from decimal import Context, Decimal
from typing import Any

from sqlalchemy import Select, func, or_, select
from sqlalchemy.dialects.postgresql import distinct_on

from gateway.domain.budgets.budgets import BudgetPeriod, BudgetScope, PeriodSpan, period_at
from gateway.domain.budgets.forecast import forecast_nusd, rate_since
from gateway.domain.budgets.names import NamedBudget
from gateway.domain.money import nusd_from_usd, usd_from_nusd
from gateway.errors import BadUsage
from gateway.reports.budgets.demo_budgets import demo_rows
from gateway.reports.dimensions import Dimension, Split
from gateway.reports.question import Question
from gateway.reports.report import Cell, Column, ColumnKind, Dataset, Report
from gateway.reports.report_kind import ReportKind
from gateway.reports.sources.connection import ReadSnapshot, Row
from gateway.reports.sources.facts import Conditions, fact, facts, source_for
from gateway.reports.sources.notes import read_freshness
from gateway.storage.postgres.schema import finance_views

MOST_ROWS = 10_000  # of the past: an hourly budget has many
SHARES = Context(prec=6)  # significant digits: a positive share is never shown as 0
# The events that a budget counts, as report dimensions.
OWNERS: dict[str, tuple[Dimension, ...]] = {
    BudgetScope.TEAM: (Dimension.TEAM,),
    BudgetScope.PROJECT: (Dimension.TEAM, Dimension.PROJECT),
    BudgetScope.KEY: (Dimension.KEY,),
    BudgetScope.COST_CENTRE: (Dimension.COST_CENTRE,),
}
# unknown costs count at their hold
SPENT = func.sum(
    func.coalesce(fact("cost_usd"), 0)
    + func.coalesce(fact("held_usd"), 0)
    + func.coalesce(fact("adjustments_usd"), 0)
)
PRESENT_RATE = (
    "Forecast: the spending by the end of the period at the present rate, which is that of the "
    "last seven days, or of the period so far; none for a budget without an end, nor in the first "
    "hour of a period (or its twentieth)."
)
NO_BUDGET = (
    "No budget is declared: add budgets to a team in the policy, then run: tollgate "
    "policy apply FILE"
)

_BUDGETS = finance_views.budgets.c
_ALL = """
SELECT * FROM finance.budgets WHERE starts_at IS NOT NULL ORDER BY starts_at DESC, account
LIMIT :most_rows
"""
_NAMES = """
SELECT DISTINCT ON (account) account, scope, team, period, is_current FROM finance.budgets
ORDER BY account, is_current DESC
"""
_OF_MONTH = """
SELECT * FROM finance.budgets
WHERE starts_at AT TIME ZONE coalesce(time_zone, 'UTC') >= CAST(:month AS date)
  AND starts_at AT TIME ZONE coalesce(time_zone, 'UTC') < CAST(:month AS date) + interval '1 month'
ORDER BY account, starts_at DESC LIMIT :most_rows
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetStanding:
    """One budget in one period. Its rule's fields are None if the rule is no longer known.

    `leased_usd` is leased to gateways; `held_usd` is the part of it that requests in flight
    reserved. `taken_over_usd` is spent in and leased from windows of this budget that overlap this
    one, from before its beginning moved. `used_share` is spent and taken over, over limit and
    grants. `forecast_usd` extrapolates the rate of
    `recent_usd` since `rate_since`; None without a basis.
    """

    budget: str
    rule: str | None
    scope: str | None
    team: str | None
    owner: str | None
    period: str | None
    kind: str | None
    time_zone: str
    starts_at: datetime
    ends_at: datetime | None
    limit_usd: Decimal | None
    granted_usd: Decimal
    spent_usd: Decimal
    held_usd: Decimal
    leased_usd: Decimal
    taken_over_usd: Decimal
    remaining_usd: Decimal | None
    used_share: Decimal | None
    forecast_usd: Decimal | None
    rate_since: datetime | None
    recent_usd: Decimal | None
    is_current: bool
    is_running: bool

    @property
    def span(self) -> PeriodSpan:
        """Return the budget's period."""
        return PeriodSpan(self.starts_at, self.ends_at)


COLUMNS = (
    *(Column(name=name, unit="", kind=ColumnKind.TEXT) for name in ("budget", "kind", "period")),
    *(
        Column(name=name, unit="USD", kind=ColumnKind.MONEY)
        for name in (
            "limit_usd",
            "granted_usd",
            "spent_usd",
            "held_usd",
            "leased_usd",
            "taken_over_usd",
            "remaining_usd",
        )
    ),
    Column(name="used_share", unit="share of limit and grants", kind=ColumnKind.SHARE),
    Column(name="forecast_usd", unit="USD at the end of the period", kind=ColumnKind.MONEY),
    Column(name="starts_at", unit="UTC", kind=ColumnKind.TIME),
    Column(name="resets_at", unit="UTC", kind=ColumnKind.TIME),
    *(
        Column(name=name, unit="", kind=ColumnKind.TEXT)
        for name in ("team", "scope", "owner", "time_zone")
    ),
    Column(name="is_running", unit="", kind=ColumnKind.FLAG),
)


def budgets(snapshot: ReadSnapshot, question: Question) -> Report:
    """Return the report on each budget's running period, most used first. For a month: the periods
    that began in it by their own clock.

    Raises `BadUsage` for filters that a budget cannot have. The budgets of demo data are invented.
    """
    chosen = _selected_budgets(snapshot, question)
    chosen.sort(key=lambda one: (-(one.used_share or 0), one.budget))
    return Report(
        name=REPORT.name,
        title=REPORT.title,
        dataset=question.dataset,
        columns=COLUMNS,
        rows=tuple(tuple(_cell(one, column.name) for column in COLUMNS) for one in chosen),
        # a team's spending is in its own budget, its projects' budgets and its cost centre's
        total={},
        complete_until=read_freshness(snapshot, question).complete_until,
        notes=_notes(question, chosen),
    )


def running_budgets(
    snapshot: ReadSnapshot, now: datetime, *, only: str | None = None
) -> list[BudgetStanding]:
    """Return the running period of every declared budget, by name, even without spending.

    A rule for each project or key yields those used in this period. `only` is one account.
    """
    found, moved = {}, defaultdict[str, Decimal](Decimal)
    for row in snapshot.rows(_running(now, only)):
        # If the policy changed a period or its time zone, the period that had begun is no longer
        # charged. The present one takes over its amounts.
        if row["starts_at"] == _period_of_row(row, now).starts_at:
            found[row["account"]] = standing_of(row, now)
        else:
            moved[row["account"]] += row["spent_usd"] + row["leased_usd"]
    for row in snapshot.rows(_declared(only)):
        if row["account"] not in found:
            found[row["account"]] = _unused(row, now, taken_over_usd=moved[row["account"]])
    return with_forecasts(snapshot, [found[name] for name in sorted(found)], now)


def _running(now: datetime, only: str | None) -> Select[Any]:
    """Return the SELECT of the periods that run now, of all accounts or of one."""
    has_not_ended = or_(_BUDGETS.ends_at.is_(None), _BUDGETS.ends_at > now)
    found = select(*_BUDGETS).where(_BUDGETS.is_current, _BUDGETS.starts_at <= now, has_not_ended)
    return found if only is None else found.where(_BUDGETS.account == only)


def _declared(only: str | None) -> Select[Any]:
    """Return the SELECT of each declared account's newest row, of all accounts or of one."""
    newest = _BUDGETS.starts_at.desc().nulls_last()
    found = (
        select(*_BUDGETS)
        .ext(distinct_on(_BUDGETS.account))
        .where(_BUDGETS.is_current, _BUDGETS.account == _BUDGETS.rule)
        .order_by(_BUDGETS.account, newest)
    )
    return found if only is None else found.where(_BUDGETS.account == only)


def all_budgets(snapshot: ReadSnapshot, now: datetime) -> list[BudgetStanding]:
    """Return the running periods, then ended ones and those of undeclared budgets, newest first."""
    running = running_budgets(snapshot, now)
    listed = {(one.budget, one.starts_at) for one in running}
    past = [standing_of(row, now) for row in snapshot.rows(_ALL, most_rows=MOST_ROWS)]
    return running + [one for one in past if (one.budget, one.starts_at) not in listed]


def budget_names(snapshot: ReadSnapshot) -> list[NamedBudget]:
    """Return the possible names of every budget so far; only declared ones have short names."""
    return [
        NamedBudget(
            account_id=row["account"], scope=row["scope"], team=row["team"], period=row["period"]
        )
        if row["is_current"]
        else NamedBudget(account_id=row["account"], scope=None, team=None, period=None)
        for row in snapshot.rows(_NAMES)
    ]


def with_forecasts(
    snapshot: ReadSnapshot,
    standings: Sequence[BudgetStanding],
    now: datetime,
    *,
    dataset: Dataset = Dataset.REAL,
) -> list[BudgetStanding]:
    """Return the same budgets; running periods get a forecast of their spending at the present
    rate.
    """
    recent = _recent(snapshot, standings, now, dataset=dataset)
    return [_with_forecast(one, now, recent) for one in standings]


def standing_of(row: Row, now: datetime) -> BudgetStanding:
    """Return a budget's state in one period from a row of its view, without a forecast."""
    is_running = bool(row["is_current"]) and row["starts_at"] == _period_of_row(row, now).starts_at
    room = None if row["limit_usd"] is None else row["limit_usd"] + row["granted_usd"]
    used_usd = row["spent_usd"] + row["taken_over_usd"]
    used_share = SHARES.divide(used_usd, room) if room else None
    return BudgetStanding(
        budget=row["account"],
        rule=row["rule"],
        scope=row["scope"],
        team=row["team"],
        owner=row["owner"],
        period=row["period"],
        kind=row["kind"],
        time_zone=row["time_zone"] or "UTC",
        starts_at=row["starts_at"],
        # A window of the same beginning may have had another end, under another rule.
        ends_at=_period_of_row(row, now).ends_at if is_running else row["ends_at"],
        limit_usd=row["limit_usd"],
        granted_usd=row["granted_usd"],
        spent_usd=row["spent_usd"],
        held_usd=row["held_usd"],
        leased_usd=row["leased_usd"],
        taken_over_usd=row["taken_over_usd"],
        remaining_usd=row["remaining_usd"],
        used_share=used_share,
        forecast_usd=None,
        rate_since=None,
        recent_usd=None,
        is_current=row["is_current"],
        is_running=is_running,
    )


def _unused(row: Row, now: datetime, *, taken_over_usd: Decimal) -> BudgetStanding:
    """Return the running period of a declared budget without spending or grants of its own."""
    span, none = _period_of_row(row, now), Decimal(0)
    fresh = {
        "starts_at": span.starts_at,
        "ends_at": span.ends_at,
        "granted_usd": none,
        "spent_usd": none,
        "held_usd": none,
        "leased_usd": none,
        "taken_over_usd": taken_over_usd,
        "remaining_usd": None
        if row["limit_usd"] is None
        else max(row["limit_usd"] - taken_over_usd, none),
    }
    return standing_of({**row, **fresh}, now)


def _period_of_row(row: Row, now: datetime) -> PeriodSpan:
    """Return the period that contains `now`, by the row's length and time zone."""
    return period_at(BudgetPeriod(row["period"]), row["time_zone"], now)


_Owner = tuple[str | None, ...]  # the scope, and the owner's name in events


def _with_forecast(
    one: BudgetStanding, now: datetime, recent: Mapping[tuple[datetime, _Owner], Decimal]
) -> BudgetStanding:
    """Return a budget with a forecast at the present spending rate; unchanged if it has no rate."""
    since = _rate_begin(one, now)
    if since is None:
        return one
    recent_usd = (
        one.spent_usd
        if since == one.starts_at
        else recent.get((since, _owner_key(one)), Decimal(0))
    )
    nusd = forecast_nusd(
        one.span,
        now,
        spent_nusd=nusd_from_usd(one.spent_usd + one.taken_over_usd),
        since=since,
        recent_nusd=nusd_from_usd(recent_usd),
    )
    return replace(one, forecast_usd=usd_from_nusd(nusd), rate_since=since, recent_usd=recent_usd)


def _rate_begin(one: BudgetStanding, now: datetime) -> datetime | None:
    """Return the moment since which a running budget's spending rate is measured; None without a
    rate.
    """
    return rate_since(one.span, now) if one.is_running else None


def _owner_key(one: BudgetStanding) -> _Owner:
    """Return the key that joins a budget with its owner's spending."""
    return (
        (one.scope, one.team, one.owner)
        if one.scope == BudgetScope.PROJECT
        else (one.scope, one.owner)
    )


def _recent(
    snapshot: ReadSnapshot,
    standings: Iterable[BudgetStanding],
    now: datetime,
    *,
    dataset: Dataset,
) -> dict[tuple[datetime, _Owner], Decimal]:
    """Return each owner's spending since the midnight from which its rate is measured: one
    statement per scope and midnight, not per budget.
    """
    asked = {
        (one.scope, since)
        for one in standings
        if (since := _rate_begin(one, now)) not in (None, one.starts_at)
    }
    found = {}
    for scope, since in asked:
        assert scope is not None, "a budget that runs has a rule"
        by = OWNERS[scope]
        source = source_for(dataset, by=by, moments=(since,))
        chosen = facts(source, _occurred_since(since), by=by)
        groups = [chosen.c[dimension.label] for dimension in by]
        for row in snapshot.rows(select(*groups, SPENT.label("spent_usd")).group_by(*groups)):
            owner = (row[dimension.label] for dimension in by)
            found[since, (scope, *owner)] = row["spent_usd"]
    return found


def _occurred_since(moment: datetime) -> Conditions:
    """Return the WHERE condition for events since a moment."""
    return lambda row: [row.occurred_at >= moment]


def _selected_budgets(snapshot: ReadSnapshot, question: Question) -> list[BudgetStanding]:
    """Return the budgets of the question's month that match its filters."""
    foreign = [dimension for dimension, _ in question.where if dimension not in _OWN]
    if foreign:
        raise BadUsage(
            f"Report budgets cannot be filtered by {', '.join(foreign)}: a budget belongs to a "
            "team, a project, a key or a cost centre."
        )
    if question.days is not None:
        raise BadUsage("Report budgets has whole periods. Ask for --month YYYY-MM.")
    now = snapshot.row("SELECT now() AS now")["now"]
    if question.dataset is Dataset.DEMO:
        found = _demo_budgets(snapshot, question, now)
    elif question.month is None:
        found = running_budgets(snapshot, now)
    else:
        rows = snapshot.rows(_OF_MONTH, month=question.month, most_rows=MOST_ROWS)
        found = with_forecasts(snapshot, [standing_of(row, now) for row in rows], now)
    return [
        one
        for one in found
        if all(_OWN[dimension](one) == wanted for dimension, wanted in question.where)
    ]


def _demo_budgets(
    snapshot: ReadSnapshot, question: Question, now: datetime
) -> list[BudgetStanding]:
    """Return the invented budgets of the demo teams, in the present month or the question's."""
    at = now if question.month is None else datetime.combine(question.month, time(), UTC)
    standings = [standing_of(row, now) for row in demo_rows(snapshot, SPENT, at=at)]
    return with_forecasts(snapshot, standings, now, dataset=Dataset.DEMO)


def _owner_in_scope(scope: BudgetScope) -> Callable[[BudgetStanding], str | None]:
    """Return a function that gives a budget's owner, None for budgets of another scope."""
    return lambda one: one.owner if one.scope == scope else None


_OWN: Mapping[Split, Callable[[BudgetStanding], str | None]] = {
    Dimension.TEAM: lambda one: one.team,
    Dimension.PROJECT: _owner_in_scope(BudgetScope.PROJECT),
    Dimension.KEY: _owner_in_scope(BudgetScope.KEY),
    Dimension.COST_CENTRE: _owner_in_scope(BudgetScope.COST_CENTRE),
}


def _cell(one: BudgetStanding, name: str) -> Cell:
    """Return one cell of a budget's row in the report, by column name."""
    if name == "starts_at" and one.ends_at is None:
        return None  # a `once` budget counts everything
    cell: Cell = getattr(one, "ends_at" if name == "resets_at" else name)
    return cell


def _notes(question: Question, chosen: Sequence[BudgetStanding]) -> tuple[str, ...]:
    """Return the notes below the report on budgets."""
    if question.dataset is Dataset.DEMO:
        return (
            "Demo data: generated, not real spend. The limits are invented too: no policy has "
            "them, and no gateway keeps them.",
            PRESENT_RATE,
            "Money in USD, times in UTC.",
        )
    is_empty = not chosen and question.month is None and not question.where
    return (
        *((NO_BUDGET,) if is_empty else ()),
        "Remaining is limit and grants minus spent and leased. Gateways hold the leased money; "
        "requests in flight reserved the held part of it. Idle leases return within seconds.",
        PRESENT_RATE,
        "Money in USD, times in UTC; a budget resets in its own time zone. Several budgets may "
        "count the same request, so rows do not add up.",
    )


REPORT = ReportKind(
    name="budgets",
    title="Budgets",
    question="How much of each budget is used, what is left, and what will it be at the end of the "
    "period?",
    by=None,
    run=budgets,
    whole_months=True,
    usd_alone="limits are set and enforced in USD",
)
