"""Finds and picks rows of a report by the values of its columns."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import streamlit as st

from gateway.reports.report import Report


def values_of(report: Report, name: str) -> list[str]:
    """Return the known values of a column, sorted."""
    return sorted({str(row[name]) for row in report.records() if row[name] is not None})


def pick(label: str, report: Report, name: str, *, everything: str) -> str | None:
    """Show a picker of a column's values, which stands in the address; return the choice, None for
    all.

    A value of the address that is not among them is one more option: it matches nothing.
    """
    options = [everything, *values_of(report, name)]
    wanted = st.query_params.get(name, everything)
    if wanted not in options:
        options.append(wanted)
    picked = st.selectbox(label, options, index=options.index(wanted))
    if picked == everything:
        st.query_params.pop(name, None)
        return None
    st.query_params[name] = picked
    return picked


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
