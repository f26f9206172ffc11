"""Declares the policy's roles of the dashboard, and finds a signed-in person's role by a claim of
the identity provider; checks no identity.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum


class DashboardRole(StrEnum):
    """The rights of a person: finance sees all teams and closes months, an auditor sees all teams,
    a team member the own teams.
    """

    FINANCE = "finance"
    AUDITOR = "auditor"
    TEAM = "team"


@dataclass(frozen=True, slots=True, kw_only=True)
class DashboardAccess:
    """A person's role, and the teams that the person belongs to."""

    role: DashboardRole
    teams: frozenset[str] = frozenset()

    @property
    def sees_all(self) -> bool:
        """Return True if the person may see every team."""
        return self.role is not DashboardRole.TEAM


@dataclass(frozen=True, slots=True, kw_only=True)
class DashboardRoles:
    """The values of the claim `claim` that give each role; those of a team by its name."""

    claim: str
    finance: tuple[str, ...] = ()
    auditors: tuple[str, ...] = ()
    teams: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def access_of(self, claims: Mapping[str, object]) -> DashboardAccess | None:
        """Return the access of a person with these claims of a verified identity; None: no role.

        The claim is one text or a list of texts; a claim of any other type gives no role.
        """
        held = _texts(claims.get(self.claim))
        teams = frozenset(name for name, values in self.teams.items() if held & set(values))
        if held & set(self.finance):
            return DashboardAccess(role=DashboardRole.FINANCE, teams=teams)
        if held & set(self.auditors):
            return DashboardAccess(role=DashboardRole.AUDITOR, teams=teams)
        return DashboardAccess(role=DashboardRole.TEAM, teams=teams) if teams else None


def _texts(claim: object) -> frozenset[str]:
    """Return the texts of a claim; a list with anything else in it has none."""
    if isinstance(claim, str):
        return frozenset({claim})
    if not isinstance(claim, Sequence) or not all(isinstance(one, str) for one in claim):
        return frozenset()
    return frozenset(claim)
