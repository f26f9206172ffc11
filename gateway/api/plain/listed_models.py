"""Describes a team's routes for `/v1/models`: the figures of the deployment that a plain request of
the team would try first now, and the names and places of all; it sends nothing.
"""

from __future__ import annotations

from typing import Any

from gateway.domain.operation import Operation
from gateway.domain.policy.policy import Deployment, Policy, Route, Team
from gateway.domain.pricing.pricing import Price
from gateway.domain.pricing.tokens import TokenKind
from gateway.domain.request.request import Caller, unsent
from gateway.domain.routing.decide import Decision, decide
from gateway.domain.routing.replay import Place
from gateway.services.deployments.estimates import Estimates
from gateway.services.policy.unsent_requests import PROMPT_TOKENS, imagined
from gateway.services.snapshot.snapshot import MOST_REMEMBERED, Snapshot

# Clients read these three members, so they are always there; other kinds appear if they are priced.
_ALWAYS_PRICED = (TokenKind.INPUT, TokenKind.CACHED_INPUT, TokenKind.OUTPUT)


def listed_model(
    route: Route, *, caller: Caller, snapshot: Snapshot, place: Place, estimates: Estimates
) -> dict[str, Any]:
    """Return a route as an object of `/v1/models`, for one caller.

    `estimates` are this worker's observations; they decide which deployment is first now.
    """
    policy = snapshot.policy.policy
    team = policy.teams[caller.team]
    deployments = [policy.deployments[name] for name in route.deployments]
    decision = _decision(route, team, snapshot, place)
    first = _first(decision, caller, estimates) or deployments[0]
    caps = (route.max_output_tokens, first.max_output_tokens)
    return {
        "id": route.name,
        "object": "model",
        "created": 0,
        "owned_by": "tollgate",
        "aliases": list(route.aliases),
        "context_length": first.context_window,
        "max_output_tokens": min((cap for cap in caps if cap is not None), default=None),
        "capabilities": sorted(first.capabilities) if first.capabilities is not None else None,
        "regions": sorted({deployment.region for deployment in deployments}),
        "providers": sorted({deployment.provider for deployment in deployments}),
        "pricing": _pricing(snapshot.prices.get(first.name)),
        "deployments": [
            {"name": one.name, "provider": one.provider, "region": one.region}
            for one in deployments
        ],
    }


def _first(decision: Decision, caller: Caller, estimates: Estimates) -> Deployment | None:
    """Return the deployment that a plain request would try first now, None if it may try none."""
    if not decision.is_ordered:
        return decision.eligible[0].deployment if decision.eligible else None
    facts = unsent(_operation(decision.policy.policy, decision.route), decision.route.name)
    ranking = imagined(
        decision, facts, session=caller.key_id, estimates=estimates, tokens=PROMPT_TOKENS
    )
    return None if ranking is None else ranking.choices[0].candidate.deployment


def _decision(route: Route, team: Team, snapshot: Snapshot, place: Place) -> Decision:
    """Return the decision on a plain request of a team for a route; the snapshot remembers it, as
    no limit bounds how often a team asks for its models.
    """
    depends_on = ("models", team.name, route.name, place.day)
    found = snapshot.decisions.get(depends_on)
    if found is None:
        if len(snapshot.decisions) >= MOST_REMEMBERED:
            snapshot.decisions.clear()
        found = snapshot.decisions[depends_on] = decide(
            snapshot.policy,
            team=team,
            route=route,
            data_class=team.data_class,
            facts=unsent(_operation(snapshot.policy.policy, route), route.name),
            prices=snapshot.prices,
            gateway_region=place.gateway_region,
            day=place.day,
            ejected=snapshot.ejected,
        )
    return found


def _operation(policy: Policy, route: Route) -> Operation:
    """Return the operation of a route's plain request: chat if any of its deployments serves it,
    else the first one that any serves.
    """
    served = {one for name in route.deployments for one in policy.deployments[name].operations}
    return Operation.CHAT if Operation.CHAT in served else min(served)


def _pricing(price: Price | None) -> dict[str, str | None] | None:
    """Return a price as USD per million tokens, by kind of token, at its lowest context tier.

    Cached input without a rate of its own is charged as input, so it has that rate here.
    """
    if price is None:
        return None
    rates = {kind: price.rate(kind, input_tokens=0) for kind in TokenKind}
    if rates[TokenKind.CACHED_INPUT] is None:
        rates[TokenKind.CACHED_INPUT] = rates[TokenKind.INPUT]
    return {
        f"{kind}_usd_per_mtok": None if rate is None else f"{rate.normalize():f}"
        for kind, rate in rates.items()
        if rate is not None or kind in _ALWAYS_PRICED
    }
