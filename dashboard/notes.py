"""Shows a report's or receipt's notes (completeness, estimates, omissions) in a box under its
figures; the reports write the notes.
"""

from __future__ import annotations

import streamlit as st

from dashboard.display import inert
from gateway.reports import Receipt, Report


def show_notes(answered: Report | Receipt) -> None:
    """Show a report's or receipt's notes: completeness, unknown and derived shares, omissions."""
    with st.container(border=True):
        st.markdown("**About these figures**")
        st.caption("  \n".join(f"• {inert(note)}" for note in answered.notes))
