"""Leads from a click to another page with its filters: a callback names the page, and the next run
opens it.

Streamlit opens no page from inside a callback.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import streamlit as st

from dashboard import address
from dashboard.display import inert
from dashboard.shell.choices import CURRENCY, Choices, address_of, choose
from gateway.errors import DatabaseUnavailable, OperatorError

_WANTED = "wanted_page"
OVERVIEW, TEAMS, MODELS, REQUESTS, BUDGETS = "", "teams", "models", "events", "budgets"


def lead_to(url_path: str, query: Mapping[str, str]) -> None:
    """Let the next run open a page with an address."""
    st.session_state[_WANTED] = (url_path, dict(query))


def follow(pages: Sequence[Any]) -> None:
    """Open the page that a callback named, if one did."""
    if _WANTED not in st.session_state:
        return
    url_path, query = st.session_state.pop(_WANTED)
    target = next((page for page in pages if page.url_path == url_path), None)
    if target is not None:
        address.opens(url_path)
        st.switch_page(target, query_params=query)


def requests_button(place: Any, choices: Choices, *, key: str = "requests") -> None:
    """Show the button that opens the single requests behind the figures of a page."""
    place.button(
        "Requests",
        icon=":material/list_alt:",
        key=key,
        help="The single requests behind these figures, with the same filters",
        on_click=partial(lead_to, REQUESTS, address_of(choices)),
    )


@contextmanager
def refusals_shown(choices: Choices) -> Iterator[None]:
    """Show a question that reports refuse, a missing rate or an impossible filter, as a message
    with its way out, and end the page there.
    """
    try:
        yield
    except DatabaseUnavailable:
        raise
    except OperatorError as wrong:
        st.error(inert(wrong.message), icon=":material/error:")
        if choices.currency != "USD":
            st.button("Show in USD", on_click=partial(choose, **{CURRENCY: None}))
