"""Draws a page from one report: its headlines, split, table, download and notes.

A page of several questions asks only the chosen one: some of them read single events.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import streamlit as st

from dashboard import empty_states
from dashboard.display import cell, heading, inert
from dashboard.downloads import csv_button
from dashboard.filters import address_filters, choose_month, dataset, month_name, question
from dashboard.notes import show_notes
from dashboard.source import answer
from dashboard.tables import show_report
from gateway.reports import BadUsage, Dimension, Report

BY = {
    "Team": Dimension.TEAM,
    "Model": Dimension.MODEL,
    "Provider": Dimension.PROVIDER,
    "Route": Dimension.ROUTE,
    "Cost centre": Dimension.COST_CENTRE,
    "Project": Dimension.PROJECT,
    "Day": Dimension.DAY,
}
WITHOUT_TIME = {name: by for name, by in BY.items() if by is not Dimension.DAY}


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownReport:
    """A report on a page: the columns of its table and headlines, by name.

    `split` is the name of the first split, None for no split at first; `fixed` are columns of names
    that the report has by itself.
    """

    report: str
    about: str
    columns: Sequence[str]
    headlines: Sequence[str]
    split: str | None
    splits: Mapping[str, Dimension] = field(default_factory=lambda: BY)
    fixed: Sequence[str] = ()


def show_page(title: str, choose_report: Callable[[], ShownReport]) -> None:
    """Show a page about a month: its title, pickers, and the report that the reader chooses."""
    head, picker = st.columns([6, 2], vertical_alignment="bottom")
    head.title(title)
    if answer("months", question(month="all")).complete_until is None:
        empty_states.show_no_data(dataset())
        return
    with picker:
        month = choose_month()
    where = address_filters()
    shown = choose_report()
    split = st.segmented_control(
        "Split by",
        list(shown.splits),
        default=shown.split,
        required=shown.split is not None,
        key=f"split_{shown.report}",
    )
    by = None if split is None else (shown.splits[split],)
    try:
        asked = question(month=month, by=by, where=where)
    except BadUsage as wrong:
        st.error(inert(wrong.message))
        return
    with st.spinner("Reading…", show_time=True):
        report = answer(shown.report, asked)
    if not report.rows:
        empty_states.show_nothing_matches(month_name(month), is_filtered=any(where.values()))
        return
    _show_headlines(report, shown.headlines)
    st.caption(shown.about)
    names = () if by is None else (by[0].value,)
    show_report(report, (*names, *shown.fixed, *shown.columns))
    csv_button(st, report, name=f"{shown.report}-{month}", width="content")
    show_notes(report)


def _show_headlines(report: Report, names: Sequence[str]) -> None:
    """Show figures of the report's total as cards."""
    columns = {column.name: column for column in report.columns}
    for card, name in zip(st.columns(len(names)), names, strict=True):
        column = columns[name]
        text = cell(column, report.total.get(name)).replace("$", "\\$")
        card.metric(heading(column), text, border=True)
