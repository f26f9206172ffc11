"""Draws one report with its headlines, table and download: as a page of its own, or as a panel of
another one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import streamlit as st

from dashboard import empty_states
from dashboard.display import cell, heading
from dashboard.downloads import csv_button
from dashboard.filters import dataset
from dashboard.notes import show_notes
from dashboard.shell.bar import Applies, show_bar
from dashboard.shell.choices import Choices
from dashboard.shell.leading import refusals_shown, requests_button
from dashboard.source import answer, newest_event
from dashboard.tables import show_report
from gateway.reports.dimensions import Dimension
from gateway.reports.registry import REPORTS
from gateway.reports.report import Report

BY = {
    "Team": Dimension.TEAM,
    "Model": Dimension.MODEL,
    "Provider": Dimension.PROVIDER,
    "Route": Dimension.ROUTE,
    "Cost centre": Dimension.COST_CENTRE,
    "Project": Dimension.PROJECT,
    "Day": Dimension.DAY,
}


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


def show_page(title: str, shown: ShownReport) -> None:
    """Show a page about a time: its title, the bar, and its report."""
    st.title(title)
    if newest_event(dataset()) is None:
        empty_states.show_no_data(dataset())
        return
    splits = [by for by in shown.splits.values() if by.value not in st.query_params]
    converts = not REPORTS[shown.report].usd_alone
    choices = show_bar(Applies(currency=converts, splits=_first(splits, shown)))
    with refusals_shown(choices):
        report = show_panel(shown, choices)
        if report is None:
            empty_states.show_nothing_matches(choices.label, is_filtered=bool(choices.where))
        else:
            show_notes(report)


def _first(splits: Sequence[Dimension], shown: ShownReport) -> Sequence[Dimension]:
    """Return the splits with the report's own one first; none if it has no split at first."""
    if shown.split is None:
        return ()
    own = shown.splits[shown.split]
    return [*([own] if own in splits else []), *(one for one in splits if one is not own)]


def show_panel(shown: ShownReport, choices: Choices) -> Report | None:
    """Show a report's headlines, table and download, and return it; None, and nothing, if it has no
    rows.
    """
    by = _split(shown, choices)
    with st.spinner("Reading …", show_time=True):
        report = answer(shown.report, choices.question(by=None if by is None else (by,)))
    if not report.rows:
        return None
    _show_headlines(report, [choices.money(name) for name in shown.headlines])
    st.caption(shown.about)
    names = () if by is None else (by,)
    show_report(report, (*names, *shown.fixed, *(choices.money(name) for name in shown.columns)))
    with st.container(horizontal=True):
        csv_button(st, report, name=f"{shown.report}-{choices.file_label}")
        requests_button(st, choices, key=f"requests_{shown.report}")
    return report


def _split(shown: ShownReport, choices: Choices) -> str | None:
    """Return the split of a report: the reader's if it has that one, else its own if the filters
    leave more than one part of it.
    """
    if shown.split is None:
        return None
    left = [one.value for one in shown.splits.values() if one.value not in choices.where]
    own = shown.splits[shown.split].value
    return choices.by if choices.by in left else own if own in left else left[0]


def _show_headlines(report: Report, names: Sequence[str]) -> None:
    """Show figures of the report's total as cards."""
    columns = {column.name: column for column in report.columns}
    for card, name in zip(st.columns(len(names)), names, strict=True):
        column = columns[name]
        text = cell(column, report.total.get(name)).replace("$", "\\$")
        card.metric(heading(column), text, border=True)
