"""Reads the statements of cost centres for one month: two sums over the month and two over the
month before, for all cost centres at once, and the adjustments of one. Of a month that still runs
the complete days of both are read too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any

from sqlalchemy import Text, cast, desc, func, select

from gateway.domain.calendar_months import last_month, next_month
from gateway.domain.policy.policy import CostCentre
from gateway.domain.reports.comparison import Compared, ComparedPeriod, Comparison, comparison
from gateway.domain.reports.statement import (
    MOST_ADJUSTMENTS,
    CostCentreStatement,
    StatementAdjustment,
    StatementLine,
    StatementMonth,
)
from gateway.errors import (
    BadUsage,
    DatabaseUnavailable,
    NothingFound,
    OperatorError,
    PolicyRejected,
)
from gateway.reports.dimensions import UNALLOCATED, Dimension, utc_day
from gateway.reports.month.status import MONTH_STATE
from gateway.reports.question import Question, ask
from gateway.reports.questions import spend
from gateway.reports.report import Cell, Report
from gateway.reports.sources.allocated_rows import allocated, with_rates, with_shares
from gateway.reports.sources.connection import ReadSnapshot
from gateway.reports.sources.currencies import rate_note_of_month
from gateway.reports.sources.demo_ledger import DEMO_LEDGER_NOTE, is_demo_ledger
from gateway.reports.sources.notes import read_now
from gateway.storage.postgres.schema import finance_views
from gateway.wire.parsed_policy import parse

MOST_NAMES = 20
_CLOSE = """
SELECT version, sha256, closed_at FROM finance.month_closes
WHERE month = :month AND CASE
    WHEN CAST(:version AS integer) IS NOT NULL THEN version = CAST(:version AS integer)
    WHEN CAST(:by AS timestamptz) IS NOT NULL THEN closed_at <= CAST(:by AS timestamptz)
    ELSE reopened_at IS NULL END
ORDER BY version DESC LIMIT 1
"""
# The policy that counted at the end of the month: a later one renames no cost centre in it.
_POLICY = """
SELECT document FROM finance.policy_days JOIN finance.policy_versions USING (version)
WHERE first_day <= :last_day ORDER BY first_day DESC LIMIT 1
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class StatementQuestion:
    """The month of statements, by its first day, and their currency; None is USD.

    A closed month is always shown as it was closed, in its newest version or in `close_version`.
    `must_be_closed`: fail if it is not.
    """

    month: date
    currency: str | None = None
    must_be_closed: bool = False
    close_version: int | None = None


def ask_statement(
    *,
    month: str,
    currency: str | None = None,
    as_closed: bool = False,
    close_version: int | None = None,
) -> StatementQuestion:
    """Return a valid question from user input; `month` is `YYYY-MM`. Raises `BadUsage`."""
    if month == "all":
        raise BadUsage("A statement is of one month: --month YYYY-MM.")
    asked = ask(month=month, as_closed=as_closed, close_version=close_version, currency=currency)
    assert asked.month is not None, "it is one month"
    return StatementQuestion(
        month=asked.month,
        currency=asked.currency,
        must_be_closed=asked.is_as_closed,
        close_version=asked.close_version,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Figures:
    """One cost centre's figures of a month."""

    cost: Decimal | None
    adjusted: Decimal
    total: Decimal | None
    idle: Decimal | None
    held: Decimal
    attempts: int
    unknown_attempts: int
    derived_attempts: int
    by_team: dict[str, Decimal | None]
    by_model: dict[str, Decimal | None]


_NOTHING = _Figures(
    cost=Decimal(0),
    adjusted=Decimal(0),
    total=Decimal(0),
    idle=Decimal(0),
    held=Decimal(0),
    attempts=0,
    unknown_attempts=0,
    derived_attempts=0,
    by_team={},
    by_model={},
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Month:
    """All cost centres' figures of a month, the whole of them, and the question they answer."""

    state: StatementMonth
    question: Question
    centres: dict[str, _Figures]
    whole: dict[str, Cell]

    def of(self, cost_centre: str) -> _Figures:
        """Return one cost centre's figures: zeros for one without any."""
        return self.centres.get(cost_centre, _NOTHING)

    @property
    def is_empty(self) -> bool:
        """Return True if no event and no adjustment is in it."""
        return not self.centres


class Statements:
    """The statements of one month, of any cost centre."""

    def __init__(self, snapshot: ReadSnapshot, asked: StatementQuestion) -> None:
        """Read the month and the one before.

        Raises `OperatorError` if the month must be closed and is not, or if a rate is missing.
        """
        self._currency = asked.currency
        self._demo_note = DEMO_LEDGER_NOTE if is_demo_ledger(snapshot) else None
        self._declared = _declared(snapshot, asked.month)
        close = _close_of(snapshot, asked.month, version=asked.close_version)
        if close is None and asked.must_be_closed:
            raise OperatorError(
                f"{asked.month:%Y-%m} is not closed"
                + (f" in version {asked.close_version}" if asked.close_version else "")
                + f". tollgate month status {asked.month:%Y-%m} lists its open checks."
            )
        asked_month = ComparedPeriod(month=asked.month)
        found = comparison(asked_month, Compared.PREVIOUS, read_now(snapshot))
        self._previous = _read_previous(snapshot, asked, close, found)
        has_part = found.is_part and self._previous is not None
        self._comparison = found.sentence if has_part else None
        self._month = _read(snapshot, asked, asked_month, close)
        self._compared = self._month
        if has_part:
            self._compared = _read(snapshot, asked, found.now, close)
        self._snapshot = snapshot
        self._rate_source = (
            None
            if asked.currency is None
            else rate_note_of_month(snapshot, asked.currency, asked.month)
        )

    @property
    def month(self) -> StatementMonth:
        """Return the state of the month."""
        return self._month.state

    @property
    def cost_centres(self) -> tuple[str, ...]:
        """Return the cost centres with any amount in the month, by name."""
        return tuple(sorted(name for name in self._month.centres if name != UNALLOCATED))

    def of(self, cost_centre: str) -> CostCentreStatement:
        """Return one cost centre's statement. Raises `NothingFound` for a name that neither month
        nor the policy has.
        """
        known = {*self.cost_centres, *self._declared}
        if self._previous is not None:
            known |= {*self._previous.known} - {UNALLOCATED}
        if cost_centre not in known:
            names = sorted(known)
            shown = ", ".join(names[:MOST_NAMES]) + (", …" if len(names) > MOST_NAMES else "")
            raise NothingFound(
                f"No cost centre is called '{cost_centre}'. There is: {shown or 'none yet'}."
            )
        now = self._month.of(cost_centre)
        compared = self._compared.of(cost_centre)
        before = None if self._previous is None else self._previous.month.of(cost_centre)
        declared = self._declared.get(cost_centre)
        found, count = _adjustments(self._snapshot, self._month.question, cost_centre)
        return CostCentreStatement(
            cost_centre=cost_centre,
            title=None if declared is None else declared.full_name,
            owner=None if declared is None else declared.owner,
            month=self._month.state,
            previous=None if self._previous is None else self._previous.month.state,
            currency=self._currency or "USD",
            cost=now.cost,
            adjusted=now.adjusted,
            total=now.total,
            all_total=_amount(self._month.whole["total_usd"]),
            idle=now.idle,
            all_idle=_amount(self._month.whole["idle_usd"]),
            held=now.held,
            compared_total=compared.total,
            previous_total=None if before is None else before.total,
            by_team=_lines(
                now.by_team, compared.by_team, None if before is None else before.by_team
            ),
            by_model=_lines(
                now.by_model, compared.by_model, None if before is None else before.by_model
            ),
            adjustments=found,
            adjustment_count=count,
            attempts=now.attempts,
            unknown_attempts=now.unknown_attempts,
            derived_attempts=now.derived_attempts,
            rate_source=self._rate_source,
            comparison=self._comparison,
            demo_note=self._demo_note,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Close:
    """One closed version of a month."""

    version: int
    sha256: str
    closed_at: datetime


def _close_of(
    snapshot: ReadSnapshot, month: date, *, version: int | None, by: datetime | None = None
) -> _Close | None:
    """Return a month's closed version: the one in force, a given one, or the newest of a moment
    `by`. None if there is none.
    """
    found = snapshot.rows(_CLOSE, month=month, version=version, by=by)
    return _Close(**found[0]) if found else None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Previous:
    """The compared part of the month before, and the cost centres of the whole month."""

    month: _Month
    known: frozenset[str]


def _read_previous(
    snapshot: ReadSnapshot, asked: StatementQuestion, close: _Close | None, found: Comparison
) -> _Previous | None:
    """Return the month before, of a closed month in the version of then.

    None if it has nothing, or no rate of the currency.
    """
    month = last_month(asked.month)
    by = None if close is None else close.closed_at
    before = _close_of(snapshot, month, version=None, by=by)
    if close is not None and before is None:
        return None  # months close oldest first: this one was the first
    try:
        whole = _read(snapshot, asked, found.earlier, before)
        if whole.is_empty:
            return None
        part = whole
        if found.before != found.earlier:
            part = _read(snapshot, asked, found.before, before)
    except DatabaseUnavailable:
        raise
    except OperatorError:
        return None
    return _Previous(month=part, known=frozenset(whole.centres))


def _read(
    snapshot: ReadSnapshot, asked: StatementQuestion, period: ComparedPeriod, close: _Close | None
) -> _Month:
    """Read all cost centres' figures of a month or its first days, from its closed version if
    there is one.
    """
    month = period.span[0]
    question = Question(limit=None, currency=asked.currency).about(period)
    if close is None:
        snapshot.as_live()
    else:
        snapshot.as_closed(f"{month:%Y-%m-%d}/{close.version}")
        question = replace(
            question,
            is_as_closed=True,
            close_version=close.version,
            closed_at=close.closed_at,
        )
    by_team, by_model = (
        spend.REPORT.run(snapshot, replace(question, by=(Dimension.COST_CENTRE, split)))
        for split in (Dimension.TEAM, Dimension.MODEL)
    )
    state = StatementMonth(
        first_day=month,
        state="closed" if close else snapshot.row(MONTH_STATE, month=month)["state"],
        version=close.version if close else None,
        sha256=close.sha256 if close else None,
        as_of=close.closed_at if close else by_team.complete_until,
    )
    return _Month(
        state=state,
        question=question,
        centres=_figures(by_team, by_model),
        whole=dict(by_team.total),
    )


def _figures(by_team: Report, by_model: Report) -> dict[str, _Figures]:
    """Return each cost centre's figures from the two splits of a month."""
    teams, models = (_grouped(report) for report in (by_team, by_model))
    return {
        name: _Figures(
            cost=_total(rows, "cost_usd"),
            adjusted=_total(rows, "adjustments_usd") or Decimal(0),
            total=_total(rows, "total_usd"),
            idle=_total(rows, "idle_usd"),
            held=_total(rows, "held_usd") or Decimal(0),
            attempts=_count(rows, "attempts"),
            unknown_attempts=_count(rows, "unknown_attempts"),
            derived_attempts=_count(rows, "derived_attempts"),
            by_team=_by_name(rows, Dimension.TEAM),
            by_model=_by_name(models[name], Dimension.MODEL),
        )
        for name, rows in teams.items()
    }


def _grouped(report: Report) -> dict[str, list[dict[str, Cell]]]:
    """Return the rows of a report by their cost centre."""
    found: dict[str, list[dict[str, Cell]]] = {}
    for row in report.records():
        found.setdefault(str(row[Dimension.COST_CENTRE.value] or UNALLOCATED), []).append(row)
    return found


def _total(rows: Sequence[dict[str, Cell]], name: str) -> Decimal | None:
    """Return the sum of the known amounts of rows; None if none is known."""
    known = [amount for row in rows if (amount := _amount(row[name])) is not None]
    return sum(known, Decimal(0)) if known else None


def _count(rows: Sequence[dict[str, Cell]], name: str) -> int:
    """Return the sum of a count over rows."""
    return sum(int(str(row[name])) for row in rows)


def _by_name(rows: Sequence[dict[str, Cell]], split: Dimension) -> dict[str, Decimal | None]:
    """Return the totals of rows by a dimension; those with idle GPU time alone are left out."""
    return {
        str(row[split.value] or UNALLOCATED): _amount(row["total_usd"])
        for row in rows
        if row["attempts"] or row["total_usd"]
    }


def _amount(cell: Cell) -> Decimal | None:
    """Return a cell of money."""
    return None if cell is None else Decimal(str(cell))


def _lines(
    now: dict[str, Decimal | None],
    compared: dict[str, Decimal | None],
    before: dict[str, Decimal | None] | None,
) -> tuple[StatementLine, ...]:
    """Return the lines of a table, largest first; one that is gone has its amount of before."""
    names = {*now, *(before or {})}
    lines = [
        StatementLine(
            name=name,
            amount=now.get(name, Decimal(0)),
            compared=compared.get(name, Decimal(0)),
            previous=None if before is None else before.get(name, Decimal(0)),
        )
        for name in names
    ]
    return tuple(sorted(lines, key=lambda line: (-(line.amount or Decimal(0)), line.name)))


def _adjustments(
    snapshot: ReadSnapshot, question: Question, cost_centre: str
) -> tuple[tuple[StatementAdjustment, ...], int]:
    """Return the largest adjustments of a cost centre, its shares of them, and the number of
    all.
    """
    rows: Any = with_shares(finance_views.adjustments.alias("event"))
    if question.currency is not None:
        rows = with_rates(rows, question.currency)
    row = rows.c
    amount = allocated(row, {"amount_usd": row.amount_usd})["amount_usd"]
    chosen = snapshot.rows(
        select(
            utc_day(row.occurred_at).label("day"),
            cast(row.kind, Text).label("kind"),
            row.team,
            row.reason,
            amount.label("amount"),
            func.count().over().label("number"),
        )
        .where(*question.conditions(row), row.cost_centre == cost_centre)
        .order_by(desc(func.abs(amount)), row.created_at, row.adjustment_id)
        .limit(MOST_ADJUSTMENTS)
    )
    found = tuple(
        StatementAdjustment(
            day=one["day"],
            kind=one["kind"],
            team=one["team"] or UNALLOCATED,
            reason=one["reason"],
            amount=one["amount"],
        )
        for one in chosen
    )
    return found, int(chosen[0]["number"]) if chosen else 0


def _declared(snapshot: ReadSnapshot, month: date) -> dict[str, CostCentre]:
    """Return the cost centres of the policy that counted at the end of a month; none if this
    release cannot read it.
    """
    last_day = next_month(month) - timedelta(days=1)
    found = snapshot.rows(_POLICY, last_day=last_day)
    if not found:
        return {}
    try:
        policy = parse(found[0]["document"]).policy
    except PolicyRejected:
        return {}
    of_teams = frozenset[str]().union(*(team.cost_centre_names for team in policy.teams.values()))
    return {name: CostCentre(name=name) for name in of_teams} | dict(policy.cost_centres)
