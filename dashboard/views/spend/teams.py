"""Draws the page *Teams*: spending from teams down to models, projects, keys and days, and the
reasons of its change.
"""

from __future__ import annotations

from dataclasses import replace

import streamlit as st

from dashboard.downloads import csv_button
from dashboard.question_page import ShownReport, show_panel
from dashboard.shell.changes import compared_question
from dashboard.shell.choices import Choices
from dashboard.shell.leading import TEAMS
from dashboard.source import answer
from dashboard.tables import show_report
from dashboard.views.spend.drill import Drill, show_drill
from gateway.reports.dimensions import Dimension
from gateway.reports.report import Report

REASONS = ("change_usd", "volume_usd", "price_usd", "other_usd", "total_usd", "previous_usd")

UNIT_COSTS = ShownReport(
    report="unit-costs",
    about="All that was spent, failed attempts included, by what it bought. Tasks and sessions are "
    "values of the tags task and session.",
    headlines=("usd_per_request", "usd_per_answer", "usd_per_1k_tokens", "usd_per_end_user"),
    columns=(
        "total_usd",
        "requests",
        "usd_per_request",
        "answers",
        "usd_per_answer",
        "usd_per_1k_tokens",
        "end_users",
        "usd_per_end_user",
        "tasks",
        "usd_per_task",
        "sessions",
        "usd_per_session",
    ),
    split="Team",
)


def _show_unit_costs(choices: Choices) -> Report | None:
    """Show the cost of a request, an answer, a thousand tokens, an end user, a task, a session."""
    return show_panel(UNIT_COSTS, choices)


def _show_reasons(choices: Choices) -> Report | None:
    """Show how much of each change is volume and how much is price, by team and model."""
    asked = compared_question(choices, by=None)
    if asked is None:
        st.caption("Choose a time and a comparison above: a change needs two times.")
        return None
    with st.spinner("Reading …", show_time=True):
        report = answer("spend", replace(asked, asks_why=True, by=None))
    names = [choices.money(name) for name in REASONS]
    show_report(report, (Dimension.TEAM.value, Dimension.MODEL.value, *names))
    csv_button(st, report, name=f"reasons-{choices.file_label}", label="Reasons")
    return report


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
    panels={"What changed": _show_reasons, "Unit costs": _show_unit_costs},
)


def page() -> st.Page:
    """Return the page of teams for the menu."""
    return st.Page(show, title="Teams", icon=":material/group:", url_path=TEAMS)


def show() -> None:
    """Show the spending of teams, and the way down."""
    show_drill(PAGE)
