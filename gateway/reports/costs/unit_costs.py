"""Answers the report `unit-costs`: the cost of one request, answer, task and end user, and of 1,000
tokens.

Each count is read from the smallest sums that hold it, so one question reads up to three.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import ROUND_HALF_EVEN, Decimal

from sqlalchemy import func

from gateway.reports.dimensions import UNALLOCATED, Dimension, Split
from gateway.reports.question import Question
from gateway.reports.report import Cell, Column, ColumnKind, Report
from gateway.reports.report_kind import ReportKind
from gateway.reports.sources.aggregate import (
    ATTEMPTS,
    COST,
    SPENT,
    TOTAL,
    Measure,
    aggregate,
    count_sum,
    token_sum,
    total_or_zero,
    total_usd,
)
from gateway.reports.sources.comparison import with_share
from gateway.reports.sources.connection import ReadSnapshot
from gateway.reports.sources.facts import FigureGroup, fact

REQUESTS = count_sum("requests", "requests, by their first attempt")
ANSWERS = Measure(
    name="answers",
    unit="attempts that ended as ok",
    kind=ColumnKind.COUNT,
    value=total_or_zero("attempts") - total_or_zero("failed_attempts"),
)
TOKENS = token_sum("total_tokens")
MEASURES = (
    ATTEMPTS,
    REQUESTS,
    ANSWERS,
    TOKENS,
    count_sum("unknown_attempts"),
    *SPENT,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class CostOwner:
    """Something that attempts belong to, if they name it: an end user or a task.

    `figure` is its name among the facts. Different ones are counted, each once in a row.
    """

    figure: str
    needs: FigureGroup

    @property
    def count(self) -> Measure:
        """Return the measure of the number of different ones.

        Like all counts it is that of the events' own cost centre, not of those that share cost.
        """
        is_own = fact("attempts") != 0  # NULL in a share, 0 in an adjustment
        return Measure(
            name=f"{self.figure}s",
            unit=f"different {self.figure.replace('_', ' ')}s",
            kind=ColumnKind.COUNT,
            value=func.count(fact(self.figure).distinct()).filter(is_own),
            needs=self.needs,
            adds_up=False,
        )

    @property
    def amount(self) -> Measure:
        """Return the measure of the money of the attempts that name one."""
        return Measure(
            name=f"{self.figure}_usd",
            unit=f"USD, of attempts with a {self.figure.replace('_', ' ')}",
            kind=ColumnKind.MONEY,
            value=total_usd(fact(self.figure).is_not(None)),
            needs=self.needs,
            adds_up=False,
            has_adjustments=True,
        )


END_USER = CostOwner(figure="end_user", needs=FigureGroup.END_USERS)
TASK = CostOwner(figure="task", needs=FigureGroup.TASKS)
SESSION = CostOwner(figure="session", needs=FigureGroup.TASKS)
OWNERS = (END_USER, TASK, SESSION)
# By the sums that hold them; with the cost, so that all list the same rows first.
OWNED = (
    (END_USER.count, END_USER.amount, COST),
    (TASK.count, TASK.amount, SESSION.count, SESSION.amount, COST),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitCost:
    """A column that divides an amount by a count; `per` is the number of counted things."""

    name: str
    unit: str
    amount: str
    count: str
    per: int = 1

    def of(self, row: Mapping[str, Cell]) -> Cell:
        """Return the cost of one unit in USD, to twelve decimals; None if it is unknown or there is
        no unit.
        """
        amount, count = row[self.amount], row[self.count]
        if not isinstance(amount, Decimal | int) or not isinstance(count, int) or count <= 0:
            return None
        return (Decimal(amount) * self.per / count).quantize(_LAST_DIGIT, ROUND_HALF_EVEN)

    @property
    def report_column(self) -> Column:
        """Return the report column of this unit cost."""
        return Column(name=self.name, unit=self.unit, kind=ColumnKind.MONEY)


_LAST_DIGIT = Decimal("1e-12")
UNIT_COSTS = (
    UnitCost(
        name="usd_per_request", unit="USD per request", amount=TOTAL.name, count=REQUESTS.name
    ),
    UnitCost(name="usd_per_answer", unit="USD per answer", amount=TOTAL.name, count=ANSWERS.name),
    UnitCost(
        name="usd_per_1k_tokens",
        unit="USD per 1,000 tokens",
        amount=TOTAL.name,
        count=TOKENS.name,
        per=1000,
    ),
    *(
        UnitCost(
            name=f"usd_per_{owner.figure}",
            unit=f"USD per {owner.figure.replace('_', ' ')}",
            amount=owner.amount.name,
            count=owner.count.name,
        )
        for owner in OWNERS
    ),
)
NOTES = (
    "Each usd_per_… is total_usd (failed attempts and adjustments included) by the count, and "
    "empty without one. A request counts in the row of its first attempt, an answer in that of "
    "the attempt that ended as ok.",
    "A task is a value of the tag task, a session one of the tag session. Their costs, and those "
    "of end users, are of the attempts that name one. One that is in several rows counts in each.",
)


def unit_costs(snapshot: ReadSnapshot, question: Question) -> Report:
    """Return the report on unit costs. Raises `DatabaseUnavailable`."""
    by = (Dimension.TEAM,) if question.by is None else question.by

    def answer(measures: Sequence[Measure]) -> Report:
        return aggregate(snapshot, question, measures, name=REPORT.name, title=REPORT.title, by=by)

    base, *owned = (answer(measures) for measures in (MEASURES, *OWNED))
    figures = [_by_names(one, by) for one in owned]
    names = [dimension.report_column.name for dimension in by]
    records: list[dict[str, Cell]] = []
    for row in base.records():
        key = tuple(row[name] for name in names)
        record = {**NOTHING, **row}
        for found in figures:
            record |= found.get(key, {})
        records.append(_with_unit_costs(record, is_difference=row.get("tag") == UNALLOCATED))
    total = {**base.total}
    for part in owned:
        total |= part.total
    columns = (
        *(dimension.report_column for dimension in by),
        *(measure.report_column for measure in MEASURES[:4]),
        *(owner.count.report_column for owner in OWNERS),
        *(cost.report_column for cost in UNIT_COSTS),
        *(owner.amount.report_column for owner in OWNERS),
        *(measure.report_column for measure in MEASURES[4:]),
    )
    return with_share(
        Report(
            name=base.name,
            title=base.title,
            dataset=base.dataset,
            columns=columns,
            rows=tuple(tuple(row[column.name] for column in columns) for row in records),
            total=_with_unit_costs(total),
            complete_until=base.complete_until,
            notes=_notes(base, owned),
        )
    )


NOTHING: Mapping[str, Cell] = {
    **{owner.count.name: 0 for owner in OWNERS},
    **{owner.amount.name: Decimal(0) for owner in OWNERS},
}


def _by_names(report: Report, by: Sequence[Split]) -> Mapping[tuple[Cell, ...], dict[str, Cell]]:
    """Return the figures of a report's rows by the values of their dimensions."""
    names = [dimension.report_column.name for dimension in by]
    return {
        tuple(row[name] for name in names): {
            name: cell for name, cell in row.items() if name in NOTHING
        }
        for row in report.records()
    }


def _with_unit_costs(row: dict[str, Cell], *, is_difference: bool = False) -> dict[str, Cell]:
    """Return a row with its unit costs. A difference of other rows has none."""
    return row | {cost.name: None if is_difference else cost.of(row) for cost in UNIT_COSTS}


def _notes(base: Report, owned: Sequence[Report]) -> tuple[str, ...]:
    """Return the notes of all parts, each once."""
    if not base.total[ATTEMPTS.name]:
        return base.notes
    return tuple(dict.fromkeys(note for one in (base, *owned) for note in one.notes)) + NOTES


REPORT = ReportKind(
    name="unit-costs",
    title="Unit costs",
    question="What does one request, answer, task or end user cost?",
    by=(Dimension.TEAM,),
    run=unit_costs,
)
