"""Draws the search in the sidebar: a typed word finds teams, API keys and models of the shown time,
and leads to their page.
"""

from __future__ import annotations

from functools import partial

import streamlit as st

from dashboard.display import inert
from dashboard.filters import as_option
from dashboard.shell.choices import Choices, address_of, read_choices
from dashboard.shell.leading import MODELS, TEAMS, lead_to
from dashboard.source import answer
from gateway.reports.dimensions import UNALLOCATED, Dimension

SEARCHED = {
    Dimension.TEAM: (TEAMS, ":material/group:"),
    Dimension.KEY: (TEAMS, ":material/key:"),
    Dimension.MODEL: (MODELS, ":material/neurology:"),
}
MOST_FOUND = 6
_KEY = "search"


def show_search() -> None:
    """Show the field and the names that it found; nothing is asked before a word is typed."""
    word = st.text_input(
        "Search", key=_KEY, placeholder="Team, API key or model", icon=":material/search:"
    ).strip()
    if not word:
        return
    choices = read_choices()
    found = {one: found_names(choices, one, word) for one in SEARCHED}
    if not any(found.values()):
        st.caption(f"Nothing in {inert(choices.label)} has {inert(word)} in its name.")
    for one, names in found.items():
        target, icon = SEARCHED[one]
        for name in names[:MOST_FOUND]:
            st.button(
                inert(name),
                icon=icon,
                key=f"found_{one.value}_{name}",
                type="tertiary",
                on_click=partial(_open, target, choices, one.value, name),
            )
        if len(names) > MOST_FOUND:
            st.caption(f"and {len(names) - MOST_FOUND:,} more")


def found_names(choices: Choices, one: Dimension, word: str) -> list[str]:
    """Return the values of a dimension that contain a word, the dearest first."""
    asked = choices.unfiltered.question(by=(one.value,), has_currency=False)
    names = [as_option(row[0]) for row in answer("spend", asked).rows]
    return [name for name in names if word.casefold() in name.casefold() and name != UNALLOCATED]


def _open(target: str, choices: Choices, name: str, value: str) -> None:
    """Lead to a page with one filter, and empty the field."""
    st.session_state[_KEY] = ""
    lead_to(target, address_of(choices.without(*choices.where), **{name: value}))
