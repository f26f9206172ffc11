"""Asks a report together with its change against the earlier time that the reader chose.

A running month is compared at the same point: its days that are over with the same days of the
month, or of the year, before.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import date, timedelta
from decimal import Decimal

from dashboard.shell.choices import NO_COMPARISON, Choices, is_time
from dashboard.shell.period import ALL, Period, today
from dashboard.source import answer
from gateway.reports import Cell, Column, ColumnKind, Compared, Question, Report

CHANGES = 3  # the columns that a comparison adds, last of all
_NAMES = (ColumnKind.TEXT, ColumnKind.DAY, ColumnKind.TIME)


@dataclass(frozen=True, slots=True, kw_only=True)
class Changed:
    """A report, with the columns of its change if `against` names the compared times."""

    report: Report
    against: str | None


def with_changes(name: str, choices: Choices, *, by: tuple[str, ...]) -> Changed:
    """Return a report split by some dimensions, with the change of each row if the reader compares.

    Raises the errors of `answer`, and `BadUsage` for filters that are none.
    """
    is_by_time = any(is_time(one) for one in by)  # whose rows have no earlier ones
    asked = compared_question(choices, by=() if is_by_time else by)
    if asked is None:
        return Changed(report=answer(name, choices.question(by=by)), against=None)
    found = answer(name, asked)
    against = f"Against {_label(asked)}."
    if choices.time.is_running:
        assert asked.days is not None
        against = f"{Period(days=asked.days).label} against {_label(asked)}; today is not over."
    elif not is_by_time:
        return Changed(report=found, against=against)
    now = answer(name, choices.question(by=by))
    return Changed(report=(with_total if is_by_time else joined)(now, found), against=against)


def compared_question(choices: Choices, *, by: tuple[str, ...] | None) -> Question | None:
    """Return the question about the shown time and the earlier one, about the days that are over
    in a running month; None if nothing is compared.
    """
    shown = choices.time
    if choices.compare == NO_COMPARISON or shown.month == ALL:
        return None
    if not shown.is_running:
        return choices.question(by=by, compare=choices.compare)
    days = full_days(shown)
    return None if days is None else so_far_question(choices, days, by=by)


def full_days(shown: Period) -> tuple[date, date] | None:
    """Return the days of a running month that are over, None on its first day."""
    first, yesterday = shown.first_of_month, today() - timedelta(days=1)
    return (first, yesterday) if yesterday >= first else None


def so_far_question(
    choices: Choices, days: tuple[date, date], *, by: tuple[str, ...] | None
) -> Question:
    """Return the question about some days of a month and the same days before."""
    earlier = Compared.YEAR if choices.compare == Compared.YEAR else Compared.MONTH
    return choices.question(by=by, days=days, compare=earlier.value)


def with_total(now: Report, compared: Report) -> Report:
    """Return a report whose total has the change of another one's total."""
    return replace(
        now,
        total=dict(now.total)
        | {one.name: compared.total[one.name] for one in compared.columns[-CHANGES:]},
    )


def joined(now: Report, so_far: Report) -> Report:
    """Return a report with the columns of change of another one, row by row.

    A row that only the other report has, spent earlier and no more, is added with zeros.
    """
    changes = so_far.columns[-CHANGES:]
    of_row = {_key(so_far, row): row[-CHANGES:] for row in so_far.rows}
    nothing: tuple[Cell, ...] = (Decimal(0), Decimal(0), None)
    rows = [(*row, *of_row.pop(_key(now, row), nothing)) for row in now.rows]
    rows += [(*_zeros(now, key), *cells) for key, cells in of_row.items()]
    return replace(
        now,
        columns=(*now.columns, *changes),
        rows=tuple(rows),
        total=dict(now.total) | {one.name: so_far.total[one.name] for one in changes},
    )


def _label(question: Question) -> str:
    """Return the earlier time of a question for people."""
    before = question.before()
    if before.month is not None:
        return Period(month=f"{before.month:%Y-%m}").label
    return Period(days=before.days).label


def _key(report: Report, row: tuple[Cell, ...]) -> tuple[Cell, ...]:
    """Return the names of a row."""
    return tuple(
        cell for cell, column in zip(row, report.columns, strict=True) if column.kind in _NAMES
    )


def _zeros(report: Report, names: tuple[Cell, ...]) -> tuple[Cell, ...]:
    """Return the row of a group in which nothing happened."""
    return (*names, *(_zero(one) for one in report.columns if one.kind not in _NAMES))


def _zero(column: Column) -> Cell:
    """Return the cell of nothing: 0 for counts and amounts, None for the others."""
    if " per " in column.unit:
        return None
    if column.kind is ColumnKind.COUNT:
        return 0
    return Decimal(0) if column.kind is ColumnKind.MONEY else None
