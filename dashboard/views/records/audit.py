"""Draws the page *Audit*: each administrative act with its person, time and reason, and whether the
log is as it was written.
"""

from __future__ import annotations

import json

import streamlit as st

from dashboard import empty_states
from dashboard.display import counted, inert
from dashboard.downloads import csv_button
from dashboard.filters import choose_month, dataset, month_name, question
from dashboard.notes import show_notes
from dashboard.source import answer, audit_chain
from dashboard.tables import show_report
from dashboard.views.records.pickers import pick, rows_with
from gateway.reports import Dataset, Report

SHOWN = ("at", "action", "subject", "operator", "db_user", "reason", "details")
MOST_ACTS = 1_000  # of one page of the report
MOST_FINDINGS = 20


def page() -> st.Page:
    """Return the page *Audit* for the menu."""
    return st.Page(show, title="Audit", icon=":material/history:", url_path="audit")


def show() -> None:
    """Show the page: the state of the chain, and the acts of the month."""
    title, first, second, third = st.columns([4, 2, 2, 2], vertical_alignment="bottom")
    title.title("Audit")
    if dataset() is Dataset.DEMO:
        st.info("The audit log is of this database as a whole. Switch to real data at the left.")
        return
    with first:
        month = choose_month()
    report = answer("audit", question(month=month, limit=MOST_ACTS))
    records = report.records()
    with second:
        actions = (row["action"] for row in records)
        action = pick("Action", actions, name="action", everything="All actions")
    with third:
        people = (row["operator"] for row in records)
        person = pick("Person", people, name="person", everything="Everybody")
    _show_chain()
    chosen = rows_with(report, action=action, operator=person)
    if not chosen.rows:
        empty_states.show_nothing_matches(
            month_name(month), is_filtered=action is not None or person is not None
        )
    else:
        _show_acts(chosen, month)
    show_notes(report)


def _show_chain() -> None:
    """Show whether every row of the log is as it was written."""
    with st.spinner("Checking the audit log …", show_time=True):
        chain = audit_chain()
    if chain.findings:
        st.error(
            f"**The audit log is not as it was written**: {counted(len(chain.findings), 'finding')}"
            f" in {counted(chain.rows, 'row')}. Someone changed the database past Tollgate.",
            icon=":material/gpp_bad:",
        )
        st.code(
            "\n".join(f"row {one.seq}: {one.what}" for one in chain.findings[:MOST_FINDINGS]),
            language=None,
            wrap_lines=True,
        )
    elif chain.head is None:
        st.info("The audit log is empty: nothing was administered yet.")
    else:
        st.success(
            f"{counted(chain.rows, 'row')}, each as it was written.", icon=":material/verified:"
        )
        st.caption(
            "Its head, to keep where no administrator of this database can write; without a kept "
            "head a cut end cannot be detected:"
        )
        st.code(str(chain.head), language=None, wrap_lines=True)


def _show_acts(report: Report, month: str) -> None:
    """Show the acts as a table, and the details of the row that the reader picks."""
    head, save = st.columns([8, 1.3], vertical_alignment="bottom")
    head.subheader(counted(len(report.rows), "act"))
    csv_button(save, report, name=f"audit-{month}")
    picked = show_report(report, SHOWN, key="audit_row")
    if picked is None:
        st.caption("Pick a row to see its details in full.")
        return
    act = report.records()[picked]
    with st.container(border=True):
        st.markdown(f"**{inert(str(act['action']))}** of {inert(str(act['subject']))}")
        st.json(json.loads(str(act["details"] or "null")))
        st.caption(f"Row {act['seq']}, hash {act['hash']}")
