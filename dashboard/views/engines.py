"""Draws the table of the self-hosted engines with their live signals."""

from __future__ import annotations

import streamlit as st

from dashboard.downloads import csv_button
from dashboard.filters import dataset
from dashboard.notes import show_notes
from dashboard.source import answer
from dashboard.tables import show_report
from gateway.reports.question import ask
from gateway.reports.report import Dataset

COLUMNS = (
    "deployment",
    "at",
    "is_up",
    "queue",
    "running",
    "kv_use",
    "prefix_hit_rate",
    "ttft_p50_s",
    "ttft_p95_s",
    "tpot_p50_s",
    "tpot_p95_s",
    "pressure",
)


def show_samples() -> None:
    """Show the newest samples as a table with its file, or a hint if there is none."""
    report = answer("engines", ask(month="all", demo=dataset() is Dataset.DEMO))
    if not report.rows:
        st.info("No engine of your own was sampled yet: a running gateway looks every minute.")
        return
    show_report(report, COLUMNS)
    csv_button(st, report, name="engines")
    show_notes(report)
