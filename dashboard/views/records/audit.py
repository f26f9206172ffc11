"""Draws the page *Audit*: each administrative act with its person, time and reason, and whether the
log is as it was written.
"""

from __future__ import annotations

import json

import streamlit as st

from dashboard import empty_states
from dashboard.display import counted, inert
from dashboard.downloads import csv_button
from dashboard.filters import dataset
from dashboard.notes import show_notes
from dashboard.shell.bar import Applies, show_bar
from dashboard.shell.choices import Choices
from dashboard.source import answer, audit_chain
from dashboard.tables import show_report
from dashboard.views.records.pickers import pick, rows_with
from gateway.reports.report import Dataset, Report

SHOWN = ("at", "action", "subject", "operator", "db_user", "reason")
MOST_ACTS = 1_000  # of one page of the report
MOST_FINDINGS = 20


def page() -> st.Page:
    """Return the page *Audit* for the menu."""
    return st.Page(show, title="Audit", icon=":material/history:", url_path="audit")


def show() -> None:
    """Show the page: the state of the chain, and the acts of the time."""
    st.title("Audit")
    if dataset() is Dataset.DEMO:
        st.info("The audit log is of this database as a whole. Switch to real data at the left.")
        return
    choices = show_bar(Applies(filters=()))
    _show_chain()
    report = answer("audit", choices.question(limit=MOST_ACTS))
    if not report.rows:
        st.info(f"Nothing was administered in {inert(choices.label)}.")
        return
    action, person = _pick_acts(report)
    chosen = rows_with(report, action=action, operator=person)
    if chosen.rows:
        _show_acts(chosen, choices)
    else:
        empty_states.show_nothing_matches(choices.label, is_filtered=True)
    show_notes(report)


def _pick_acts(report: Report) -> tuple[str | None, str | None]:
    """Show the pickers of the action and the person, and return the choices; None for all."""
    first, second, _ = st.columns(3)
    with first:
        action = pick("Action", report, "action", everything="All actions")
    with second:
        return action, pick("Person", report, "operator", everything="Everybody")


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


def _show_acts(report: Report, choices: Choices) -> None:
    """Show the acts as a table, and the details of the row that the reader picks."""
    st.subheader(counted(len(report.rows), "act"))
    picked = show_report(report, SHOWN, key="audit_row")
    csv_button(st, report, name=f"audit-{choices.file_label}")
    if picked is None:
        st.caption("Pick a row to see its details in full.")
        return
    act = report.records()[picked]
    with st.container(border=True):
        st.markdown(f"**{inert(str(act['action']))}** of {inert(str(act['subject']))}")
        st.json(json.loads(str(act["details"] or "null")))
        st.caption(f"Row {act['seq']}, hash {act['hash']}")
