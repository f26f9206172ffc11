"""Errors between the fields of a route, and between routes."""

from __future__ import annotations

from collections.abc import Mapping

from gateway.domain.words import suggestion
from gateway.wire.policy.document import PolicyDocument
from gateway.wire.policy.routes import RouteBlock
from gateway.wire.policy_rules.references import check_references, names_of
from gateway.wire.yaml_blocks.blocks import INVALID


def check_route(route: RouteBlock, document: PolicyDocument) -> None:
    """Check the fields of one route, and the deployments and routes that it names."""
    if route.of("deployments") == []:
        route.error("deployments", "must list at least one deployment")
    for field in ("deployments", "shadow_deployments"):
        check_references(route, field, "deployment", document)
    _check_balance(route)
    _check_weights(route)
    _check_degrading(route, document)


def check_aliases(document: PolicyDocument) -> None:
    """Reject two routes with one name: the document would not show which of them is meant."""
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


def _check_degrading(route: RouteBlock, document: PolicyDocument) -> None:
    wanted = route.of("degrade_to")
    if wanted is None or document.of("routes") is None:
        return
    next_of = {one.of("name"): one.of("degrade_to") for one in document.blocks_of("routes")}
    known = [name for name in next_of if name is not None]
    spot, own = route.spot_of("degrade_to"), route.of("name")
    if wanted not in known:
        spot.error(f"there is no route '{wanted}'{suggestion(wanted, known)}")
    elif own is not None and (way := _degrade_cycle(own, next_of)):
        spot.error(f"leads back to '{own}' ({' to '.join(way)}); degrade to another route")
    if not route.has("latency") and not route.has("max_cost_usd"):
        spot.error(
            "has nothing to go by: add 'latency: {ttft_p95_ms: 800}' or 'max_cost_usd', or "
            "remove 'degrade_to'",
        )


def _degrade_cycle(route: str, next_of: Mapping[str | None, str | None]) -> list[str] | None:
    """Return the routes on which degrading comes back to this one, None if it does not."""
    way = [route]
    while (following := next_of.get(way[-1])) is not None:
        if following == route:
            return [*way, route]
        if following in way:
            return None  # the cycle does not include this route; its members report it
        way.append(following)
    return None
