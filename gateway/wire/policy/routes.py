"""Routes of a policy document: their fields, the rules between them, and the conversion to
values and back.
"""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal
from typing import Any

from gateway.domain.money import nusd_from_usd, plain_usd
from gateway.domain.policy.policy import Balance, Route
from gateway.domain.routing.objectives import OBJECTIVES
from gateway.wire.policy.allowances import dollars
from gateway.wire.policy.findings import Findings, suggestion
from gateway.wire.policy.names import alias, deployment_key, model_name, name
from gateway.wire.policy.readers import (
    Block,
    Entry,
    Field,
    Listed,
    decimal,
    declared_only,
    entries,
    integer,
    list_of,
    map_of,
    one_of,
)

_share = decimal(least="0", most="1000000", unit="a weight")
_weight = decimal(above="0", most="1000000", unit="a weight")
_DEFAULT_BALANCE = Balance()

BALANCE = Block(
    name="balance block",
    fields=tuple(
        Field(
            name=field,
            read=_share,
            meaning=meaning,
            example="0.7",
            default=Decimal(str(default)),
            default_text=f"{default:g}",
        )
        for field, default, meaning in (
            ("cost", _DEFAULT_BALANCE.cost, "How much the expected cost counts."),
            (
                "latency",
                _DEFAULT_BALANCE.latency,
                "How much the time expected for the whole answer counts.",
            ),
        )
    ),
)

BOUND = Block(
    name="route's latency block",
    fields=(
        Field(
            name="ttft_p95_ms",
            read=decimal(above="0", most="3600000", unit="milliseconds"),
            is_required=True,
            example="800",
            meaning="Time to the first token that 95 of 100 requests should keep; half of it for "
            "teams of low `priority`.",
        ),
    ),
)

ROUTE = Block(
    name="route",
    fields=(
        Field(
            name="name",
            read=model_name,
            is_required=True,
            example="assistant",
            meaning="The model name that callers send.",
        ),
        Field(
            name="aliases",
            read=list_of(alias),
            example='[gpt-4o, "gpt-4o-*"]',
            default_text="`[]`",
            meaning="Other model names that mean this route; `*` stands for anything. Exact names "
            "win over patterns, earlier routes over later ones.",
        ),
        Field(
            name="deployments",
            read=list_of(name),
            is_required=True,
            example="[qwen-eu, gpt-eu]",
            meaning="The deployments behind it, in order of preference.",
        ),
        Field(
            name="shadow_deployments",
            read=list_of(name),
            example="[gpt-eu, qwen-eu]",
            default_text="`[]`",
            meaning="Ranked beside the real ones for each request; the first one is recorded and "
            "never used (`tollgate report shadow`).",
        ),
        Field(
            name="objective",
            read=one_of(tuple(OBJECTIVES)),
            example="cheapest",
            default="priority",
            default_text="`priority`",
            meaning="How eligible deployments are ordered: `priority` as listed, `cheapest` by the "
            "cost expected of this request, `fastest` by the time expected for its whole answer, "
            "`balanced` by both, `weighted` by shares.",
        ),
        Field(
            name="balance",
            read=BALANCE,
            example="{cost: 0.7, latency: 0.3}",
            default_text="see below",
            meaning="How much cost and latency count; only with `objective: balanced`.",
        ),
        Field(
            name="weights",
            read=map_of(deployment_key, _weight),
            example="{qwen-eu: 90, gpt-eu: 10}",
            default_text="none; required for `weighted`",
            meaning="Each deployment's share of the callers; a caller stays where it was. Only "
            "with `objective: weighted`.",
        ),
        Field(
            name="latency",
            read=BOUND,
            example="{ttft_p95_ms: 800}",
            default_text="no bound",
            meaning="Bound on the time to the first token; deployments expected to miss it "
            "come behind the others.",
        ),
        Field(
            name="max_cost_usd",
            read=dollars(above="0"),
            example="0.05",
            default_text="no bound",
            meaning="Bound on the cost expected of one request; deployments expected to miss it "
            "come behind the others.",
        ),
        Field(
            name="degrade_to",
            read=model_name,
            example="assistant-small",
            default_text="none",
            meaning="The route whose deployments are tried first if none of this one's meets "
            "its bounds; teams need not list it.",
        ),
        Field(
            name="timeout_s",
            read=decimal(above="0", most="86400", unit="seconds"),
            example="120",
            default=Decimal(600),
            default_text="600",
            meaning="Longest time for a request, all its attempts together.",
        ),
        Field(
            name="max_output_tokens",
            read=integer(least=1, most=100_000_000),
            example="4096",
            default_text="none: a caller without a maximum gets the deployment's",
            meaning="Maximum tokens of an answer if the caller gives none; sent upstream.",
        ),
    ),
)


def check_routes(routes: Listed | None, findings: Findings) -> None:
    """Add a finding for each field of a route that conflicts with its other fields or with other
    routes.
    """
    for route in entries(routes):
        _check_balance(route, findings)
        _check_weights(route, findings)
        _check_degrading(route, routes, findings)


def _check_balance(route: Entry, findings: Findings) -> None:
    balance = route.of("balance", Entry)
    if balance is None:
        return
    if route.of("objective", str) not in ("balanced", None):
        findings.error(
            route.place("balance"),
            "counts only with 'objective: balanced'; write that or remove 'balance'",
        )
    if balance.of("cost", Decimal) == 0 and balance.of("latency", Decimal) == 0:
        findings.error(
            route.place("balance"),
            "has no weight above 0; write for example {cost: 0.7, latency: 0.3}",
        )


def _check_weights(route: Entry, findings: Findings) -> None:
    objective, weights = route.of("objective", str), route.of("weights", Entry)
    listed = route.of("deployments", Listed)
    if "weights" not in route.spots:
        if objective == "weighted":
            findings.error(
                route.place("objective"),
                "'weighted' asks for 'weights'; write for example 'weights: {qwen-eu: 90, "
                "gpt-eu: 10}'",
            )
        return
    if objective not in ("weighted", None):
        findings.error(
            route.place("weights"),
            "count only with 'objective: weighted'; write that or remove 'weights'",
        )
    if weights is None or listed is None:
        return
    for deployment in weights.spots:
        if deployment not in listed.items:
            findings.error(
                weights.place(deployment),
                f"the route has no deployment '{deployment}'{suggestion(deployment, listed.items)}",
            )
    missing = [
        deployment for deployment in dict.fromkeys(listed.items) if deployment not in weights.spots
    ]
    if missing:
        findings.error(
            route.place("weights"),
            f"lacks {', '.join(missing)}; each deployment of the route has a weight",
        )


def _check_degrading(route: Entry, routes: Listed | None, findings: Findings) -> None:
    wanted = route.of("degrade_to", str)
    if wanted is None or routes is None:
        return
    next_of = {one.of("name", str): one.of("degrade_to", str) for one in entries(routes)}
    known = [name for name in next_of if name is not None]
    spot, own = route.place("degrade_to"), route.of("name", str)
    if wanted not in known:
        findings.error(spot, f"there is no route '{wanted}'{suggestion(wanted, known)}")
    elif own is not None and (way := _way_back(own, next_of)):
        findings.error(
            spot, f"leads back to '{own}' ({' to '.join(way)}); degrade to another route"
        )
    if "latency" not in route.spots and "max_cost_usd" not in route.spots:
        findings.error(
            spot,
            "has nothing to go by: add 'latency: {ttft_p95_ms: 800}' or 'max_cost_usd', or "
            "remove 'degrade_to'",
        )


def _way_back(route: str, next_of: Mapping[str | None, str | None]) -> list[str] | None:
    """Return the routes on which degrading comes back to this one, None if it does not."""
    way = [route]
    while (following := next_of.get(way[-1])) is not None:
        if following == route:
            return [*way, route]
        if following in way:
            return None  # the cycle does not include this route; its members report it
        way.append(following)
    return None


def milliseconds(seconds: float) -> Decimal:
    """Return a policy's seconds as milliseconds: exactly the number in its document."""
    return Decimal(f"{(Decimal(str(seconds)) * 1000).normalize():f}")


def route_from_wire(values: dict[str, Any]) -> Route:
    """Return a route."""
    balance, weights, bound = values["balance"], values["weights"], values["latency"]
    cost_usd = values["max_cost_usd"]
    return Route(
        name=values["name"],
        deployments=values["deployments"].items,
        shadow_deployments=values["shadow_deployments"].items
        if values["shadow_deployments"]
        else (),
        aliases=values["aliases"].items if values["aliases"] else (),
        objective=values["objective"],
        balance=Balance(**{of: float(weight) for of, weight in balance.values.items()})
        if balance
        else Balance(),
        weights={name: float(weight) for name, weight in weights.values.items()} if weights else {},
        # Divided as a decimal: written out again, it is the number that was read.
        ttft_p95_s=float(bound.values["ttft_p95_ms"] / 1000) if bound else None,
        max_cost_nusd=None if cost_usd is None else nusd_from_usd(cost_usd),
        degrade_to=values["degrade_to"],
        timeout_s=float(values["timeout_s"]),
        max_output_tokens=values["max_output_tokens"],
    )


def route_to_wire(route: Route) -> dict[str, Any]:
    """Return a route's block, every default that applies written out."""
    bound_s, cost_nusd = route.ttft_p95_s, route.max_cost_nusd
    balance = {
        "cost": Decimal(str(route.balance.cost)),
        "latency": Decimal(str(route.balance.latency)),
    }
    return declared_only(
        {
            "name": route.name,
            "aliases": list(route.aliases),
            "deployments": list(route.deployments),
            "shadow_deployments": list(route.shadow_deployments),
            "objective": route.objective,
            "balance": balance if route.objective == "balanced" else None,
            "weights": {name: Decimal(str(weight)) for name, weight in route.weights.items()}
            or None,
            "latency": None if bound_s is None else {"ttft_p95_ms": milliseconds(bound_s)},
            "max_cost_usd": None if cost_nusd is None else Decimal(plain_usd(cost_nusd)),
            "degrade_to": route.degrade_to,
            "timeout_s": Decimal(str(route.timeout_s)),
            "max_output_tokens": route.max_output_tokens,
        }
    )
