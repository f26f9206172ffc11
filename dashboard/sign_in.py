"""Stops each page before its figures until the person has signed in, if `tollgate dashboard`
requires it; the sign-in itself is Streamlit's.

If the dashboard is open beyond this machine, nothing is shown before sign-in.

Streamlit's own OpenID Connect sign-in (`[auth]` in its secrets) establishes the identity; by itself
it refuses no request.
"""

from __future__ import annotations

import os

import streamlit as st

VARIABLE = "TOLLGATE_DASHBOARD_SIGN_IN"  # set to "required" by `tollgate dashboard`


def require() -> None:
    """Stop the page's run with a sign-in button, unless the person is signed in or sign-in is not
    required.
    """
    if os.environ.get(VARIABLE) != "required":
        return
    if st.user.get(
        "is_logged_in", False
    ):  # absent without a configured [auth]: then access is refused
        st.sidebar.button("Sign out", on_click=st.logout, icon=":material/logout:")
        return
    st.title("Tollgate")
    st.write("Sign in to see what your organisation's teams spend.")
    st.button("Sign in", on_click=st.login, type="primary", icon=":material/login:")
    st.stop()
