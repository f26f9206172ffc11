"""Draws the page *Refusals*: refused requests over time by code, by team, project, key or route,
and the latest ones, each with its remedy.
"""

from __future__ import annotations

import streamlit as st

from dashboard import charts
from dashboard.display import count, counted, inert, moment
from dashboard.downloads import csv_button
from dashboard.filters import dataset
from dashboard.notes import show_notes
from dashboard.shell.bar import Applies, label_of, show_bar
from dashboard.shell.choices import Choices
from dashboard.source import answer
from dashboard.tables import show_report
from dashboard.views.records.pickers import values_of
from gateway.reports.dimensions import Dimension
from gateway.reports.report import Dataset, Report

# Refused requests have a caller, a route and a time, and no cost.
SPLITS = (Dimension.TEAM, Dimension.PROJECT, Dimension.KEY, Dimension.ROUTE)
APPLIES = Applies(filters=(*SPLITS, Dimension.DAY), splits=SPLITS)
LATEST = (Dimension.HOUR, Dimension.TEAM, Dimension.ROUTE)
FIGURES = ("code", "rule", "rules", "requests", "share", "last_hour", "remedy")
MOST_LATEST = 50


def page() -> st.Page:
    """Return the page *Refusals* for the menu."""
    return st.Page(show, title="Refusals", icon=":material/block:", url_path="refusals")


def show() -> None:
    """Show the page: headlines, the chart, a table by the chosen split, and the latest ones."""
    st.title("Refusals")
    if dataset() is Dataset.DEMO:
        st.info("Demo data have no refused requests. Switch to real data at the left.")
        return
    choices = show_bar(APPLIES, values=_refused)
    by_code = answer("refusals", choices.question(by=()))
    if not by_code.rows:
        these = ", with these filters" if choices.where else ""
        text = f"No request was refused ({inert(choices.label)}{these})."
        st.success(text, icon=":material/check_circle:")
        show_notes(by_code)
        return
    _show_headlines(by_code)
    _show_over_time(choices)
    _show_split(choices)
    _show_latest(choices)
    show_notes(by_code)


def _refused(choices: Choices, one: Dimension) -> list[str]:
    """Return the values of a dimension with refused requests, also without any spending."""
    asked = choices.unfiltered.question(by=(one.value,), has_currency=False)
    return values_of(answer("refusals", asked), one.value)


def _show_headlines(by_code: Report) -> None:
    """Show the number of refused requests, the most frequent code and the last hour."""
    rows = by_code.records()
    cards = st.columns(3)
    cards[0].metric("Refused requests", count(by_code.total["requests"]), border=True)
    top = rows[0]
    cards[1].metric(
        "Most frequent",
        inert(str(top["code"])),
        border=True,
        delta=counted(top["requests"], "request"),
        delta_color="off",
        delta_arrow="off",
    )
    newest = max(rows, key=lambda row: str(row["last_hour"]))["last_hour"]
    cards[2].metric("Last refused in the hour from", f"{moment(newest)[:16]} UTC", border=True)


def _show_over_time(choices: Choices) -> None:
    """Show the refused requests of each day by code."""
    points = answer("refusals", choices.question(by=(Dimension.DAY.value,))).records()
    st.subheader("Over time")
    charts.stacked_days(
        charts.keep_largest(points, group="code", size="requests"),
        group="code",
        size="requests",
        size_title="Refused requests",
        read=count,
        size_format=",d",
        alt_text="Refused requests of each day, by error code",
    )


def _show_split(choices: Choices) -> None:
    """Show the refused requests by code and the split that the reader chooses."""
    by = choices.by or SPLITS[0].value
    st.subheader(f"By {label_of(by).lower()}, code and remedy")
    report = answer("refusals", choices.question(by=(by,)))
    show_report(report, (by, *FIGURES))
    csv_button(st, report, name=f"refusals-{choices.file_label}-by-{by}")


def _show_latest(choices: Choices) -> None:
    """Show the latest hours with refused requests."""
    st.subheader("Latest")
    report = answer("refusals", choices.question(by=tuple(one.value for one in LATEST)))
    show_report(
        report.page(limit=MOST_LATEST, offset=0),
        (*(one.value for one in LATEST), "code", "rules", "requests", "remedy"),
    )
    csv_button(st, report, name=f"refusals-{choices.file_label}-by-hour")
    if len(report.rows) > MOST_LATEST:
        st.caption(f"The newest {MOST_LATEST} of {len(report.rows):,} rows; the file has all.")
