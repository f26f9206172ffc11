"""Draws the page *Close and export*: a month's checks, its close, reopening and verification,
re-allocations to approve, and the files of the month.
"""

from __future__ import annotations

from datetime import date
from functools import partial

import streamlit as st

from dashboard import empty_states
from dashboard.display import count, inert, money
from dashboard.filters import dataset
from dashboard.finance.changes import BooksChange, offer, show_change
from dashboard.finance.permission import obstacle
from dashboard.shell.choices import choose, is_named
from dashboard.shell.period import MONTH, NAMES, Period
from dashboard.source import answer, month_status
from dashboard.tables import show_report
from dashboard.views.books import checklist, exports, reallocations, statements
from gateway.errors import BadUsage
from gateway.reports.month.status import MonthStatus
from gateway.reports.question import ask
from gateway.reports.report import Dataset, Report

MOST_REASON_CHARS = 500
STATES = {
    "open": ("Open", "The month is not over: its figures still grow."),
    "provisional": ("Provisional", "The month is over and not closed: late usage is still added."),
    "closed": ("Closed", "Its figures do not change any more."),
}
_PICKED = "close_month_picked"
VERSIONS = (
    "version",
    "state",
    "closed_at",
    "author",
    "operator",
    "total_usd",
    "events",
    "adjustments",
    "accepted",
    "sha256",
    "reopened_at",
    "reopened_by",
    "reopen_reason",
)


def page() -> st.Page:
    """Return the page *Close and export* for the menu."""
    return st.Page(
        show, title="Close and export", icon=":material/event_available:", url_path="close"
    )


def show() -> None:
    """Show the page: the month's state, the change that runs, its checks, and its files."""
    st.title("Close and export")
    if dataset() is Dataset.DEMO:
        st.info(
            "Demo data have no books. Switch to real data; to practise a close, write a ledger of "
            "demo events into an empty database:",
            icon=":material/science:",
        )
        st.code("tollgate demo-data --months 3 --as-ledger", language="bash")
        return
    months = answer("months", ask(month="all"))
    if not months.rows:
        empty_states.show_no_data(dataset())
        return
    month = _choose_month(months)
    with st.spinner("Reading the month's checks …", show_time=True):
        status = month_status(month)
    _show_state(months, status)
    show_change()
    if (reason := obstacle()) is not None:
        st.info(reason, icon=":material/terminal:")
    if status.state == "closed":
        _show_closed(month)
    else:
        checklist.show_checks(status)
        _show_close(months, status)
    _show_versions(month)
    reallocations.show_reallocations(month)
    statements.show_statements(month)
    exports.show_exports(month, attempts=_attempts(months, month))


def _choose_month(months: Report) -> date:
    """Show the month picker, newest first, and return the month of the address.

    If the address has another time, as other pages do, it stays there, and the month that closes
    next is shown.
    """
    known = [_day(row["month"]) for row in months.records()]
    following = _next_to_close(months)
    chosen = _month_of_address() or following or known[0]
    if not is_named(NAMES):
        choose(**{MONTH: f"{chosen:%Y-%m}"})
    options = known if chosen in known else [*known, chosen]
    st.session_state[_PICKED] = chosen
    with st.container(horizontal=True, vertical_alignment="bottom", key="bar"):
        st.selectbox(
            "Month (UTC)",
            options,
            format_func=_name,
            key=_PICKED,
            on_change=_month_picked,
            width=190,
        )
        if following is not None and following != chosen:
            st.button(
                f"{_name(following)} closes next",
                key="close_next",
                icon=":material/event_upcoming:",
                on_click=partial(choose, **{MONTH: f"{following:%Y-%m}"}),
            )
    return chosen


def _month_of_address() -> date | None:
    """Return the month that the address names, None for another time or without one."""
    wanted = st.query_params.get(MONTH)
    if wanted is None or is_named([name for name in NAMES if name != MONTH]):
        return None
    try:
        return ask(month=wanted).month
    except BadUsage as wrong:
        st.warning(inert(wrong.message))
        return None


def _month_picked() -> None:
    """Put the picked month into the address."""
    choose(**{MONTH: f"{st.session_state[_PICKED]:%Y-%m}"})


def _next_to_close(months: Report) -> date | None:
    """Return the oldest month that is not closed, None if all are."""
    return min(
        (_day(row["month"]) for row in months.records() if row["state"] != "closed"), default=None
    )


def _show_state(months: Report, status: MonthStatus) -> None:
    """Show the month's state and its figures as cards."""
    record = next((row for row in months.records() if row["month"] == status.month), {})
    name, about = STATES[status.state]
    cards = st.columns(4)
    cards[0].metric("State", name, border=True, help=about)
    total = "none" if not record else inert(money(record["total_usd"]))
    cards[1].metric("Total, USD", total, border=True, help="Adjustments are in it, holds are not.")
    cards[2].metric("Attempts", count(status.attempts), border=True)
    cards[3].metric(
        "Open checks",
        count(len(status.open_checks)),
        border=True,
        help="A month closes when each is settled, or accepted with a reason.",
    )
    st.caption(about)
    if status.state == "closed" and status.open_checks:
        names = ", ".join(f"`{check.name}`" for check in status.open_checks)
        st.caption(
            f"Open: {names}. Accepted at the close, with the reason below, or found since: "
            f"`tollgate month status {status.month:%Y-%m}`."
        )


def _show_close(months: Report, status: MonthStatus) -> None:
    """Show the button that closes the month, or the reason why it cannot be closed yet."""
    month, oldest = status.month, _next_to_close(months)
    st.subheader("Close the month")
    if status.state == "open":
        st.write(f"{_name(month)} is not over. It can be closed after its last day (UTC).")
        return
    if oldest is not None and oldest < month:
        st.write(f"Months close oldest first: close {_name(oldest)} before this one.")
        return
    reason = st.text_input(
        "Note for the audit log (optional)",
        max_chars=MOST_REASON_CHARS,
        key=f"close_reason_{month}",
    ).strip()
    accepted, missing = checklist.accepted_checks(status)
    offer(
        BooksChange(
            title=f"Close {_name(month)}",
            arguments=(
                *("month", "close", f"{month:%Y-%m}"),
                *(f"--accept={name}={why}" for name, why in accepted.items()),
                *((f"--reason={reason}",) if reason else ()),
                "--yes",
            ),
            warning="Its figures will not change any more. Later usage and adjustments go to the "
            "oldest month that is not closed. Only the newest closed month can be reopened, with "
            "a reason.",
            icon=":material/lock:",
        ),
        key="close_month",
        missing=_missing_text(missing),
    )


def _missing_text(missing: int) -> str | None:
    """Return the sentence on checks that are neither settled nor accepted, None without any."""
    if not missing:
        return None
    are = "check is" if missing == 1 else "checks are"
    return f"{missing} {are} open: settle each, or accept it with a reason above."


def _show_closed(month: date) -> None:
    """Show the verification and the reopening of a closed month."""
    verify, reopen = st.columns(2)
    with verify:
        st.subheader("Verify")
        st.write("Compute the hash again over all that the close covered.")
        offer(
            BooksChange(
                title=f"Verify {_name(month)}",
                arguments=("month", "verify", f"{month:%Y-%m}"),
                warning=None,
                icon=":material/fingerprint:",
            ),
            key="verify_month",
        )
    with reopen:
        st.subheader("Reopen")
        st.write("Only the newest closed month. Its next close is a new version; this one is kept.")
        reason = st.text_input(
            "Reason", max_chars=MOST_REASON_CHARS, key=f"reopen_reason_{month}"
        ).strip()
        offer(
            BooksChange(
                title=f"Reopen {_name(month)}",
                arguments=("month", "reopen", f"{month:%Y-%m}", f"--reason={reason}", "--yes"),
                warning="The month takes late usage and adjustments again, and its figures may "
                "change until it is closed as the next version.",
                icon=":material/lock_open:",
            ),
            key="reopen_month",
            missing=None if reason else "A reason is needed; it is kept.",
        )


def _show_versions(month: date) -> None:
    """Show the closed versions of the month, if there are any."""
    report = answer("closes", ask(month=f"{month:%Y-%m}"))
    if not report.rows:
        return
    st.subheader("Closed versions")
    show_report(report, VERSIONS)
    st.caption("Also by: `tollgate report closes`. As closed: `tollgate report spend --as-closed`.")


def _attempts(months: Report, month: date) -> int:
    """Return the number of attempts that are posted to a month."""
    found = (row["attempts"] for row in months.records() if row["month"] == month)
    return int(str(next(found, 0) or 0))


def _name(month: date) -> str:
    """Return a month as people write it, `October 2026`."""
    return Period(month=f"{month:%Y-%m}").label


def _day(cell: object) -> date:
    """Return a cell that holds a day."""
    assert isinstance(cell, date), "months are days"
    return cell
