"""Shows a report's or receipt's notes (completeness, estimates, omissions) in a box under its
figures; the reports write the notes, and name columns as their files do.
"""

from __future__ import annotations

import re

import streamlit as st

from dashboard.display import heading, heading_of_name, inert
from gateway.reports.receipts.receipt import Receipt
from gateway.reports.report import Report

_NAME = re.compile(r"\b[a-z][a-z0-9]*(?:_[a-z0-9]+)+\b")


def show_notes(*answered: Report | Receipt) -> None:
    """Show the notes of reports or of a receipt, each once: completeness, unknown and derived
    shares, omissions. A column is named by its heading on the page.
    """
    columns = [one for each in answered if isinstance(each, Report) for one in each.columns]
    names = {column.name: heading(column) for column in columns}

    def named(found: re.Match[str]) -> str:
        known = names.get(found[0]) or heading_of_name(found[0])
        return found[0] if known is None else f"“{known}”"

    notes = dict.fromkeys(_NAME.sub(named, note) for each in answered for note in each.notes)
    with st.container(border=True):
        st.markdown("**About these figures**")
        st.caption("  \n".join(f"• {inert(note)}" for note in notes))
