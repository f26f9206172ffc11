"""Draws the budgets of the running periods: headline counts, a bar of each budget's used and
forecast share, and a table with its outlook; it changes no budget.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any

import streamlit as st

from dashboard import charts, empty_states
from dashboard.display import NOTHING, moment, money, share
from dashboard.downloads import csv_button
from dashboard.filters import dataset
from dashboard.notes import show_notes
from dashboard.shell.bar import Applies, show_bar
from dashboard.shell.leading import refusals_shown
from dashboard.shell.viewer import zone_name
from dashboard.source import answer
from dashboard.tables import show_cells
from gateway.reports.dimensions import Dimension
from gateway.reports.report import Cell

MOST_BARS = 20
# The periods that run now, whatever time the reader chose; a budget has an owner and no model.
RUNNING = Applies(
    filters=(Dimension.TEAM, Dimension.PROJECT, Dimension.KEY, Dimension.COST_CENTRE),
    days=False,
    month=False,
)
USED_UP, OVER, WITHIN = "used up", "over by its end", "within"
FIRST_MONEY = {
    "Limit": "limit_usd",
    "Spent": "spent_usd",
    "Left": "remaining_usd",
    "Forecast": "forecast_usd",
}
MORE_MONEY = {"Granted": "granted_usd", "Leased": "leased_usd", "Held": "held_usd"}
MONEY = FIRST_MONEY | MORE_MONEY

Row = Mapping[str, Cell]


def show_budgets() -> None:
    """Show the budgets: headlines, bars and a table."""
    choices = show_bar(RUNNING)
    with refusals_shown(choices):
        report = answer("budgets", choices.question())
        if not report.rows and choices.where:
            empty_states.show_nothing_matches("running budgets", is_filtered=True)
            return
        if not report.rows:
            empty_states.show_no_budget(dataset())
            return
        rows = report.records()
        _show_headlines(rows)
        _show_bars(rows)
        _show_table(rows)
        csv_button(st, report, name="budgets")
        show_notes(report)


def outlook(row: Row) -> str:
    """Return in words whether a budget lasts to the end of its period."""
    room, spent, forecast = _limit_with_grants(row), _usd(row["spent_usd"]), row["forecast_usd"]
    if row["remaining_usd"] == 0 or spent >= room:
        return USED_UP
    return OVER if forecast is not None and _usd(forecast) > room else WITHIN


def _show_headlines(rows: Sequence[Row]) -> None:
    """Show the numbers of budgets, of used-up ones, and of those that will be used up before they
    reset.
    """
    words = [outlook(row) for row in rows]
    cards = st.columns(3)
    cards[0].metric("Budgets", f"{len(rows):,}", border=True)
    cards[1].metric(
        "Used up",
        f"{words.count(USED_UP):,}",
        border=True,
        help="Nothing is left of limit and grants.",
    )
    cards[2].metric(
        "Over by their end",
        f"{words.count(OVER):,}",
        border=True,
        help="At the present rate they will be used up before their period ends.",
    )


def _show_bars(rows: Sequence[Row]) -> None:
    """Show a bar for each of the first budgets, with the spent, leased and forecast share of its
    limit.
    """
    shown = [row for row in rows if _limit_with_grants(row) > 0][:MOST_BARS]
    if not shown:
        return
    st.subheader(
        "Used of limit and grants" + (f", the first {MOST_BARS}" if len(rows) > MOST_BARS else "")
    )
    charts.gauges(
        [_gauge(row) for row in shown],
        alt_text="Share of each budget that is spent and leased, and forecast",
    )
    st.caption(
        "The dashed line is the limit with its grants. An arrow at the edge is a forecast "
        "beyond the scale."
    )


def _gauge(row: Row) -> charts.Gauge:
    """Return a budget's bar: its spent, leased and forecast shares of limit and grants."""
    room = _limit_with_grants(row)
    spent, leased, forecast = _usd(row["spent_usd"]), _usd(row["leased_usd"]), row["forecast_usd"]
    return charts.Gauge(
        name=str(row["budget"]),
        spent=float(spent / room),
        leased=float(leased / room),
        forecast=None if forecast is None else float(_usd(forecast) / room),
        words={
            "Spent": f"{money(spent)} of {money(room)} ({share(spent / room)})",
            "Leased": f"{money(leased)}, {money(row['held_usd'])} of it held",
            "Left": money(row["remaining_usd"]),
            "Forecast": NOTHING
            if forecast is None
            else f"{money(forecast)} ({share(_usd(forecast) / room)})",
            "Outlook": outlook(row),
        },
    )


def _show_table(rows: Sequence[Row]) -> None:
    """Show the table of all budgets with their outlook, amounts and reset times."""
    columns: dict[str, Sequence[Cell]] = {
        "Budget": [row["budget"] for row in rows],
        "Outlook": [outlook(row) for row in rows],
        "Used": [row["used_share"] if row["used_share"] is not None else NOTHING for row in rows],
    }
    columns |= {
        head: [_or_nothing(row, name) for row in rows] for head, name in FIRST_MONEY.items()
    }
    columns[f"Resets ({zone_name()})"] = [
        moment(row["resets_at"]) if row["resets_at"] else "never" for row in rows
    ]
    columns |= {head: [_or_nothing(row, name) for row in rows] for head, name in MORE_MONEY.items()}
    columns["Kind"] = [row["kind"] for row in rows]
    reads: dict[str, Any] = {
        head: lambda cell: cell if isinstance(cell, str) else money(cell) for head in MONEY
    }
    reads["Used"] = lambda cell: cell if isinstance(cell, str) else share(cell)
    show_cells(columns, reads, numbers=("Used", *MONEY))


def _or_nothing(row: Row, name: str) -> Cell:
    """Return a cell of a budget's row, a dash for a forecast that does not exist."""
    return NOTHING if row[name] is None and name == "forecast_usd" else row[name]


def _limit_with_grants(row: Row) -> Decimal:
    """Return the amount that a budget allows in its period: its limit plus the grants, in USD."""
    return _usd(row["limit_usd"]) + _usd(row["granted_usd"])


def _usd(cell: Cell) -> Decimal:
    """Return a report's cell as an amount in USD, 0 for an empty one."""
    return Decimal(str(cell or 0))
