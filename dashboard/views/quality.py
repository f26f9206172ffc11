"""Draws the page on the meter's quality: sources of usage, and holds that are still open."""

from __future__ import annotations

import streamlit as st

from dashboard.question_page import ShownReport, show_page

QUALITY = ShownReport(
    report="meter-quality",
    about="Final is the provider's own last figure, or provably nothing; running is its last "
    "figure before a break; estimated is the gateway's own.",
    headlines=("final_attempts", "unknown_attempts", "held_usd", "derived_share"),
    columns=(
        "attempts",
        "final_attempts",
        "running_attempts",
        "estimated_attempts",
        "unreported_usage_attempts",
        "derived_share",
        "unknown_attempts",
        "unknown_share",
        "held_usd",
        "final_usd",
        "derived_usd",
        "total_usd",
    ),
    split="Provider",
)


def page() -> st.Page:
    """Return the page on the meter's quality for the menu."""
    return st.Page(show, title="Meter quality", icon=":material/verified:", url_path="quality")


def show() -> None:
    """Show the shares of sure, estimated and unknown usage."""
    show_page("Meter quality", QUALITY)
