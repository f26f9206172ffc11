"""Draws the page on costs and savings: unit costs, tokens by kind, routing and the top movers."""

from __future__ import annotations

import streamlit as st

from dashboard.question_page import WITHOUT_TIME, ShownReport, show_page

QUESTIONS = {
    "Unit costs": ShownReport(
        report="unit-costs",
        about="All that was spent, failed attempts included, by what it bought. Tasks and sessions "
        "are values of the tags task and session.",
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
    ),
    "Tokens by kind": ShownReport(
        report="token-costs",
        about="The cost of 1,000 tokens of each kind, as charged.",
        headlines=("total_usd",),
        fixed=("kind",),
        columns=("tokens", "usd_per_1k_tokens", "total_usd", "share"),
        split=None,
    ),
    "Savings by routing": ShownReport(
        report="routing-savings",
        about="The same tokens at the dearest deployment that could have served each attempt, and "
        "at the first listed one.",
        headlines=("compared_usd", "dearest_saving_usd", "default_saving_usd"),
        columns=(
            "attempts",
            "compared_attempts",
            "compared_usd",
            "dearest_usd",
            "dearest_saving_usd",
            "default_usd",
            "default_saving_usd",
        ),
        split="Route",
    ),
    "Top movers": ShownReport(
        report="movers",
        about="The largest changes of a month, up or down. For all months: the newest one.",
        headlines=("total_usd", "change_usd", "change_share", "year_change_usd"),
        columns=(
            "total_usd",
            "previous_usd",
            "change_usd",
            "change_share",
            "year_before_usd",
            "year_change_usd",
            "year_change_share",
        ),
        split="Team",
        splits=WITHOUT_TIME,
    ),
}


def page() -> st.Page:
    """Return the page on costs and savings for the menu."""
    return st.Page(show, title="Costs and savings", icon=":material/price_check:", url_path="costs")


def show() -> None:
    """Show the page with the question that the reader chose."""
    show_page("Costs and savings", _choose)


def _choose() -> ShownReport:
    """Show the switch between the questions, and return the chosen one."""
    names = list(QUESTIONS)
    chosen = st.segmented_control("Question", names, default=names[0], required=True, key="costs")
    return QUESTIONS[chosen]
