"""Stops each page before its figures until the person has signed in, if `tollgate dashboard`
requires it, and has a role; the sign-in itself is Streamlit's.

If the dashboard is open beyond this machine, nothing is shown before sign-in.

Streamlit's own OpenID Connect sign-in (`[auth]` in its secrets) establishes the identity; by itself
it refuses no request.
"""

from __future__ import annotations

import streamlit as st

from dashboard import access, empty_states
from dashboard.access import NoRole, NotConfigured
from dashboard.display import inert
from gateway.errors import DatabaseUnavailable

VARIABLE = access.SIGN_IN_VARIABLE


def require() -> None:
    """Stop the page's run with a sign-in button, unless the person is signed in or sign-in is not
    required.
    """
    if not access.needs_sign_in():
        return
    if access.is_signed_in(access.claims_of_person()):
        st.sidebar.button("Sign out", on_click=st.logout, icon=":material/logout:")
        return
    st.title("Tollgate")
    st.write("Sign in to see what your organisation's teams spend.")
    st.button("Sign in", on_click=st.login, type="primary", icon=":material/login:")
    st.stop()


def require_role() -> None:
    """Stop the page's run with the next step, unless the person may see some rows."""
    try:
        access.viewer()
    except NoRole:
        _show_no_role()
    except NotConfigured:
        empty_states.show_not_configured()
    except DatabaseUnavailable as away:
        empty_states.show_away(away.message)
    else:
        return
    st.stop()


def _show_no_role() -> None:
    """Show the page of a person without a role: the reason, and the person to ask."""
    st.title("No page for you yet")
    st.write(
        f"You are signed in as **{inert(access.person())}**, and this account has no role in "
        "Tollgate's dashboard."
    )
    st.write(
        "Ask the administrator of Tollgate's policy for a role, and name the groups of your "
        "account. The policy's field `dashboard` gives roles to groups."
    )
    st.caption("After a change of your groups, sign out and in again.")
