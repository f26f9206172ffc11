"""Grouped totals over facts: the one statement behind every summary report's measures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

from gateway.reports.dimensions import UNALLOCATED, Dimension
from gateway.reports.question import Question
from gateway.reports.report import Cell, Column, ColumnKind, Report
from gateway.reports.sources.connection import ReadSnapshot, Row
from gateway.reports.sources.facts import Source, events, facts, source_for
from gateway.reports.sources.notes import SURENESS, notes_on, read_freshness

MAX_ROWS = 50_000  # by key and day in a large company; more rows are an export, not a report


@dataclass(frozen=True, slots=True, kw_only=True)
class Measure:
    """One column of figures and the aggregate over `facts` that fills it.

    `needs_events`: it cannot be computed from sums, such as a percentile. `is_ratio`: it is one sum
    by another.
    """

    name: str
    unit: str
    kind: ColumnKind
    sql: str
    needs_events: bool = False
    is_ratio: bool = False

    @property
    def column(self) -> Column:
        """Return the column without its SQL."""
        return Column(name=self.name, unit=self.unit, kind=self.kind)


def tokens(name: str) -> Measure:
    """Return a sum of reported tokens; NULL if no event reported any."""
    return Measure(name=name, unit="tokens", kind=ColumnKind.COUNT, sql=f"sum({name})")


def count(name: str, unit: str = "attempts") -> Measure:
    """Return the sum of a column of counts."""
    return Measure(name=name, unit=unit, kind=ColumnKind.COUNT, sql=f"coalesce(sum({name}), 0)")


def money(name: str, condition: str = "true") -> Measure:
    """Return the known cost. NULL if events exist but none has a known cost: unknown is never 0."""
    filtered = f"FILTER (WHERE {condition})"
    has_events = f"coalesce(bool_or(attempts <> 0) {filtered}, false)"
    known = f"CASE WHEN {has_events} THEN sum(cost_usd) {filtered} ELSE 0 END"
    return Measure(name=name, unit="USD", kind=ColumnKind.MONEY, sql=known)


ATTEMPTS = count("attempts")
COST = money("cost_usd")
ADJUSTMENTS = Measure(
    name="adjustments_usd",
    unit="USD",
    kind=ColumnKind.MONEY,
    sql="coalesce(sum(adjustments_usd), 0)",
)
TOTAL = Measure(
    name="total_usd",
    unit="USD, cost and adjustments",
    kind=ColumnKind.MONEY,
    sql="CASE WHEN bool_or(attempts <> 0) AND sum(cost_usd) IS NULL AND NOT bool_or(adjustments <> "
    "0) THEN NULL ELSE coalesce(sum(cost_usd), 0) + coalesce(sum(adjustments_usd), 0) END",
)
HELD = Measure(
    name="held_usd",
    unit="USD, at most, for unknown",
    kind=ColumnKind.MONEY,
    sql="coalesce(sum(held_usd), 0)",
)
# Together in every report of money, so that the events alone cannot be mistaken for the total.
SPENT = (COST, ADJUSTMENTS, TOTAL, HELD)


def aggregate(
    snapshot: ReadSnapshot,
    question: Question,
    measures: Sequence[Measure],
    *,
    name: str,
    title: str,
    by: tuple[Dimension, ...],
    order: str | None = None,
) -> Report:
    """Return one row per group and a total over the facts themselves, from one snapshot.

    The total is the same statement without groups: an event in two rows cannot inflate it.
    """
    condition, values = question.condition()
    source = source_of(question, measures, by=by)
    has_adjustments = ADJUSTMENTS in measures
    figures = figures_of(measures)
    chosen = facts(source, condition, has_adjustments=has_adjustments)
    total = snapshot.row(f"SELECT {figures}, {SURENESS} {chosen}", **values)
    rows: Sequence[Row] = []
    if by:
        groups = ", ".join(f"by_{dimension.value}" for dimension in by)
        adds_up = not any(measure.needs_events for measure in measures)
        split = facts(source, condition, by=by, has_adjustments=has_adjustments, adds_up=adds_up)
        rows = snapshot.rows(
            f"SELECT {groups}, {figures} {split} GROUP BY {groups} ORDER BY {order or _order(by)}, "
            f"{groups} LIMIT {MAX_ROWS + 1}",
            **values,
        )
    names = [f"by_{dimension.value}" for dimension in by]
    fresh = read_freshness(snapshot, question)
    return Report(
        name=name,
        title=title,
        dataset=question.dataset,
        columns=(
            *(dimension.column for dimension in by),
            *(measure.column for measure in measures),
        ),
        rows=tuple(
            (*(row[name] for name in names), *_group_cells(row, measures))
            for row in rows[:MAX_ROWS]
        ),
        total=total_of(total, measures),
        complete_until=fresh.complete_until,
        notes=(*notes_on(question, total, fresh, by=by), *_left_out(rows)),
    )


def source_of(
    question: Question, measures: Sequence[Measure], *, by: tuple[Dimension, ...] = ()
) -> Source:
    """Return the source of the figures: a roll-up if it has the needed columns, else the events."""
    if any(measure.needs_events for measure in measures):
        return events(question.dataset)
    return source_for(question.dataset, (*by, *(dimension for dimension, _ in question.where)))


def figures_of(measures: Sequence[Measure]) -> str:
    """Return the select list that fills the measures."""
    return ", ".join(f"{measure.sql} AS {measure.name}" for measure in measures)


def total_of(row: Row, measures: Sequence[Measure]) -> dict[str, Cell]:
    """Return the figures of a report's total row, by name."""
    return dict(zip((measure.name for measure in measures), cells(row, measures), strict=True))


def cells(row: Row, measures: Sequence[Measure]) -> tuple[Cell, ...]:
    """Return the figures of a row. Counts arrive as NUMERIC, because sums do."""
    return tuple(_cell(row[measure.name], measure.kind) for measure in measures)


def _group_cells(row: Row, measures: Sequence[Measure]) -> tuple[Cell, ...]:
    """Return the figures of a group.

    `unallocated` may be a difference, so it has no shares or rates.
    """
    is_difference = row.get("by_tag") == UNALLOCATED
    return tuple(
        None if is_difference and measure.is_ratio else cell
        for measure, cell in zip(measures, cells(row, measures), strict=True)
    )


def _cell(value: Any, kind: ColumnKind) -> Cell:
    return int(value) if kind is ColumnKind.COUNT and value is not None else cast(Cell, value)


def _order(by: tuple[Dimension, ...]) -> str:
    """Return the order: by day; within a day, and without days, by falling cost."""
    day = "by_day, " if Dimension.DAY in by else ""
    return f"{day}cost_usd DESC NULLS LAST"


def _left_out(rows: Sequence[Row]) -> tuple[str, ...]:
    if len(rows) <= MAX_ROWS:
        return ()
    return (
        f"Only the first {MAX_ROWS:,} rows are listed; the total covers all. Filter, or group "
        "by less.",
    )
