"""Decides whether the reader of a page may change books; the pages ask nothing else."""

from __future__ import annotations

from dashboard import access
from dashboard.finance.child import has_login


def author() -> str | None:
    """Return the name of the signed-in person, if that person may close and reopen months and
    approve re-allocations; else None. Postgres checks the login in any case.
    """
    try:
        viewer = access.viewer()
    except access.NoRole:  # the sign-in may have ended since the page was drawn
        return None
    return viewer.person if viewer.may_close else None


def obstacle() -> str | None:
    """Return the reason why this page only shows commands to copy; None if it runs them."""
    if not has_login():
        return (
            "This dashboard has no login of finance: run `tollgate db upgrade`, or set "
            "TOLLGATE_FINANCE_DATABASE_URL, and start it again. Until then, run the commands in a "
            "shell."
        )
    if access.viewer().person is None:
        return (
            "Nobody is signed in, so there is no author for a change. Run the commands in a shell, "
            "or set up sign-in."
        )
    if author() is None:
        return "Your role may look at the books and not change them. Ask finance."
    return None
