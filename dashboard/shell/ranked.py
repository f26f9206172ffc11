"""Cuts a report's rows to the largest and the rest, with the total below, and shows them as a table
whose rows lead one level down.

So a company of 300 teams reads like one of 3, and every table adds up on the page.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import partial
from typing import Any

from dashboard.display import cell, heading, means_nothing
from dashboard.filters import as_option
from dashboard.tables import NUMBERS, show_cells
from gateway.reports.dimensions import TIME, UNALLOCATED
from gateway.reports.report import Cell, Column, ColumnKind, Report

MOST_ROWS = 15
TOTAL = "Total"
Row = Mapping[str, Cell]
_SUMS = (ColumnKind.MONEY, ColumnKind.COUNT)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranked:
    """The rows of a report to show: the largest ones, and the sum of the others."""

    rows: Sequence[Row]
    rest: Row | None
    hidden: int


def ranked(report: Report, *, by: str, most: int = MOST_ROWS) -> Ranked:
    """Return the first rows of a report and the sum of the others; one row too many is no rest."""
    rows, others = first_of(report.records(), by=by, most=most)
    rest = rest_of(report, others) if others else None
    return Ranked(rows=rows, rest=rest, hidden=len(others))


def first_of(rows: Sequence[Row], *, by: str, most: int) -> tuple[Sequence[Row], Sequence[Row]]:
    """Return the rows to show, and the others.

    `unallocated` is always shown: a fee without a model is not one of "3 other models".
    """
    named = [row for row in rows if row[by] != UNALLOCATED]
    if len(named) <= most + 1:
        return rows, []
    largest = named[:most]
    own = [row for row in rows if row[by] == UNALLOCATED]
    return [*largest, *own], named[most:]


def rest_of(report: Report, others: Sequence[Row]) -> Row:
    """Return the sum of rows, column by column; None in a column that does not add up.

    A change is recomputed from its sums. Of unknown amounts alone the sum is unknown.
    """
    found: dict[str, Cell] = {}
    for column in report.columns:
        known = [row[column.name] for row in others if row[column.name] is not None]
        adds_up = (column.kind in _SUMS and not _is_rate(column)) or column.name == "share"
        found[column.name] = _sum(known) if adds_up and known else None
    change = next((one.name for one in report.columns if one.name.startswith("change_")), None)
    if change is not None:
        found["change_share"] = _share(found[change], found[change.replace("change_", "previous_")])
    return found


def _is_rate(column: Column) -> bool:
    """Return True for a column of one sum by another."""
    return " per " in column.unit


def _sum(cells: Sequence[Cell]) -> Cell:
    """Return the sum of counts or amounts."""
    if all(isinstance(one, int) for one in cells):
        return sum(int(str(one)) for one in cells)
    return sum((Decimal(str(one)) for one in cells), Decimal(0))


def _share(part: Cell, whole: Cell) -> Decimal | None:
    """Return a part of a whole, None without one."""
    return Decimal(str(part)) / Decimal(str(whole)) if part is not None and whole else None


def show_ranked(
    report: Report,
    *,
    by: str,
    names: Sequence[str],
    key: str,
    on_pick: Callable[[str], None],
    most: int = MOST_ROWS,
    on_rest: Callable[[], None] | None = None,
    words: str = "others",
) -> None:
    """Show the largest rows, the rest and the total as a table of the group and the named columns.

    A picked row calls `on_pick` with its value, the row of the rest calls `on_rest`. A split by
    time keeps all its rows.
    """
    found = ranked(report, by=by, most=len(report.rows) if by in TIME else most)
    rows: list[Row] = [*found.rows]
    labels = [as_option(row[by]) for row in rows]
    if found.rest is not None:
        rows.append(found.rest)
        labels.append(f"{found.hidden:,} {words}")
    rows.append(report.total)
    labels.append(TOTAL)
    columns = {one.name: one for one in report.columns}
    shown: dict[str, Sequence[Cell]] = {heading(columns[by]): labels}
    reads: dict[str, Callable[[Any], str]] = {}
    for name in names:
        column = columns[name]
        shown[heading(column)] = _without_gaps(column, [row.get(name) for row in rows])
        reads[heading(column)] = partial(_read, column)

    def picked(place: int) -> None:
        if place < len(found.rows):
            on_pick(as_option(found.rows[place][by]))
        elif found.rest is not None and place == len(found.rows) and on_rest is not None:
            on_rest()

    show_cells(
        shown,
        reads,
        numbers=[heading(columns[name]) for name in names if columns[name].kind in NUMBERS],
        key=key,
        on_pick=picked,
        shaded=[len(rows) - 1],
    )


def _without_gaps(column: Column, values: Sequence[Cell]) -> Sequence[Cell]:
    """Return the cells as text if an empty one means that there is none, which the grid would call
    unknown; the rest has no rates.
    """
    if None in values and (means_nothing(column) or _is_rate(column)):
        return ["–" if value is None else cell(column, value) for value in values]
    return values


def _read(column: Column, value: Cell) -> str:
    """Return a cell as text for people; a cell that is text already stays unchanged."""
    return value if isinstance(value, str) else cell(column, value)
