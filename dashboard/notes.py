"""Shows a report's or receipt's notes (completeness, estimates, omissions) in a box under its
figures; the reports write the notes, and name columns as their files do.
"""

from __future__ import annotations

import re

import streamlit as st

from dashboard.display import heading, inert
from gateway.reports import Receipt, Report

_NAME = re.compile(r"\b[a-z][a-z0-9]*(?:_[a-z0-9]+)+\b")


def show_notes(answered: Report | Receipt) -> None:
    """Show a report's or receipt's notes: completeness, unknown and derived shares, omissions.

    A column is named by its heading on the page.
    """
    notes = answered.notes
    if isinstance(answered, Report):
        names = {column.name: f"“{heading(column)}”" for column in answered.columns}
        notes = tuple(_NAME.sub(lambda found: names.get(found[0], found[0]), one) for one in notes)
    with st.container(border=True):
        st.markdown("**About these figures**")
        st.caption("  \n".join(f"• {inert(note)}" for note in notes))
