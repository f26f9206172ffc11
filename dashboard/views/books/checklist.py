"""Draws the checks of a month: each open one with its finding, the command that settles it and the
field for a reason to accept it.
"""

from __future__ import annotations

from collections.abc import Mapping

import streamlit as st

from dashboard.display import inert
from dashboard.downloads import csv_button
from gateway.domain.checks import Check, Status
from gateway.reports.month.status import MonthStatus
from gateway.reports.report import Column, ColumnKind, Dataset, Report

MOST_REASON_CHARS = 500
ICONS = {Status.WARN: ":material/warning:", Status.FAIL: ":material/error:"}


def show_checks(status: MonthStatus) -> None:
    """Show the open checks one by one, and the others as a list."""
    head, save = st.columns([8, 1.3], vertical_alignment="bottom")
    head.subheader("Checks")
    csv_button(save, _as_report(status), name=f"month-status-{status.month:%Y-%m}")
    if not status.open_checks:
        st.success("Every check is settled.", icon=":material/check_circle:")
    for check in status.open_checks:
        _show_open(status, check)
    settled = [check for check in status.checks if check.status is Status.OK]
    with st.expander(f"{len(settled)} settled"):
        st.markdown(
            "\n".join(
                f"- :material/check: **{inert(check.name)}**: {inert(check.finding)}"
                for check in settled
            )
        )


def accepted_checks(status: MonthStatus) -> tuple[Mapping[str, str], int]:
    """Return the reason of each open check that the reader accepts, and the number of the others.

    The fields of `show_checks` must have been drawn before.
    """
    reasons = {
        check.name: str(st.session_state.get(_key(status, check), "")).strip()
        for check in status.open_checks
    }
    accepted = {name: why for name, why in reasons.items() if why}
    return accepted, len(reasons) - len(accepted)


def _show_open(status: MonthStatus, check: Check) -> None:
    """Show one open check."""
    with st.container(border=True):
        st.markdown(f"{ICONS[check.status]} **{inert(check.name)}**  \n{inert(check.finding)}")
        if check.remedy:
            _show_remedy(check.remedy)
        st.text_input(
            "Or accept it, because",
            key=_key(status, check),
            max_chars=MOST_REASON_CHARS,
            placeholder="The reason is kept with the close",
        )


def _show_remedy(remedy: str) -> None:
    """Show a remedy: its commands as code to copy, any other text as text."""
    parts = remedy.split("; ")
    if all(part.startswith("tollgate ") for part in parts):
        st.code("\n".join(parts), language="bash", wrap_lines=True)
    else:
        st.markdown(inert(remedy))


def _key(status: MonthStatus, check: Check) -> str:
    """Return the name of a check's reason in the session."""
    return f"accept_{status.month:%Y-%m}_{check.name}"


def _as_report(status: MonthStatus) -> Report:
    """Return the checks as a report, with the columns of `tollgate month status`."""
    return Report(
        name="month-status",
        title=f"Checks of {status.month:%Y-%m}",
        dataset=Dataset.REAL,
        columns=tuple(
            Column(name=name, unit="", kind=ColumnKind.TEXT)
            for name in ("check", "status", "finding", "mend")
        ),
        rows=tuple((one.name, one.status.value, one.finding, one.remedy) for one in status.checks),
        total={},
        complete_until=None,
        notes=(),
    )
