"""Draws the page *Budgets and forecast*: the limits of the running periods, or the spending that is
still to come.
"""

from __future__ import annotations

import streamlit as st

from dashboard.shell.leading import BUDGETS
from dashboard.shell.look import choose_look
from dashboard.views import budgets, forecast

PARTS = {"Budgets": budgets.show_budgets, "Forecast": forecast.show_forecast}


def page() -> st.Page:
    """Return the page of budgets and the forecast for the menu."""
    return st.Page(show, title="Budgets and forecast", icon=":material/savings:", url_path=BUDGETS)


def show() -> None:
    """Show the part of the page that the reader chose."""
    st.title("Budgets and forecast")
    PARTS[choose_look(list(PARTS))]()
