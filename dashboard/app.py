"""Runs one page view of the dashboard: sign-in check, menu, dataset switch and the chosen page, or
an error page if the database is not configured, too slow or unavailable.

Run by `tollgate dashboard`, which sets TOLLGATE_REPORTS_URL.
"""

from __future__ import annotations

from pathlib import Path

import streamlit as st
from streamlit.navigation.page import Page

from dashboard import access, address, empty_states, sign_in
from dashboard.filters import choose_dataset
from dashboard.shell.choices import keep_choices, restore_choices
from dashboard.shell.leading import follow
from dashboard.shell.search import show_search
from dashboard.source import NotConfigured, hours_not_summed, is_demo_ledger
from dashboard.views import (
    budgets_and_forecast,
    events,
    latency,
    my_team,
    quality,
    receipt,
    selfhost,
)
from dashboard.views.books import close
from dashboard.views.records import audit, prices, refusals, residency
from dashboard.views.spend import models, overview, teams
from dashboard.visitors.person_limits import TURNS, TooManyPages
from gateway.errors import DatabaseTooSlow, DatabaseUnavailable
from gateway.reports.report import Dataset

LOGO, ICON = (
    Path(__file__).parent / name for name in ("logo.svg", "icon.svg")
)  # nothing is fetched from outside
# The menu: its sections and their pages, in the order in which they are shown.
MENU = {
    "Spend": (overview, teams, models, budgets_and_forecast),
    "Operations": (selfhost, events, receipt, latency, quality, refusals, residency),
    "Books": (close, prices, audit),
}
# Pages that show facts of the whole organisation: a team lead does not get them.
OF_ORGANISATION = (selfhost, residency, close, audit)


def main() -> None:
    """Show the page that the reader chose, after the sign-in."""
    st.set_page_config(page_title="Tollgate", page_icon=str(ICON), layout="wide")
    st.logo(str(LOGO), size="large")
    sign_in.require()
    sign_in.require_role()
    menu = _menu()
    page = st.navigation(menu, expanded=True)
    follow([each for pages in menu.values() for each in pages])
    address.restore_query(page.url_path)
    restore_choices()
    try:
        _show(page)
    except NotConfigured:
        empty_states.show_not_configured()
    except DatabaseTooSlow:
        empty_states.show_too_slow(hours_not_summed())
    except DatabaseUnavailable as away:
        empty_states.show_away(away.message)


def _menu() -> dict[str, list[Page]]:
    """Return the sections of the person's menu with their pages, the first page first."""
    viewer = access.viewer()
    hidden = () if viewer.access.sees_all else OF_ORGANISATION
    menu = {
        section: [view.page() for view in views if view not in hidden]
        for section, views in MENU.items()
    }
    if viewer.access.teams:
        menu = {"Mine": [my_team.page()], **menu}
    return {section: pages for section, pages in menu.items() if pages}


def _show(page: Page) -> None:
    """Show the sidebar, the marks of generated data and the page."""
    with st.sidebar:
        dataset = choose_dataset()
        show_search()
        st.caption("Money in USD unless chosen otherwise. Days and months in UTC.")
    if dataset is Dataset.DEMO:
        st.warning("**Demo data.** Generated figures, not real spend.", icon=":material/science:")
    elif is_demo_ledger():
        st.warning(
            "**Demo ledger.** Its events were generated, they are not real spend.",
            icon=":material/science:",
        )
    try:
        with TURNS.turn(access.viewer().person):
            page.run()
    except TooManyPages:
        st.warning("Too many of your pages load at once. Close some tabs, then reload this one.")
    address.remember_query(page.url_path)
    keep_choices()


main()
