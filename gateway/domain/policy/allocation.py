"""Lists the parts of a policy by which reports allocate cost: the cost centres of each team by day,
and the weights of the teams that bear idle cost.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal

from gateway.domain.policy.cost_centres import CostCentreShare
from gateway.domain.policy.idle_cost import IdleCost, IdleRule
from gateway.domain.policy.policy import Policy


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyAllocation:
    """The shares of each team's cost centres, and by deployment each rule but `show` with the
    weights of its teams.
    """

    cost_centres: Mapping[str, tuple[CostCentreShare, ...]]
    idle: Mapping[str, tuple[IdleRule, Mapping[str, Decimal]]]


NO_ALLOCATION = PolicyAllocation(cost_centres={}, idle={})


def allocation_of(policy: Policy) -> PolicyAllocation:
    """Return the parts of a policy by which reports allocate cost."""
    centres = {
        team.name: (CostCentreShare(name=team.cost_centre),)
        if isinstance(team.cost_centre, str)
        else team.cost_centre
        for team in policy.teams.values()
    }
    idle = {
        name: (deployment.idle_cost.rule, _weights(policy, name, deployment.idle_cost))
        for name, deployment in policy.deployments.items()
        if deployment.idle_cost.rule is not IdleRule.SHOW
    }
    return PolicyAllocation(cost_centres=centres, idle=idle)


def _weights(policy: Policy, deployment: str, idle: IdleCost) -> Mapping[str, Decimal]:
    """Return the stated weight of each team for a deployment's idle cost."""
    routes = {name for name, route in policy.routes.items() if deployment in route.deployments}
    return idle.weights(
        sorted(team.name for team in policy.teams.values() if routes & set(team.routes))
    )
