"""Shows the switch between the parts of a page, and keeps the chosen one in the page's address."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import streamlit as st

from dashboard.shell.choices import choose

LOOK = "look"  # of the address


def choose_look(names: Sequence[str], *, label: str = "Look at") -> str:
    """Show the switch, and return the name that the address has; the first one without any."""
    asked = st.query_params.get(LOOK)
    st.session_state[LOOK] = asked if asked in names else names[0]
    st.segmented_control(
        label, names, required=True, key=LOOK, on_change=partial(_picked, names[0])
    )
    return str(st.session_state[LOOK])


def _picked(first: str) -> None:
    """Put the picked part into the address; the first one is not written."""
    picked = st.session_state[LOOK]
    choose(**{LOOK: None if picked == first else picked})
