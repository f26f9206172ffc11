"""Grouped totals over events: the one statement that every summary report is a list of measures for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gateway.reports.connection import Row, Snapshot
from gateway.reports.dimensions import TAG_JOIN, Dimension
from gateway.reports.notes import SURENESS, notes_on, read_freshness
from gateway.reports.question import Question
from gateway.reports.report import Cell, Column, Kind, Report

MAX_ROWS = 50_000  # by key and day in a large company; more than that is an export, not a report


@dataclass(frozen=True, slots=True, kw_only=True)
class Measure:
    """One column of figures and the aggregate that fills it."""

    name: str
    unit: str
    kind: Kind
    sql: str

    @property
    def column(self) -> Column:
        """The column without its SQL."""
        return Column(name=self.name, unit=self.unit, kind=self.kind)


def tokens(name: str, sql: str) -> Measure:
    """Tokens summed where they were reported; NULL where no event reported any."""
    return Measure(name=name, unit="tokens", kind=Kind.COUNT, sql=f"CAST(sum({sql}) AS bigint)")


def count(name: str, unit: str, condition: str = "true") -> Measure:
    """How many events meet a condition."""
    return Measure(name=name, unit=unit, kind=Kind.COUNT, sql=f"count(*) FILTER (WHERE {condition})")


def money(name: str, condition: str = "true") -> Measure:
    """Known cost. NULL where events are there but the cost of none is known: unknown is never 0."""
    filtered = f"FILTER (WHERE {condition})"
    known = f"CASE WHEN count(*) {filtered} = 0 THEN 0 ELSE sum(cost_usd) {filtered} END"
    return Measure(name=name, unit="USD", kind=Kind.MONEY, sql=known)


ATTEMPTS = count("attempts", "attempts")
COST = money("cost_usd")
HELD = Measure(
    name="held_usd",
    unit="USD, at most, for unknown",
    kind=Kind.MONEY,
    sql="coalesce(sum(held_usd) FILTER (WHERE cost_usd IS NULL), 0)",
)


def aggregate(
    snapshot: Snapshot, question: Question, measures: Sequence[Measure], *, name: str, title: str,
    by: tuple[Dimension, ...], order: str | None = None,
) -> Report:  # fmt: skip
    """Return one row per group and a total over the events themselves, from one snapshot.

    The total is the same statement without groups: it cannot be inflated by an event that is in two rows.
    """
    condition, values = question.condition()
    chosen = f"FROM {question.dataset.events} AS event"
    figures = ", ".join(f"{measure.sql} AS {measure.name}" for measure in measures)
    total = snapshot.row(f"SELECT {figures}, {SURENESS} {chosen} WHERE {condition}", **values)
    rows: Sequence[Row] = []
    if by and total["sure_attempts"]:
        groups = ", ".join(f"{dimension.sql} AS by_{dimension.value}" for dimension in by)
        positions = ", ".join(str(position + 1) for position in range(len(by)))
        rows = snapshot.rows(
            f"SELECT {groups}, {figures} {chosen} {TAG_JOIN if Dimension.TAG in by else ''} WHERE {condition} "
            f"GROUP BY {positions} ORDER BY {order or _order(by)}, {positions} LIMIT {MAX_ROWS + 1}",
            **values,
        )
    names = [*(f"by_{dimension.value}" for dimension in by), *(measure.name for measure in measures)]
    fresh = read_freshness(snapshot, question)
    return Report(
        name=name,
        title=title,
        dataset=question.dataset,
        columns=(*(dimension.column for dimension in by), *(measure.column for measure in measures)),
        rows=tuple(_cells(row, names) for row in rows[:MAX_ROWS]),
        total={measure.name: total[measure.name] for measure in measures},
        complete_until=fresh.complete_until,
        notes=(*notes_on(question, total, fresh, by=by), *_left_out(rows)),
    )


def _order(by: tuple[Dimension, ...]) -> str:
    """Days in their order; within a day, and without days, the dearest first."""
    day = "by_day, " if Dimension.DAY in by else ""
    return f"{day}cost_usd DESC NULLS LAST"


def _cells(row: Row, names: Sequence[str]) -> tuple[Cell, ...]:
    return tuple(row[name] for name in names)


def _left_out(rows: Sequence[Row]) -> tuple[str, ...]:
    if len(rows) <= MAX_ROWS:
        return ()
    return (f"Only the first {MAX_ROWS:,} rows are listed; the total covers all. Filter, or group by less.",)
