"""Adds columns to a report of sums, from its finished rows: the share of the total, and the change
against an earlier time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from decimal import Decimal

from gateway.domain.reports.comparison import Comparison
from gateway.errors import BadUsage
from gateway.reports.dimensions import TIME, Split
from gateway.reports.question import Question
from gateway.reports.report import Cell, Column, ColumnKind, Report
from gateway.reports.sources.aggregate import TOTAL
from gateway.reports.sources.connection import ReadSnapshot
from gateway.reports.sources.notes import read_now

SHARE = Column(name="share", unit="share of total_usd", kind=ColumnKind.SHARE)
CHANGES = (
    Column(name="previous_usd", unit="USD, total_usd before", kind=ColumnKind.MONEY),
    Column(name="change_usd", unit="USD", kind=ColumnKind.MONEY),
    Column(name="change_share", unit="share of previous_usd", kind=ColumnKind.SHARE),
)
YEAR_CHANGES = (
    Column(name="year_before_usd", unit="USD, total_usd a year before", kind=ColumnKind.MONEY),
    Column(name="year_change_usd", unit="USD", kind=ColumnKind.MONEY),
    Column(name="year_change_share", unit="share of year_before_usd", kind=ColumnKind.SHARE),
)
_MILLIONTH = Decimal("0.000001")
_NAMES = {ColumnKind.TEXT, ColumnKind.DAY, ColumnKind.TIME}


def with_share(report: Report) -> Report:
    """Return a report with each row's share of `total_usd`, to six decimals: the last column.

    It is None if either is unknown, or if the total is 0.
    """
    place = _place_of(report, TOTAL.name)
    whole = report.total[TOTAL.name]
    return replace(
        report,
        columns=(*report.columns, SHARE),
        rows=tuple((*row, _share(row[place], whole)) for row in report.rows),
        total=dict(report.total) | {SHARE.name: _share(whole, whole)},
    )


def require_comparable(by: Sequence[Split]) -> None:
    """Raise `BadUsage` for a split whose rows have no counterpart in an earlier time."""
    if times := [dimension for dimension in by if dimension in TIME]:
        raise BadUsage(
            f"A split by {', '.join(times)} cannot be compared: no earlier time has the same rows. "
            "Leave it out, or ask for both times one by one."
        )


def with_changes(
    snapshot: ReadSnapshot,
    question: Question,
    report: Report,
    answer: Callable[[Question], Report],
    *,
    columns: Sequence[Column] = CHANGES,
) -> Report:
    """Return the report on a question's time with the `total_usd` of its earlier time and the
    change, row by row. `answer` reads the report on another time.

    A period that still runs is compared by its complete days: then the change is not the
    difference of the shown amounts. Raises `BadUsage` if no time is earlier.
    """
    found = question.comparison(read_now(snapshot))
    before = answer(question.about(found.before))
    now = answer(question.about(found.now)) if found.is_part else report
    return _compared(report, now, before, found, columns)


def _compared(
    report: Report, now: Report, before: Report, found: Comparison, columns: Sequence[Column]
) -> Report:
    """Return a report with the columns of a change between two other ones.

    A row that only another time has is listed too, with counts and amounts of 0. The change is
    None if an amount is unknown, its share also if the earlier amount is 0.
    """
    amounts = _totals(now)
    earlier = _totals(before)
    changes = {
        names: _change(amounts.get(names, Decimal(0)), earlier.get(names, Decimal(0)))
        for names in (*amounts, *earlier)
    }
    unchanged = _change(Decimal(0), Decimal(0))
    rows = [(*row, *changes.pop(_names_of(report, row), unchanged)) for row in report.rows]
    rows += [(*_nothing(report, names), *change) for names, change in changes.items()]
    change = _change(now.total[TOTAL.name], before.total[TOTAL.name])
    return replace(
        report,
        columns=(*report.columns, *columns),
        rows=tuple(rows),
        total=dict(report.total) | dict(zip((one.name for one in columns), change, strict=True)),
        notes=(*report.notes, note_on(found, *(one.name for one in columns[:2]))),
        comparison=report.comparison or found,
    )


def note_on(found: Comparison, *names: str) -> str:
    """Return the note on the times that some columns compare."""
    note = f"{' and '.join(names)}: {found.sentence}"
    return f"{note} {TOTAL.name} is of the whole time." if found.is_part else note


def _totals(report: Report) -> Mapping[tuple[Cell, ...], Cell]:
    """Return the `total_usd` of a report's rows by the values of their dimensions."""
    place = _place_of(report, TOTAL.name)
    return {_names_of(report, row): row[place] for row in report.rows}


def _change(now: Cell, before: Cell) -> tuple[Cell, Cell, Cell]:
    """Return the earlier amount, the change since and its share."""
    if not isinstance(now, Decimal | int) or not isinstance(before, Decimal | int):
        return before, None, None
    change = Decimal(now) - Decimal(before)
    return before, change, _share(change, before)


def _share(part: Cell, whole: Cell) -> Decimal | None:
    """Return a part of a whole to six decimals; None if it has none."""
    if not isinstance(part, Decimal | int) or not isinstance(whole, Decimal | int) or not whole:
        return None
    return (Decimal(part) / Decimal(whole)).quantize(_MILLIONTH)


def _place_of(report: Report, name: str) -> int:
    """Return the place of a column in the rows of a report."""
    return next(n for n, column in enumerate(report.columns) if column.name == name)


def _names_of(report: Report, row: Sequence[Cell]) -> tuple[Cell, ...]:
    """Return the values of a row's dimensions."""
    return tuple(
        cell for cell, column in zip(row, report.columns, strict=True) if column.kind in _NAMES
    )


def _nothing(report: Report, names: Sequence[Cell]) -> tuple[Cell, ...]:
    """Return a row of a report for dimensions in which nothing happened."""
    zero: Mapping[ColumnKind, Cell] = {ColumnKind.COUNT: 0, ColumnKind.MONEY: Decimal(0)}
    figures = [zero.get(column.kind) for column in report.columns if column.kind not in _NAMES]
    return (*names, *figures)
