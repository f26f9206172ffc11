"""Decides which past requests a hard budget would refuse today because of their members, as far as
their events say; reads no events.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from gateway.domain.operation import Operation
from gateway.domain.policy.policy import Policy, Team

MOST_NAMED = 5  # members of a team


@dataclass(frozen=True, slots=True, kw_only=True)
class UnlistedUse:
    """Past attempts of a team at a deployment with the same unlisted members. `names` is None for
    events of a release that did not record them.
    """

    team: str
    deployment: str
    operation: Operation
    names: tuple[str, ...] | None
    attempts: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RefusedUse:
    """A team's past attempts that would be refused for their members, and those whose members are
    not known.
    """

    team: str
    attempts: int
    names: tuple[str, ...]
    unrecorded: int


def teams_with_hard_budgets(policy: Policy) -> tuple[str, ...]:
    """Return the teams for which some hard budget may refuse a request."""
    return tuple(team.name for team in policy.teams.values() if has_hard_budget(policy, team))


def refused_use(policy: Policy, uses: Iterable[UnlistedUse]) -> tuple[RefusedUse, ...]:
    """Return by team the past use that its hard budgets would refuse at the same deployment."""
    hard = set(teams_with_hard_budgets(policy))
    found: dict[str, list[UnlistedUse]] = {}
    for use in uses:
        deployment = policy.deployments.get(use.deployment)
        if use.team not in hard or deployment is None or not deployment.unlisted.refuses:
            continue
        taken = deployment.bounded_members.get(use.operation)
        if taken is not None and (use.names is None or not set(use.names) <= taken):
            found.setdefault(use.team, []).append(use)
    return tuple(_of_team(policy, team, found[team]) for team in sorted(found))


def _of_team(policy: Policy, team: str, uses: list[UnlistedUse]) -> RefusedUse:
    """Return one team's refused use."""
    names = {
        name
        for use in uses
        for name in use.names or ()
        if name not in policy.deployments[use.deployment].bounded_members[use.operation]
    }
    return RefusedUse(
        team=team,
        attempts=sum(use.attempts for use in uses if use.names is not None),
        names=tuple(sorted(names)[:MOST_NAMED]),
        unrecorded=sum(use.attempts for use in uses if use.names is None),
    )


def has_hard_budget(policy: Policy, team: Team) -> bool:
    """Return True if a hard budget may refuse a team: its own, or that of a cost centre."""
    centres = [policy.cost_centres.get(name) for name in team.cost_centre_names]
    shared = [rule for centre in centres if centre is not None for rule in centre.budgets]
    return any(rule.is_hard for rule in (*team.budgets, *shared))
