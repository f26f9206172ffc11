"""Shows a picker over the values of one column of a report, and keeps its choice in the page's
address.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from dashboard.filters import pick_from
from gateway.reports import Report


def pick(label: str, values: Iterable[object], *, name: str, everything: str) -> str | None:
    """Show a picker of the values, sorted; return the choice, None for all.

    A value of the address that is not among them is one more option: it matches nothing.
    """
    options = [everything, *sorted({str(value) for value in values if value is not None})]
    picked = pick_from(label, options, name, default=everything)
    return None if picked == everything else picked


def rows_with(report: Report, **wanted: Any) -> Report:
    """Return the report with the rows alone that have these values; None matches all."""
    asked = {name: value for name, value in wanted.items() if value is not None}
    names = [column.name for column in report.columns]
    rows = tuple(
        row
        for row in report.rows
        if all(row[names.index(name)] == value for name, value in asked.items())
    )
    return replace(report, rows=rows)
