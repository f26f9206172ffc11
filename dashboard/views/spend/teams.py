"""Draws the page *Teams*: spending from teams down to models, projects, keys and days, and the
reasons of its change.
"""

from __future__ import annotations

from dataclasses import replace

import streamlit as st

from dashboard.display import inert
from dashboard.downloads import csv_button
from dashboard.shell.changes import compared_question
from dashboard.shell.choices import Choices
from dashboard.shell.leading import TEAMS
from dashboard.source import answer
from dashboard.tables import show_report
from dashboard.views.spend.drill import Drill, show_drill
from gateway.reports import Dimension

REASONS = ("change_usd", "volume_usd", "price_usd", "other_usd", "total_usd", "previous_usd")


def _show_reasons(choices: Choices) -> None:
    """Show how much of each change is volume and how much is price, by team and model."""
    asked = compared_question(choices, by=None)
    if asked is None:
        st.caption("Choose a time and a comparison above: a change needs two times.")
        return
    with st.spinner("Reading …", show_time=True):
        report = answer("spend", replace(asked, asks_why=True, by=None))
    names = [choices.money(name) for name in REASONS]
    show_report(report, (Dimension.TEAM.value, Dimension.MODEL.value, *names))
    csv_button(st, report, name=f"reasons-{choices.file_label}", label="Reasons", width="content")
    st.caption("  \n".join(inert(note) for note in report.notes[:2]))


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
    panels={"What changed": _show_reasons},
)


def page() -> st.Page:
    """Return the page of teams for the menu."""
    return st.Page(show, title="Teams", icon=":material/group:", url_path=TEAMS)


def show() -> None:
    """Show the spending of teams, and the way down."""
    show_drill(PAGE)
