"""Draws the page *Refusals*: refused requests over time by code, by team or route, and the latest
ones, each with its remedy.
"""

from __future__ import annotations

from collections.abc import Mapping

import streamlit as st

from dashboard import charts
from dashboard.display import count, counted, inert, moment
from dashboard.downloads import csv_button
from dashboard.filters import choose_month, dataset, month_name, question
from dashboard.notes import show_notes
from dashboard.source import answer
from dashboard.tables import show_report
from dashboard.views.records.pickers import pick
from gateway.reports import Dataset, Dimension, Report

SPLITS: Mapping[str, tuple[Dimension, ...]] = {
    "Code": (),
    "Team": (Dimension.TEAM,),
    "Route": (Dimension.ROUTE,),
    "Team and route": (Dimension.TEAM, Dimension.ROUTE),
}
LATEST = (Dimension.HOUR, Dimension.TEAM, Dimension.ROUTE)
FIGURES = ("code", "rules", "requests", "share", "last_hour", "remedy")
MOST_LATEST = 50
Where = Mapping[Dimension, str | None]


def page() -> st.Page:
    """Return the page *Refusals* for the menu."""
    return st.Page(show, title="Refusals", icon=":material/block:", url_path="refusals")


def show() -> None:
    """Show the page: headlines, the chart, a table by the chosen split, and the latest ones."""
    title, first, second, third = st.columns([4, 2, 2, 2], vertical_alignment="bottom")
    title.title("Refusals")
    if dataset() is Dataset.DEMO:
        st.info("Demo data have no refused requests. Switch to real data at the left.")
        return
    with first:
        month = choose_month()
    known = answer("refusals", question(month=month)).records()
    with second:
        team = pick("Team", (row["team"] for row in known), name="team", everything="All teams")
    with third:
        routes = (row["route"] for row in known)
        route = pick("Route", routes, name="route", everything="All routes")
    where = {Dimension.TEAM: team, Dimension.ROUTE: route}
    by_code = answer("refusals", question(month=month, by=(), where=where))
    if not by_code.rows:
        st.success(
            f"No request was refused ({month_name(month)}, with these filters).",
            icon=":material/check_circle:",
        )
        show_notes(by_code)
        return
    _show_headlines(by_code)
    _show_over_time(month, where)
    _show_split(month, where)
    _show_latest(month, where)
    show_notes(by_code)


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


def _show_over_time(month: str, where: Where) -> None:
    """Show the refused requests of each day by code."""
    points = answer("refusals", question(month=month, by=(Dimension.DAY,), where=where)).records()
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


def _show_split(month: str, where: Where) -> None:
    """Show the refused requests by the split that the reader chooses."""
    head, save = st.columns([8, 1.3], vertical_alignment="bottom")
    with head:
        st.subheader("By code and remedy")
        split = st.segmented_control(
            "Split by", list(SPLITS), default="Code", required=True, key="refusals_split"
        )
    by = SPLITS[split]
    report = answer("refusals", question(month=month, by=by, where=where))
    csv_button(save, report, name=f"refusals-{month}-by-{'-'.join(by) or 'code'}")
    show_report(report, (*(one.value for one in by), *FIGURES))


def _show_latest(month: str, where: Where) -> None:
    """Show the latest hours with refused requests."""
    head, save = st.columns([8, 1.3], vertical_alignment="bottom")
    head.subheader("Latest")
    report = answer("refusals", question(month=month, by=LATEST, where=where))
    csv_button(save, report, name=f"refusals-{month}-by-hour")
    show_report(
        report.page(limit=MOST_LATEST, offset=0),
        (*(one.value for one in LATEST), "code", "rules", "requests", "remedy"),
    )
    if len(report.rows) > MOST_LATEST:
        st.caption(f"The newest {MOST_LATEST} of {len(report.rows):,} rows; the file has all.")
