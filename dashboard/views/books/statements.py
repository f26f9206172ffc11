"""Offers the statement of one cost centre for a month as a file to sign."""

from __future__ import annotations

from datetime import date
from importlib.util import find_spec

import streamlit as st

from dashboard.shell.bar import spent_values
from dashboard.shell.choices import Choices
from dashboard.shell.period import Period
from dashboard.source import statement
from gateway.domain.names import file_part
from gateway.reports.dimensions import UNALLOCATED, Dimension
from gateway.reports.report import Dataset
from gateway.reports.statements.files import StatementFormat

MIME = {StatementFormat.PDF: "application/pdf", StatementFormat.HTML: "text/html"}
NEEDS_PDF = "fpdf"


def show_statements(month: date) -> None:
    """Show the picker of a cost centre, and the buttons of its statement."""
    st.subheader("Statement of a cost centre")
    period = Period(month=f"{month:%Y-%m}")
    choices = Choices(dataset=Dataset.REAL, period=period, where={})
    names = [one for one in spent_values(choices, Dimension.COST_CENTRE) if one != UNALLOCATED]
    if not names:
        st.caption("No cost centre has an amount in this month.")
        return
    with st.container(horizontal=True, vertical_alignment="bottom", key="statement"):
        name = st.selectbox("Cost centre", sorted(names), key="statement_of", width=260)
        for kind in StatementFormat:
            if kind is StatementFormat.PDF and find_spec(NEEDS_PDF) is None:
                continue
            st.download_button(
                kind.name,
                statement(month, name, kind),
                file_name=file_name(name, among=names, month=month, kind=kind),
                mime=MIME[kind],
                icon=":material/picture_as_pdf:"
                if kind is StatementFormat.PDF
                else ":material/download:",
                on_click="ignore",
                key=f"statement_{kind.name}",
            )
    st.caption(
        "Total, adjustments, idle share, and the difference to the month before. Sent by itself: "
        "`tollgate report schedule add`."
    )


def file_name(cost_centre: str, *, among: list[str], month: date, kind: StatementFormat) -> str:
    """Return the name of a statement's file; `among` are all cost centres of the month."""
    part = file_part(cost_centre, among=among)
    return f"tollgate-statement-{part}-{month:%Y-%m}{kind.value}"
