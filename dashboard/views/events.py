"""Draws the page of the single attempts behind a total, with filters, 50 rows a page and CSV
downloads; a picked row opens its request's receipt.
"""

from __future__ import annotations

from uuid import UUID

import streamlit as st

from dashboard import empty_states
from dashboard.display import count, inert, money
from dashboard.downloads import MOST_ATTEMPTS, csv_button
from dashboard.filters import dataset
from dashboard.notes import show_notes
from dashboard.shell.bar import Applies, show_bar
from dashboard.shell.choices import Choices
from dashboard.shell.leading import refusals_shown
from dashboard.source import answer, newest_event, whole_csv
from dashboard.tables import show_report
from dashboard.views import receipt
from gateway.reports.report import Report

PAGE_ROWS = 50
COLUMNS = (
    "occurred_at",
    "cost_usd",
    "team",
    "model",
    "outcome",
    "input_tokens",
    "output_tokens",
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


def show() -> None:
    """Show the page of single requests: filters, a page of events, and downloads as CSV."""
    st.title("Requests")
    if newest_event(dataset()) is None:
        empty_states.show_no_data(dataset())
        return
    choices = show_bar(Applies())
    with refusals_shown(choices):
        _show_figures(choices)


def _show_figures(choices: Choices) -> None:
    """Show a page of events with its total, its pager and its downloads."""
    wanted = max(1, int(st.session_state.get("page_number", 1)))
    report, number = _page_of_events(choices, wanted)
    attempts = int(str(report.total["attempts"]))
    if not attempts:
        empty_states.show_nothing_matches(choices.label, is_filtered=bool(choices.where))
        return
    pages = -(-attempts // PAGE_ROWS)
    total = report.total
    st.markdown(
        f"**{inert(count(attempts))} attempts · {inert(money(total['cost_usd']))}**  \nPick a "
        "row to see its receipt."
    )
    with st.container(horizontal=True, vertical_alignment="bottom"):
        st.session_state["page_number"] = number
        st.number_input(
            f"Page {count(number)} of {count(pages)}",
            1,
            pages,
            key="page_number",
            disabled=pages == 1,
            width=150,
        )
        csv_button(
            st,
            report,
            name=f"events-{choices.file_label}-page-{number}",
            label="This page",
            help=f"The {len(report.rows)} events of this page, as CSV.",
        )
        if attempts <= MOST_ATTEMPTS:
            csv_button(
                st,
                whole_csv("events", choices.question()),
                name=f"events-{choices.file_label}",
                label=f"All {count(attempts)}",
                help="Every event that matches, as CSV. On the command line: tollgate report "
                "events --format csv",
            )
    if attempts > MOST_ATTEMPTS:
        st.caption(
            f"A file of this page has at most {count(MOST_ATTEMPTS)} attempts: choose a shorter "
            "time or a filter, or write it in a shell: `tollgate report events --format csv`"
        )
    shown = f"{dataset()}_{choices.file_label}_{sorted(choices.where.items())}_{number}"
    picked = show_report(report, COLUMNS, key=f"events_{shown}")
    if picked is not None:
        receipt.open_receipt(UUID(str(report.records()[picked]["request_id"])))
    show_notes(report)


def _page_of_events(choices: Choices, number: int) -> tuple[Report, int]:
    """Return a page of events and its number: the last page if there are fewer."""
    for _ in range(2):
        asked = choices.question(limit=PAGE_ROWS, offset=(number - 1) * PAGE_ROWS)
        report = answer("events", asked)
        pages = max(1, -(-int(str(report.total["attempts"])) // PAGE_ROWS))
        if number <= pages:
            break
        number = pages
    return report, number
