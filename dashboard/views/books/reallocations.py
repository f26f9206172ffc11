"""Draws a month's re-allocations between cost centres, and approves those that are proposed."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date

import streamlit as st

from dashboard.display import inert, money
from dashboard.downloads import csv_button
from dashboard.finance.changes import BooksChange, offer
from dashboard.source import reallocations
from dashboard.tables import show_report
from gateway.reports.allocation.reallocations import Reallocation
from gateway.reports.report import Column, ColumnKind, Dataset, Report

MOST_REASON_CHARS = 500
PROPOSED = "proposed"
KINDS = {
    "reallocation_id": ColumnKind.TEXT,
    "from_cost_centre": ColumnKind.TEXT,
    "to_cost_centre": ColumnKind.TEXT,
    "amount_usd": ColumnKind.MONEY,
    "state": ColumnKind.TEXT,
    "reason": ColumnKind.TEXT,
    "author": ColumnKind.TEXT,
    "author_login": ColumnKind.TEXT,
    "approver": ColumnKind.TEXT,
    "approver_login": ColumnKind.TEXT,
    "approval_reason": ColumnKind.TEXT,
    "posted_period": ColumnKind.DAY,
}
SHOWN = tuple(name for name in KINDS if name not in ("reallocation_id", "approval_reason"))


def show_reallocations(month: date) -> None:
    """Show the month's re-allocations: the proposed ones to approve, and all as a table."""
    st.subheader("Re-allocations")
    found = reallocations(month)
    if not found:
        st.caption(
            "None. Propose one: `tollgate reallocation add --from CC --to CC --month "
            f"{month:%Y-%m} --amount-usd X --reason R`"
        )
        return
    for one in found:
        if one.state == PROPOSED:
            _show_proposed(one)
    report = _as_report(month, found)
    show_report(report, SHOWN)
    csv_button(st, report, name=f"reallocations-{month:%Y-%m}")


def _show_proposed(one: Reallocation) -> None:
    """Show a proposed re-allocation, with the field and the button of its approval."""
    with st.container(border=True):
        st.markdown(
            f"**{inert(money(one.amount_usd))}** from **{inert(one.from_cost_centre)}** to "
            f"**{inert(one.to_cost_centre)}**, proposed by "
            f"{inert(one.author or one.author_login)}: {inert(one.reason)}"
        )
        reason = st.text_input(
            "Approve it, because",
            max_chars=MOST_REASON_CHARS,
            key=f"approve_reason_{one.reallocation_id}",
        ).strip()
        offer(
            BooksChange(
                title=f"Approve {one.from_cost_centre} → {one.to_cost_centre}",
                arguments=(
                    *("reallocation", "approve", str(one.reallocation_id)),
                    *(f"--reason={reason}", "--yes"),
                ),
                warning=f"It books two adjustments of {inert(money(one.amount_usd))} that sum to "
                "0. Author and approver must be different logins and different people.",
                icon=":material/done_all:",
            ),
            key=f"approve_{one.reallocation_id}",
            missing=None if reason else "A reason is needed; it is kept.",
        )


def _as_report(month: date, found: Sequence[Reallocation]) -> Report:
    """Return re-allocations as a report."""
    return Report(
        name="reallocations",
        title=f"Re-allocations of {month:%Y-%m}",
        dataset=Dataset.REAL,
        columns=tuple(
            Column(name=name, unit="USD" if kind is ColumnKind.MONEY else "", kind=kind)
            for name, kind in KINDS.items()
        ),
        rows=tuple(tuple(_cell(one, name) for name in KINDS) for one in found),
        total={},
        complete_until=None,
        notes=(),
    )


def _cell(one: Reallocation, name: str) -> str | date | None:
    """Return one field of a re-allocation as a cell."""
    value: str | date | None = getattr(one, name)
    return str(value) if name == "reallocation_id" else value
