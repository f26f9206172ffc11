"""Draws the latency page, as measured at the gateway: daily lines of TTFT and TPOT percentiles, and
a table by route and deployment with the duration too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import streamlit as st

from dashboard import charts, empty_states
from dashboard.display import NOTHING, count, seconds
from dashboard.downloads import csv_button
from dashboard.filters import dataset
from dashboard.notes import show_notes
from dashboard.shell.bar import Applies, show_bar
from dashboard.shell.choices import Choices
from dashboard.shell.leading import refusals_shown, requests_button
from dashboard.source import answer, newest_event
from dashboard.tables import show_report
from gateway.reports.dimensions import Dimension
from gateway.reports.report import Cell, Report

COLUMNS = (
    "route",
    "deployment",
    "attempts",
    "ttft_p50_s",
    "ttft_p95_s",
    "tpot_p50_s",
    "tpot_p95_s",
    "duration_p50_s",
    "duration_p95_s",
    "ttft_measured",
    "ttft_not_measured",
)


def page() -> st.Page:
    """Return the latency page for the menu."""
    return st.Page(show, title="Latency", icon=":material/speed:", url_path="latency")


def show() -> None:
    """Show the latency page: headlines, percentiles by day and deployment, and a table."""
    st.title("Latency")
    if newest_event(dataset()) is None:
        empty_states.show_no_data(dataset())
        return
    choices = show_bar(Applies())
    with refusals_shown(choices):
        _show_figures(choices)


def _show_figures(choices: Choices) -> None:
    """Show headlines, percentiles by day and deployment, and a table."""
    report = answer("latency", choices.question())
    if not report.rows:
        empty_states.show_nothing_matches(choices.label, is_filtered=bool(choices.where))
        return
    _show_headlines(report.total)
    by = (Dimension.DAY.value, Dimension.DEPLOYMENT.value)
    by_day = answer("latency", choices.question(by=by))
    busiest = _busiest(report, most=len(charts.COLOURS))
    daily = [row for row in by_day.records() if row["deployment"] in busiest]
    _show_percentiles(daily, "ttft", "Time to first token (TTFT)", unit="s", per_s=1)
    _show_percentiles(daily, "tpot", "Time per output token (TPOT)", unit="ms", per_s=1000)
    left_out = len({row["deployment"] for row in report.records()}) - len(busiest)
    if left_out:
        st.caption(
            f"The lines are those of the {len(busiest)} deployments with the most attempts; the "
            f"table has {left_out} more."
        )
    show_report(report, COLUMNS)
    with st.container(horizontal=True):
        csv_button(st, report, name=f"latency-{choices.file_label}")
        name = f"latency-{choices.file_label}-by-day"
        csv_button(st, by_day, name=name, label="By day")
        requests_button(st, choices)
    st.caption(
        "Measured at the gateway. TTFT and TPOT exist for streamed answers only: plain answers and "
        "failures are counted as not measured and are in no percentile. TPOT is per output token "
        "after the first."
    )
    show_notes(report)


def _busiest(report: Report, *, most: int) -> set[Cell]:
    """Return the deployments with the most attempts, at most as many as there are colours."""
    attempts: Counter[Cell] = Counter()
    for row in report.records():
        attempts[row["deployment"]] += int(str(row["attempts"]))
    return {name for name, _ in attempts.most_common(most)}


def _show_percentiles(
    daily: Sequence[Mapping[str, Cell]], name: str, heading: str, *, unit: str, per_s: int
) -> None:
    """Show median and 95th percentile of a latency side by side, in a unit whose figures are
    neither tiny nor huge.
    """
    st.subheader(heading)
    for place, percentile in zip(st.columns(2, gap="large"), ("p50", "p95"), strict=True):
        figures = [(row, row[f"{name}_{percentile}_s"]) for row in daily]
        points = [
            {**row, "size": None if figure is None else float(str(figure)) * per_s}
            for row, figure in figures
        ]
        with place:
            charts.lines(
                points,
                group="deployment",
                size="size",
                size_title=f"{name.upper()} {percentile}, {unit}",
                read=lambda size: NOTHING if size is None else f"{size:,.3g} {unit}",
                size_format="~r",
                alt_text=f"{heading}, {percentile}, per day and deployment",
            )


def _show_headlines(total: Mapping[str, Cell]) -> None:
    """Show the month's TTFT and TPOT percentiles and the number of measured attempts."""
    cards = st.columns(4)
    cards[0].metric("TTFT, median", seconds(total["ttft_p50_s"]), border=True, height="stretch")
    cards[1].metric(
        "TTFT, 95th percentile", seconds(total["ttft_p95_s"]), border=True, height="stretch"
    )
    cards[2].metric(
        "TPOT, median",
        seconds(total["tpot_p50_s"]),
        border=True,
        height="stretch",
        help="Per output token after the first.",
    )
    cards[3].metric(
        "Measured",
        count(total["ttft_measured"]),
        border=True,
        delta=f"of {count(total['attempts'])} attempts",
        delta_color="off",
        delta_arrow="off",
    )
