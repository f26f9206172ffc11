"""Remembers each page's query parameters in the reader's session, and restores them when the
browser's back button leads to the page again.

On "back" Streamlit changes the page but keeps the query parameters of the page that was left. The
returning page would lose its filters and get the other page's.
"""

from __future__ import annotations

import streamlit as st

_LAST, _OPENED = "last_page", "opened_page"


def opens(url_path: str) -> None:
    """Record that our own code is about to open a page, so that `restore_query` keeps the query
    parameters it opens with.
    """
    st.session_state[_OPENED] = url_path


def restore_query(url_path: str) -> None:
    """Restore a page's last query parameters after the browser's "back"; do nothing if our own code
    opened the page.
    """
    was_opened = st.session_state.pop(_OPENED, None) == url_path
    is_another = st.session_state.get(_LAST, url_path) != url_path
    kept = st.session_state.get(_key(url_path))
    if is_another and not was_opened and kept is not None and st.query_params.to_dict():
        st.query_params.from_dict(kept)
    st.session_state[_LAST] = url_path


def remember_query(url_path: str) -> None:
    """Remember the page's query parameters, once it is completely shown."""
    st.session_state[_key(url_path)] = st.query_params.to_dict()


def _key(url_path: str) -> str:
    """Return the name in the session under which a page's query parameters are kept."""
    return f"address_of_{url_path}"
