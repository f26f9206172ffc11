"""Draws the page *Teams*: spending from teams down to models, projects, keys and days."""

from __future__ import annotations

import streamlit as st

from dashboard.shell.leading import TEAMS
from dashboard.views.spend.drill import Drill, show_drill
from gateway.reports import Dimension

PAGE = Drill(
    title="Teams",
    root="All teams",
    url_path=TEAMS,
    chain=(Dimension.TEAM, Dimension.MODEL, Dimension.PROJECT, Dimension.KEY, Dimension.DAY),
    others=(Dimension.COST_CENTRE, Dimension.TAG, Dimension.ROUTE, Dimension.REGION),
    report="spend",
    columns=(
        "attempts",
        "input_tokens",
        "cached_input_tokens",
        "output_tokens",
        "adjustments_usd",
        "held_usd",
        "unknown_share",
        "derived_share",
    ),
    panels={},
)


def page() -> st.Page:
    """Return the page of teams for the menu."""
    return st.Page(show, title="Teams", icon=":material/group:", url_path=TEAMS)


def show() -> None:
    """Show the spending of teams, and the way down."""
    show_drill(PAGE)
