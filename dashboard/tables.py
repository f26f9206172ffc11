"""Shows reports and columns as Streamlit tables that sort by value but show formatted text, and
returns the row that the reader picks.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any, Literal

import pandas as pd
import streamlit as st

from dashboard.display import UNKNOWN, cell, heading, means_nothing
from gateway.reports.report import Cell, Column, ColumnKind, Report

NUMBERS = (
    ColumnKind.MONEY,
    ColumnKind.COUNT,
    ColumnKind.SECONDS,
    ColumnKind.HOURS,
    ColumnKind.SHARE,
)
MOST_ROWS_SHOWN, TALL_PX = 18, 560
# Of one table: each cell is formatted before the page is sent, and pandas formats 262,144 at most.
MOST_LISTED = 5_000
SHORT_NAME = 10  # letters
MOST_NAME_PX, PADDING_PX, LETTER_PX = 320, 24, 8
SHADE = "background-color: rgba(128, 138, 150, 0.16)"  # on both themes

Reads = Mapping[str, Callable[[Any], str]]  # the format of a column's cells, by heading


def show_report(report: Report, names: Sequence[str], *, key: str | None = None) -> int | None:
    """Show the named columns of a report as a table, of its first rows if there are too many; with
    `key` a row can be picked: return its position, else None.
    """
    columns = [next(c for c in report.columns if c.name == name) for name in names]
    places = [report.columns.index(column) for column in columns]
    cells = {
        column: [row[place] for row in report.rows[:MOST_LISTED]]
        for column, place in zip(columns, places, strict=True)
    }
    if len(report.rows) > MOST_LISTED:
        st.caption(f"The first {MOST_LISTED:,} of {len(report.rows):,} rows; the file has all.")
    return show_cells(
        {heading(column): _without_gaps(column, values) for column, values in cells.items()},
        {heading(column): partial(_read, column) for column in columns},
        numbers=[heading(column) for column in columns if column.kind in NUMBERS],
        key=key,
    )


def show_cells(
    columns: Mapping[str, Sequence[Cell]],
    reads: Reads,
    *,
    numbers: Sequence[str] = (),
    key: str | None = None,
    on_pick: Callable[[int], None] | None = None,
    shaded: Collection[int] = (),
) -> int | None:
    """Show a table of columns by heading: sorted by their values, formatted by `reads`; return the
    picked row.

    With `on_pick` a picked row calls it before the page is drawn again. `shaded` rows stand out, as
    a total does. The grid draws text on a canvas, so that Markdown or HTML in a name stays a name.
    """
    # As objects: pandas would turn money into floats and missing counts into NaN.
    frame = pd.DataFrame(
        {name: pd.Series(list(cells), dtype=object) for name, cells in columns.items()}
    )
    styled = frame.style.format(dict(reads))
    if shaded:
        styled = styled.apply(
            lambda row: [SHADE if row.name in shaded else ""] * len(row), axis="columns"
        )
    settings: dict[str, Any] = {
        "hide_index": True,
        "placeholder": UNKNOWN,
        "height": "content" if len(frame) <= MOST_ROWS_SHOWN else TALL_PX,
        "column_config": {
            name: st.column_config.Column(
                alignment="right" if name in numbers else None,
                width=_width(cells) if place == 0 and name not in numbers else None,
            )
            for place, (name, cells) in enumerate(columns.items())
        },
    }
    if key is None:
        st.dataframe(styled, **settings)
        return None

    def picked_row() -> None:
        if on_pick is not None and (rows := st.session_state[key].selection.rows):
            on_pick(rows[0])

    react: Literal["rerun"] | Callable[[], None] = "rerun" if on_pick is None else picked_row
    event = st.dataframe(
        styled,
        on_select=react,
        selection_mode="single-row",
        key=key,
        **settings,
    )
    picked = event.selection.rows
    return picked[0] if picked else None


def _width(cells: Sequence[Cell]) -> int | None:
    """Return the width of the column of names in pixels, so that the grid cuts none of them off;
    None, its own choice, for short ones.
    """
    longest = max((len(one) for one in cells if isinstance(one, str)), default=0)
    return None if longest <= SHORT_NAME else min(MOST_NAME_PX, PADDING_PX + LETTER_PX * longest)


def _without_gaps(column: Column, values: Sequence[Cell]) -> Sequence[Cell]:
    """Return a column's cells as text if its empty cells mean none: the grid would write `unknown`
    into them.
    """
    if None in values and means_nothing(column):
        return [cell(column, value) for value in values]
    return values


def _read(column: Column, value: Cell) -> str:
    """Return a cell as text for people; a cell that is text already stays unchanged."""
    return value if isinstance(value, str) else cell(column, value)
