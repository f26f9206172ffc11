"""Declares a report's answer (typed columns with units, rows, a total, notes) and cuts pages out of
it; queries nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import date, datetime
from decimal import Decimal
from enum import StrEnum

from gateway.domain.reports.comparison import Comparison

# None is unknown or not reported, never 0.
Cell = str | int | float | Decimal | bool | date | datetime | None


class ColumnKind(StrEnum):
    """A column's kind, so that every front end formats it alike."""

    TEXT = "text"
    COUNT = "count"
    MONEY = "money"
    SHARE = "share"  # 0 to 1
    SECONDS = "seconds"
    HOURS = "hours"
    DAY = "day"
    TIME = "time"
    FLAG = "flag"


class Notation(StrEnum):
    """The way in which CSV and JSON write moments and decimals.

    PLAIN: milliseconds, no digit that is not needed. FOCUS: whole seconds, as its Date/Time Format
    demands, and in CSV a decimal point in each decimal: a loader would read `96` as an integer.
    """

    PLAIN = "plain"
    FOCUS = "focus"


class Dataset(StrEnum):
    """The events that a report reads. Real and demo are never mixed: each is a view of its own."""

    REAL = "real"
    DEMO = "demo"


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A column's name is stable; `unit` is the unit of one cell (`USD`, `tokens`, `s`), empty
    for names. `notation` is the way in which texts write its values.
    """

    name: str
    unit: str
    kind: ColumnKind
    notation: Notation = Notation.PLAIN


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The answer to one finance question.

    `rows` have one cell per column. `total` is over the events, not over the rows, by column name.
    `dataset` is `real`, `demo`, or `demo-ledger` for generated events that count as real ones.
    `complete_until` is the newest event recorded in the dataset, None if it is empty. `comparison`
    has the times of its columns of change.
    """

    name: str
    title: str
    dataset: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    total: Mapping[str, Cell]
    complete_until: datetime | None
    notes: tuple[str, ...]
    comparison: Comparison | None = None

    def records(self) -> list[dict[str, Cell]]:
        """Return the report's rows as dictionaries by column name."""
        names = [column.name for column in self.columns]
        return [dict(zip(names, row, strict=True)) for row in self.rows]

    @property
    def lines(self) -> tuple[tuple[Cell, ...], ...]:
        """The rows; of a report without a split, which has none, its total as the only row. So a
        format that has no place for a total has the figures too.
        """
        names = [column.name for column in self.columns]
        if self.rows or not all(name in self.total for name in names):
            return self.rows
        return (tuple(self.total[name] for name in names),)

    def with_unknown(self, name: str) -> Report:
        """Return the report with one column unknown, in its rows and its total."""
        place = next(at for at, one in enumerate(self.columns) if one.name == name)
        rows = tuple((*row[:place], None, *row[place + 1 :]) for row in self.rows)
        return replace(self, rows=rows, total=dict(self.total) | {name: None})

    def page(self, *, limit: int | None, offset: int) -> Report:
        """Return the report with one page of its rows, and a note that names them.

        The total still covers all events.
        """
        last = len(self.rows) if limit is None else offset + limit
        rows = self.rows[offset:last]
        if len(rows) == len(self.rows):
            return self
        listed = listed_note("Rows", count=len(self.rows), first=offset + 1, rows=len(rows))
        return replace(self, rows=rows, notes=(listed, *self.notes))


def listed_note(noun: str, *, count: int, first: int, rows: int) -> str:
    """Return the note that tells which of all `count` rows a page lists; `noun` names the rows."""
    if not rows:
        return f"No {noun.lower()} here; there are {count:,}."
    return f"{noun} {first:,} to {first + rows - 1:,} of {count:,}."


@dataclass(frozen=True, slots=True, kw_only=True)
class Export:
    """A report whose rows are read one by one, so that any number of them fits into memory.

    `rows` are valid until the export is closed. `report` has everything else; its own rows are
    empty if they are streamed.
    """

    report: Report
    rows: Iterator[tuple[Cell, ...]]
