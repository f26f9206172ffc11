"""Runs one page view of the dashboard: sign-in check, menu, dataset switch and the chosen page, or
an error page if the database is not configured, too slow or unavailable.

Run by `tollgate dashboard`, which sets TOLLGATE_REPORTS_URL.
"""

from __future__ import annotations

from pathlib import Path

import streamlit as st

from dashboard import access, address, empty_states, sign_in
from dashboard.filters import choose_dataset
from dashboard.source import NotConfigured, hours_not_summed, is_demo_ledger
from dashboard.views import (
    budgets,
    costs,
    engines,
    events,
    forecast,
    latency,
    my_team,
    quality,
    receipt,
    selfhost,
    spend,
)
from gateway.reports import DatabaseTooSlow, DatabaseUnavailable, Dataset

LOGO, ICON = (
    Path(__file__).parent / name for name in ("logo.svg", "icon.svg")
)  # nothing is fetched from outside


def main() -> None:
    """Show the page that the reader chose, after the sign-in."""
    st.set_page_config(page_title="Tollgate", page_icon=str(ICON), layout="wide")
    st.logo(str(LOGO), size="large")
    sign_in.require()
    sign_in.require_role()
    page = st.navigation(_pages())
    address.restore_query(page.url_path)
    with st.sidebar:
        dataset = choose_dataset()
        st.caption("Costs in USD. Days and months in UTC.")
    if dataset is Dataset.DEMO:
        st.warning("**Demo data.** Generated figures, not real spend.", icon=":material/science:")
    try:
        if dataset is Dataset.REAL and is_demo_ledger():
            st.warning(
                "**Demo ledger.** Its events were generated, they are not real spend.",
                icon=":material/science:",
            )
        page.run()
        address.remember_query(page.url_path)
    except NotConfigured:
        empty_states.show_not_configured()
    except DatabaseTooSlow:
        empty_states.show_too_slow(hours_not_summed())
    except DatabaseUnavailable as away:
        empty_states.show_away(away.message)


def _pages() -> list[st.Page]:
    """Return the pages of the person's menu, the first one first."""
    own = [my_team.page()] if access.viewer().access.teams else []
    pages = [
        spend.page(),
        costs.page(),
        selfhost.page(),
        budgets.page(),
        forecast.page(),
        latency.page(),
        engines.page(),
        quality.page(),
        events.page(),
        receipt.page(),
    ]
    if access.sees_all_teams():
        return pages + own
    of_organisation = {selfhost.page().url_path, engines.page().url_path}
    return own + [page for page in pages if page.url_path not in of_organisation]


main()
