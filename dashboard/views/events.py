"""Draws the page of the single attempts behind a total, with filters, 50 rows a page and CSV
downloads; a picked row opens its request's receipt.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NoReturn
from uuid import UUID

import streamlit as st

from dashboard import address, empty_states
from dashboard.display import count, inert, money
from dashboard.downloads import csv_button
from dashboard.filters import (
    DATASET_KEY,
    address_filters,
    choose,
    choose_month,
    dataset,
    month_name,
    question,
)
from dashboard.notes import show_notes
from dashboard.source import answer, whole_csv
from dashboard.tables import show_report
from dashboard.views import receipt
from gateway.reports import BadUsage, Dataset, Dimension

PAGE_ROWS = 50
PICKERS = (
    Dimension.TEAM,
    Dimension.MODEL,
    Dimension.DEPLOYMENT,
    Dimension.OUTCOME,
    Dimension.USAGE_SOURCE,
)
PICKERS_IN_ROW = 3
PICKER_ROWS = -(-(1 + len(PICKERS)) // PICKERS_IN_ROW)  # the month's first
COLUMNS = (
    "occurred_at",
    "team",
    "model",
    "outcome",
    "input_tokens",
    "output_tokens",
    "cost_usd",
    "held_usd",
    "usage_source",
    "ttft_s",
    "duration_s",
    "project",
    "route",
    "deployment",
    "region",
    "attempt",
    "tags",
    "request_id",
)


def page() -> st.Page:
    """Return the page of single requests for the menu."""
    return st.Page(show, title="Requests", icon=":material/list_alt:", url_path="events")


def open_events(*, month: str, where: Mapping[Dimension, str]) -> NoReturn:
    """Open the page of the events behind a total, with its month and filters."""
    address.opens(page().url_path)
    chosen = {DATASET_KEY: Dataset.DEMO.value} if dataset() is Dataset.DEMO else {}
    st.switch_page(
        page(),
        query_params=chosen
        | {"month": month}
        | {each.value: value for each, value in where.items()},
    )


def show() -> None:
    """Show the page of single requests: filters, a page of events, and downloads as CSV."""
    title, save, save_all = st.columns([6.5, 1.4, 1.6], vertical_alignment="bottom")
    title.title("Requests")
    if answer("months", question(month="all")).complete_until is None:
        empty_states.show_no_data(dataset())
        return
    # In two rows: side by side, names such as "All deployments" were cut at 1280 pixels.
    pickers = [place for _ in range(PICKER_ROWS) for place in st.columns(PICKERS_IN_ROW)]
    with pickers[0]:
        month = choose_month()
    where = address_filters(other_than=PICKERS)
    for place, dimension in zip(pickers[1:], PICKERS, strict=False):
        with place:
            where[dimension] = choose(dimension, month=month)
    try:
        everything = question(month=month, where=where)
    except BadUsage as wrong:
        st.error(inert(wrong.message))
        return
    attempts = answer("overview", everything).total["attempts"]
    if not attempts:
        empty_states.show_nothing_matches(month_name(month), is_filtered=any(where.values()))
        return
    pages = -(-int(str(attempts)) // PAGE_ROWS)
    number = st.session_state.get("page_number", 1) if pages > 1 else 1
    number = min(number, pages)
    report = answer(
        "events",
        question(month=month, where=where, limit=PAGE_ROWS, offset=(number - 1) * PAGE_ROWS),
    )
    csv_button(
        save,
        report,
        name=f"events-{month}-page-{number}",
        label="This page",
        help=f"The {len(report.rows)} events of this page, as CSV.",
    )
    csv_button(
        save_all,
        whole_csv("events", everything),
        name=f"events-{month}",
        label=f"All {int(str(attempts)):,}",
        help="Every event that matches, as CSV. On the command line: tollgate report events "
        "--format csv",
    )
    total = report.total
    line, pager = st.columns([5, 1.4], vertical_alignment="bottom")
    line.markdown(
        f"**{inert(count(attempts))} attempts · {inert(money(total['cost_usd']))}**  \nPick a "
        "row to see its receipt."
    )
    pager.number_input(
        f"Page {number:,} of {pages:,}", 1, pages, key="page_number", disabled=pages == 1
    )
    picked = show_report(report, COLUMNS, key=f"events_{dataset()}_{month}_{number}")
    if picked is not None:
        receipt.open_receipt(UUID(str(report.records()[picked]["request_id"])))
    show_notes(report)
