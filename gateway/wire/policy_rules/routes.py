"""Reports errors between the fields of a route's block, and between routes: deployments, weights,
aliases, degradation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gateway.domain.words import suggestion
from gateway.wire.policy.document import PolicyDocument
from gateway.wire.policy.routes import RouteBlock
from gateway.wire.policy_rules.references import check_references, known_names, names_of
from gateway.wire.yaml_blocks.blocks import INVALID


def check_routes(document: PolicyDocument) -> None:
    """Report errors in the fields of each route, and in the deployments and routes that they
    name.
    """
    deployments, routes = known_names(document, "deployments"), known_names(document, "routes")
    next_of = {route.of("name"): route.of("degrade_to") for route in document.blocks_of("routes")}
    cycles = _degrade_cycles(next_of)
    for route in document.blocks_of("routes"):
        _check_route(route, deployments)
        _check_degrading(route, routes, cycles)


def _check_route(route: RouteBlock, deployments: frozenset[str] | None) -> None:
    """Report errors in a route's deployments, balance and weights."""
    if route.of("deployments") == []:
        route.error("deployments", "must list at least one deployment")
    for field in ("deployments", "shadow_deployments"):
        check_references(route, field, "deployment", deployments)
    _check_balance(route)
    _check_weights(route)


def check_aliases(document: PolicyDocument) -> None:
    """Report an error for two routes with one name: the document would not show which of them is
    meant.
    """
    names, owners = set(names_of(document, "routes")), dict[str, str]()
    for route in document.blocks_of("routes"):
        for spot, alias in route.items_of("aliases"):
            if alias in names:
                spot.error(
                    f"'{alias}' is the name of a route; remove this alias or rename the route"
                )
            elif alias in owners:
                spot.error(
                    f"'{alias}' is already an alias of route '{owners[alias]}'; remove one of them",
                )
            owners.setdefault(alias, route.of("name") or "?")


def _check_balance(route: RouteBlock) -> None:
    """Report an error if a route's balance does not match its objective, or has no weight above
    0.
    """
    balance = route.of("balance")
    if balance is None:
        return
    if route.of("objective") not in ("balanced", None):
        route.error(
            "balance",
            "counts only with 'objective: balanced'; write that or remove 'balance'",
        )
    if balance.of("cost") == 0 and balance.of("latency") == 0:
        route.error(
            "balance",
            "has no weight above 0; write for example {cost: 0.7, latency: 0.3}",
        )


def _check_weights(route: RouteBlock) -> None:
    """Report an error if a route's weights do not match its objective or its deployments."""
    objective, weights = route.of("objective"), route.of("weights")
    listed = route.of("deployments")
    if not route.has("weights"):
        if objective == "weighted":
            route.error(
                "objective",
                "'weighted' asks for 'weights'; write for example 'weights: {qwen-eu: 90, "
                "gpt-eu: 10}'",
            )
        return
    if objective not in ("weighted", None):
        route.error(
            "weights",
            "count only with 'objective: weighted'; write that or remove 'weights'",
        )
    if weights is None or listed is None:
        return
    names = [name for name in listed if name is not INVALID]
    for deployment, (spot, _) in route.entries_of("weights").items():
        if deployment not in names:
            spot.error(f"the route has no deployment '{deployment}'{suggestion(deployment, names)}")
    missing = [deployment for deployment in dict.fromkeys(names) if deployment not in weights]
    if missing:
        route.error(
            "weights",
            f"lacks {', '.join(missing)}; each deployment of the route has a weight",
        )


def _check_degrading(
    route: RouteBlock, known: frozenset[str] | None, cycles: Mapping[str, Sequence[str]]
) -> None:
    """Report an error if a route's `degrade_to` names an unknown route, comes back to this one, or
    never applies because the route has no latency or cost bound.
    """
    wanted, own = route.of("degrade_to"), route.of("name")
    if wanted is None or known is None:
        return
    if wanted not in known:
        route.error("degrade_to", f"there is no route '{wanted}'{suggestion(wanted, known)}")
    elif cycle := cycles.get(own, ()):
        at = cycle.index(own)
        way = " to ".join((*cycle[at:], *cycle[:at], own))
        route.error("degrade_to", f"leads back to '{own}' ({way}); degrade to another route")
    if not route.has("latency") and not route.has("max_cost_usd"):
        route.error(
            "degrade_to",
            "has nothing to go by: add 'latency: {ttft_p95_ms: 800}' or 'max_cost_usd', or "
            "remove 'degrade_to'",
        )


def _degrade_cycles(next_of: Mapping[str, str | None]) -> dict[str, Sequence[str]]:
    """Return the routes on which degrading comes back to the same route, each with its cycle.

    Each route is visited once: 2,000 routes in a row took 14 s when each was followed to the end.
    """
    cycles: dict[str, Sequence[str]] = {}
    visited = set[str]()
    for start in next_of:
        way: dict[str, None] = {}  # in order
        route: str | None = start
        while route is not None and route not in visited:
            visited.add(route)
            way[route] = None
            route = next_of.get(route)
        if route is not None and route in way:
            cycle = list(way)
            cycle = cycle[cycle.index(route) :]
            cycles |= dict.fromkeys(cycle, cycle)
    return cycles
