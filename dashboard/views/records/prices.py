"""Draws the page *Prices*: the rates of each deployment that count now, that will and that did,
with their source and date, and whether own GPUs are calibrated.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import streamlit as st

from dashboard.display import count, inert, moment
from dashboard.downloads import csv_button
from dashboard.filters import dataset
from dashboard.notes import show_notes
from dashboard.shell.bar import Applies, show_bar
from dashboard.shell.choices import Choices
from dashboard.source import answer
from dashboard.tables import show_report
from dashboard.views.records.pickers import rows_with, values_of
from gateway.reports.dimensions import Dimension
from gateway.reports.report import Cell, Dataset, Report

STATES = {"Current": "current", "Coming": "coming", "Past": "past"}
EMPTY = {
    "current": "No deployment has a price: apply a policy. `tollgate policy apply FILE`",
    "coming": "No later price is known. Announce one: `tollgate price add --help`",
    "past": "No price was replaced yet.",
}
RATES = (
    "deployment",
    "model",
    "service_tier",
    "from_input_tokens",
    "input_usd_per_mtok",
    "cached_input_usd_per_mtok",
    "cache_write_usd_per_mtok",
    "output_usd_per_mtok",
    "other_rates",
    "valid_from",
    "valid_until",
    "calibration",
    "source",
)
# A price has a time of its own, and its money is in USD for a million tokens.
APPLIES = Applies(
    filters=(Dimension.DEPLOYMENT, Dimension.MODEL, Dimension.PROVIDER), days=False, month=False
)
NOT_NOW = "valid_until"  # of the current prices: they have none


def page() -> st.Page:
    """Return the page *Prices* for the menu."""
    return st.Page(show, title="Prices", icon=":material/sell:", url_path="prices")


def show() -> None:
    """Show the page: headlines, and the prices of the chosen state."""
    st.title("Prices")
    if dataset() is Dataset.DEMO:
        st.info("The prices of demo data are in no price book. Switch to real data at the left.")
        return
    report = answer("prices", show_bar(APPLIES, values=_priced).question())
    _show_headlines(report)
    state = STATES[
        st.segmented_control(
            "State", list(STATES), default="Current", required=True, key="prices_state"
        )
    ]
    _show_prices(rows_with(report, state=state), state)
    show_notes(report)


def _priced(choices: Choices, one: Dimension) -> list[str]:
    """Return the values of a dimension that have a price, also without any spending."""
    return values_of(answer("prices", choices.unfiltered.question(has_currency=False)), one.value)


def _show_headlines(report: Report) -> None:
    """Show the number of priced deployments, the uncalibrated ones, and the next change."""
    records = report.records()
    current = [row for row in records if row["state"] == "current"]
    cards = st.columns(3)
    cards[0].metric("Priced deployments", count(_distinct(current)), border=True)
    uncalibrated = [
        row for row in current if str(row["calibration"] or "").startswith("uncalibrated")
    ]
    cards[1].metric(
        "Own GPUs not calibrated",
        count(_distinct(uncalibrated)),
        border=True,
        help="Their price rests on the speed that the policy declares. Measure it: tollgate engine "
        "calibrate",
    )
    coming = [row["valid_from"] for row in records if row["state"] == "coming"]
    following = min(coming, key=str) if coming else None
    cards[2].metric(
        "Next change (UTC)", "none known" if following is None else moment(following), border=True
    )


def _show_prices(report: Report, state: str) -> None:
    """Show the prices of one state as a table."""
    if not report.rows:
        st.info(EMPTY[state], icon=":material/sell:")
        return
    names = [name for name in RATES if not (state == "current" and name == NOT_NOW)]
    has = {name: any(row[name] for row in report.records()) for name in names}
    show_report(report, [name for name in names if has[name]])
    csv_button(st, report, name=f"prices-{state}")
    for text in _stand_ins(report.records()):
        st.warning(inert(text))


def _stand_ins(records: Sequence[Mapping[str, Cell]]) -> list[str]:
    """Return a sentence for each deployment whose price only stands in for its own."""
    names = sorted({str(row["deployment"]) for row in records if "stand-in" in str(row["source"])})
    return [
        f"{name} is charged by its stand-in price, and its events are flagged." for name in names
    ]


def _distinct(records: Sequence[Mapping[str, Cell]]) -> int:
    """Return the number of different deployments."""
    return len({row["deployment"] for row in records})
