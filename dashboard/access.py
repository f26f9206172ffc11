"""Finds the rows that the person at the browser may see, and opens the reports for them alone.

The role comes from the claims of the sign-in and the policy's field `dashboard`. The rows are
Postgres' choice: a team's reports act as another role there (docs/decisions/0029). Without sign-in,
which `tollgate dashboard` allows on this machine alone, every row is shown.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass

import streamlit as st

from gateway.domain.policy.dashboard_roles import DashboardAccess, DashboardRole, DashboardRoles
from gateway.reports.reports import Reports, open_reports
from gateway.reports.scope import NO_TEAM, WHOLE_ORGANISATION, Scope

SIGN_IN_VARIABLE = "TOLLGATE_DASHBOARD_SIGN_IN"  # set to "required" by `tollgate dashboard`
URL_VARIABLE = "TOLLGATE_REPORTS_URL"
Claims = Mapping[str, object]  # of a verified identity
ROLES_KEPT_S = 10  # how soon a changed policy counts
# The provider's groups are those of the sign-in: Streamlit's cookie would keep them for a month.
LONGEST_SIGN_IN_S = 12 * 3600


class NotConfigured(Exception):
    """The dashboard was started without an address of the reports."""


class NoRole(Exception):
    """The signed-in person has no role, so no report may be opened."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Viewer:
    """The person at the browser. `person` is None without sign-in."""

    person: str | None
    access: DashboardAccess

    @property
    def scope(self) -> Scope:
        """Return the scope of the person's reports."""
        return WHOLE_ORGANISATION if self.access.sees_all else Scope.of_teams(self.access.teams)

    @property
    def may_close(self) -> bool:
        """Return True if the person may close months: a signed-in person of finance."""
        return self.person is not None and self.access.role is DashboardRole.FINANCE


ANYONE = Viewer(person=None, access=DashboardAccess(role=DashboardRole.FINANCE))


def needs_sign_in() -> bool:
    """Return True if nothing may be shown before sign-in."""
    return os.environ.get(SIGN_IN_VARIABLE) == "required"


class EndedSignIns:
    """The sign-ins that were ended by a sign-out, kept as long as their cookies would count."""

    def __init__(self) -> None:
        """Begin with none."""
        self._ended_s: dict[tuple[str, ...], float] = {}

    def add(self, claims: Claims) -> None:
        """End the sign-in of these claims, and forget those that are too old to count."""
        now_s = time.time()
        for known, ended_s in list(self._ended_s.items()):
            if now_s - ended_s > LONGEST_SIGN_IN_S:
                self._ended_s.pop(known, None)
        self._ended_s[_sign_in_of(claims)] = now_s

    def __contains__(self, claims: Claims) -> bool:
        """Return True if the sign-in of these claims was ended."""
        return _sign_in_of(claims) in self._ended_s


def _sign_in_of(claims: Claims) -> tuple[str, ...]:
    """Return the claims that tell one sign-in from another of the same person."""
    return tuple(str(claims.get(name)) for name in ("iss", "sub", "iat", "nonce"))


# Of this process, and in none of Streamlit's caches: those forget.
ENDED = EndedSignIns()


def claims_of_person() -> Claims:
    """Return the claims of the person at the browser, for `is_signed_in` and `viewer_of`."""
    return st.user.to_dict()


def is_signed_in(claims: Claims) -> bool:
    """Return True if these claims are of a sign-in that has not ended and is not too long ago."""
    issued_s = claims.get("iat")
    is_recent = isinstance(issued_s, int | float) and time.time() - issued_s < LONGEST_SIGN_IN_S
    # `is_logged_in` is absent without a configured [auth]: then access is refused.
    return claims.get("is_logged_in", False) is True and is_recent and claims not in ENDED


def viewer() -> Viewer:
    """Return the person at the browser. Raises the errors of `viewer_of`."""
    return viewer_of(claims_of_person())


def viewer_of(claims: Claims) -> Viewer:
    """Return the person with these claims. Raises `NoRole`, `NotConfigured` or
    `DatabaseUnavailable`.
    """
    if not needs_sign_in():
        return ANYONE
    if not is_signed_in(claims):
        raise NoRole
    roles = _roles(reports_url())
    access = None if roles is None else roles.access_of(claims)
    if access is None:
        raise NoRole
    return Viewer(person=_name_of(claims), access=access)


def person() -> str:
    """Return the signed-in person's name, for the page alone."""
    return _name_of(claims_of_person())


def sees_all_teams() -> bool:
    """Return True if the person may see every team. Raises the errors of `viewer`."""
    return viewer().access.sees_all


def scope() -> Scope:
    """Return the scope of the person's reports. Raises the errors of `viewer`."""
    return viewer().scope


def reports_url() -> str:
    """Return the Postgres URL of the reports from the environment. Raises `NotConfigured` without
    one.
    """
    url = os.environ.get(URL_VARIABLE)
    if not url:
        raise NotConfigured
    return url


def reports_of(url: str, scope: Scope) -> Reports:
    """Return the reports of a Postgres URL for the readers of a scope."""
    return _open_reports(url).seen_by(scope)


@st.cache_resource(show_spinner=False, max_entries=2)
def _open_reports(url: str) -> Reports:
    """Open the connections of a Postgres URL, for the readers of no team; Streamlit keeps one for
    all sessions.
    """
    return open_reports(url, scope=NO_TEAM)


@st.cache_data(show_spinner=False, ttl=ROLES_KEPT_S, max_entries=2)
def _roles(url: str) -> DashboardRoles | None:
    """Return the roles of the policy in force, cached for a few seconds; None if it gives none."""
    return reports_of(url, WHOLE_ORGANISATION).dashboard_roles()


def _name_of(claims: Claims) -> str:
    """Return a person's name for the books: the e-mail address, else the subject.

    If the provider says that the address is not verified, the person chose it, and so the other
    name that looks like one: the subject counts then.
    """
    is_verified = str(claims.get("email_verified", True)).lower() == "true"  # some send a text
    for claim in ("email", "preferred_username", "sub") if is_verified else ("sub",):
        if isinstance(name := claims.get(claim), str) and name:
            return name
    return "unknown"
