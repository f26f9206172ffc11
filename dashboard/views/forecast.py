"""Draws the forecast: the running month's spending at its end with its interval, the months
ahead, and days that stand out.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date

import streamlit as st

from dashboard import charts, empty_states
from dashboard.display import money
from dashboard.downloads import csv_button
from dashboard.filters import dataset
from dashboard.notes import show_notes
from dashboard.shell.bar import Applies, label_of, show_bar
from dashboard.shell.choices import FILTERS, Choices
from dashboard.shell.leading import refusals_shown
from dashboard.shell.period import today
from dashboard.source import answer, newest_event
from dashboard.tables import show_report
from gateway.reports.dimensions import Dimension
from gateway.reports.report import Cell, Report

SPLITS = (
    Dimension.TEAM,
    Dimension.COST_CENTRE,
    Dimension.MODEL,
    Dimension.PROJECT,
    Dimension.KEY,
)
# It looks ahead from the present day, whatever time the reader chose.
ABOUT_NOW = Applies(
    filters=[one for one in FILTERS if one is not Dimension.DAY],
    days=False,
    month=False,
    splits=SPLITS,
)
FIGURES = ("spent_usd", "forecast_usd", "low_usd", "high_usd", "previous_usd")
SPIKE = ("spent_usd", "usual_usd", "change_usd", "model", "key", "driver_usd")


def show_forecast() -> None:
    """Show the forecast: headlines, a table, the months ahead, and spikes."""
    if newest_event(dataset()) is None:
        empty_states.show_no_data(dataset())
        return
    choices = show_bar(ABOUT_NOW)
    with refusals_shown(choices):
        _show_figures(choices)


def _show_figures(choices: Choices) -> None:
    """Show the forecast of the running month, the months ahead and the spikes, by the split."""
    by = choices.by or SPLITS[0].value
    with st.spinner("Forecasting …", show_time=True):
        report = answer("forecast", choices.question(by=(by,)))
    _show_headlines(report.total)
    st.subheader(f"{today():%B %Y}, by {label_of(by).lower()}")
    show_report(report, (by, *FIGURES))
    csv_button(st, report, name=f"forecast-by-{by}")
    ahead = _show_months_ahead(choices)
    _show_spikes(choices, by)
    show_notes(report, ahead)


def _show_headlines(total: Mapping[str, Cell]) -> None:
    """Show the month's spending so far, its forecast, and the interval that it lies in."""
    cards = st.columns(3)
    cards[0].metric("Spent so far, USD", _amount(total["spent_usd"]), border=True, height="stretch")
    cards[1].metric(
        "At the month's end, USD",
        _amount(total["forecast_usd"]),
        border=True,
        height="stretch",
        delta=f"{_amount(total['previous_usd'])} in the month before",
        delta_color="off",
        delta_arrow="off",
    )
    is_known = total["low_usd"] is not None
    between = f"{_amount(total['low_usd'])} to {_amount(total['high_usd'])}"
    cards[2].metric(
        "In four of five cases, USD",
        between if is_known else "not tested yet",
        border=True,
        height="stretch",
        help="Made of the misses of earlier forecasts; the notes say how many it held.",
    )


def _show_months_ahead(choices: Choices) -> Report:
    """Show the coming months with their ranges."""
    report = answer("outlook", choices.question())
    st.subheader("The months ahead")
    if not report.rows:
        return report
    charts.ranges(
        [{**row, "month": _short(row["month"])} for row in report.records()],
        place="month",
        size="forecast_usd",
        ends=("low_usd", "high_usd"),
        size_title="Spend in the month, USD",
        read=money,
        size_format=charts.MONEY_AXIS,
        alt_text="Expected spending of each coming month, with its range",
    )
    csv_button(st, report, name="outlook")
    return report


def _short(month: Cell) -> str:
    """Return a month `2026-12` for an axis, `Dec 2026`."""
    return f"{date.fromisoformat(f'{month}-01'):%b %Y}"


def _show_spikes(choices: Choices, by: str) -> None:
    """Show the days of the last four weeks that stand out."""
    st.subheader("Days that stand out")
    report = answer("spikes", choices.question(by=(by,)))
    if not report.rows:
        st.caption("None in the last four weeks.")
        return
    show_report(report, ("day", by, *SPIKE))
    csv_button(st, report, name=f"spikes-by-{by}")
    st.caption(
        f"Days of a {label_of(by).lower()} that differ from the usual weekday. A key that runs "
        "away: tollgate key pause KEY"
    )


def _amount(amount: Cell) -> str:
    """Return an amount for a metric, with its dollar sign escaped for Markdown."""
    return money(amount).replace("$", "\\$")
