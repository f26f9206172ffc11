"""Who may look.

Where the dashboard is open to more than this machine, nothing is shown before sign-in.

Streamlit's own OpenID Connect sign-in (`[auth]` in its secrets) establishes who it is; alone it
turns nobody away.
"""

from __future__ import annotations

import os

import streamlit as st

VARIABLE = "TOLLGATE_DASHBOARD_SIGN_IN"  # set to "required" by `tollgate dashboard`


def require() -> None:
    """Stop the run here, with a button to sign in, unless a signed-in person is asking or none is
    required.
    """
    if os.environ.get(VARIABLE) != "required":
        return
    if st.user.get(
        "is_logged_in", False
    ):  # absent where no [auth] is configured: then nobody is let in
        st.sidebar.button("Sign out", on_click=st.logout, icon=":material/logout:")
        return
    st.title("Tollgate")
    st.write("Sign in to see what your organisation's teams spend.")
    st.button("Sign in", on_click=st.login, type="primary", icon=":material/login:")
    st.stop()
