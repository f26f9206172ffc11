"""Errors that involve several fields: unknown references, names taken twice, fields that exclude
others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from gateway.domain.budgets.budgets import BudgetKind
from gateway.domain.policy.policy import Operation
from gateway.wire.policy.blocks import INVALID, Block
from gateway.wire.policy.deployments import DeploymentBlock
from gateway.wire.policy.document import PolicyDocument
from gateway.wire.policy.findings import Findings, Spot, shown, suggestion
from gateway.wire.policy.regions import check_deployment_places, check_regions, check_rules
from gateway.wire.policy.routes import RouteBlock
from gateway.wire.policy.teams import TeamBlock, declared_budgets


def check(document: PolicyDocument, findings: Findings) -> None:
    """Add a finding for every error between the readable fields."""
    # If the regions are unreadable, the wrong names cannot be determined.
    regions = check_regions(document, findings) if document.is_readable("regions") else None
    if regions is not None:
        check_rules(document, regions, findings)
    for deployment in document.blocks_of("deployments"):
        for field, is_broken, message in _DEPLOYMENT_RULES:
            if is_broken(deployment):
                findings.error(deployment.place(field), message)
        if regions is not None:
            check_deployment_places(deployment, regions, findings)
    _check_groups(document, findings)
    for name, kind in _KINDS.items():
        _check_unique(document, name, kind, findings)
    _check_aliases(document, findings)
    for route in document.blocks_of("routes"):
        if route.of("deployments") == []:
            findings.error(route.place("deployments"), "must list at least one deployment")
        for field in ("deployments", "shadow_deployments"):
            _check_references(route, field, "deployment", document, findings)
        _check_balance(route, findings)
        _check_weights(route, findings)
        _check_degrading(route, document, findings)
    for team in document.blocks_of("teams"):
        _check_references(team, "routes", "route", document, findings)
        _check_class(team, document, findings)
        _check_tags(team, document, findings)
        _check_unique(team, "projects", "project", findings)
        _check_unique(team, "keys", "key", findings, field="key")
    _check_budgets(document, findings)


_KINDS = {
    "deployments": "deployment",
    "routes": "route",
    "teams": "team",
    "cost_centres": "cost centre",
}


def _lacks_output_price(field: str) -> Callable[[DeploymentBlock], bool]:
    """Return a test for a price or tier without an output price although the deployment
    generates output.
    """

    def lacks(deployment: DeploymentBlock) -> bool:
        price, operations = deployment.of(field), deployment.of("operations")
        if price is None or (operations and set(operations) == {Operation.EMBEDDINGS}):
            return False
        tiers = (tier for _, tier in price.entries_of("service_tiers").values() if tier is not None)
        return any(not block.has("output_usd_per_mtok") for block in (price, *tiers))

    return lacks


def _answers_past_window(deployment: DeploymentBlock) -> bool:
    window, answer = deployment.of("context_window"), deployment.of("max_output_tokens")
    return window is not None and answer is not None and answer > window


_DEPLOYMENT_RULES: tuple[tuple[str, Callable[[DeploymentBlock], bool], str], ...] = (
    (
        "api_key",
        lambda d: d.of("provider") == "openai" and not d.has("api_key"),
        "is missing; openai asks for one: write for example 'api_key: env:OPENAI_API_KEY'",
    ),
    (
        "gpu",
        lambda d: d.has("gpu") and d.has("price"),
        "a deployment has either 'gpu' or 'price'; remove one of them",
    ),
    (
        "gpu",
        lambda d: d.has("gpu") and d.of("provider") is not None and not d.is_self_hosted,
        "GPU hours price only self-hosted deployments; add 'self_hosted: true' or write 'price' "
        "instead",
    ),
    (
        "self_hosted",
        lambda d: d.of("provider") == "openai" and d.of("self_hosted") is True,
        "provider openai is never self-hosted; for an engine of your own write vllm or "
        "openai_compatible",
    ),
    *(
        (
            field,
            _lacks_output_price(field),
            "lacks 'output_usd_per_mtok'; write for example 'output_usd_per_mtok: 3.20' "
            "(absent is not 0)",
        )
        for field in ("price", "stand_in_price")
    ),
    (
        "stand_in_price",
        lambda d: d.has("stand_in_price") and (d.has("price") or d.has("gpu")),
        "stands in only while nothing else prices the deployment, but 'price' or 'gpu' does; "
        "remove one of them",
    ),
    (
        "operations",
        lambda d: d.of("operations") == [],
        "must list at least one operation, or be left out for the default",
    ),
    (
        "max_output_tokens",
        _answers_past_window,
        "is larger than 'context_window'; an answer must fit in the window",
    ),
)


_ALIKE = ("provider", "model", "region", "gpu", "price", "stand_in_price")


def _check_groups(document: PolicyDocument, findings: Findings) -> None:
    """Check that all members of a group are the same engine at the same price, except for the
    address.

    Any member may serve a session.
    """
    first: dict[str, DeploymentBlock] = {}
    for deployment in document.blocks_of("deployments"):
        group = deployment.of("group")
        if group is None:
            continue
        model = first.setdefault(group, deployment)
        different = [
            field for field in _ALIKE if _plain(deployment.of(field)) != _plain(model.of(field))
        ]
        if different:
            findings.error(
                deployment.place("group"),
                f"'{group}' holds replicas of one engine, but {', '.join(different)} of this "
                f"deployment is not that of '{shown(model.of('name') or '?')}'; make them the "
                "same or choose another group",
            )


def _plain(value: object) -> object:
    """Return a value without the places from which it was read."""
    if isinstance(value, dict):
        return {name: _plain(one) for name, one in value.items()}
    return _plain(value.values()) if isinstance(value, Block) else value


def _check_unique(
    block: Block, listed: str, kind: str, findings: Findings, *, field: str = "name"
) -> None:
    first: dict[str, Spot] = {}
    for one in block.blocks_of(listed):
        name = one.of(field)
        if name in first:
            line = first[name].line
            findings.error(
                one.place(field), f"{kind} '{name}' is there twice (first in line {line})"
            )
        elif name is not None:
            first[name] = one.place(field)


def _check_budgets(document: PolicyDocument, findings: Findings) -> None:
    """Reject two budgets with one identity: they would share one account, and one limit would
    have no effect.
    """
    first: dict[str, Spot] = {}
    for declared in declared_budgets(document):
        budget, identity = declared.block, declared.identity
        overdraft = budget.of("overdraft_usd")
        if budget.of("kind") is BudgetKind.SOFT and overdraft:
            findings.error(
                budget.place("overdraft_usd"),
                "a soft budget refuses nothing, so there is nothing to overdraw; remove this "
                "field or write kind: hard",
            )
        if identity is None:
            continue
        field = "name" if budget.has("name") else "period"
        if identity in first:
            remedy = (
                "choose another name"
                if field == "name"
                else "remove one, or give one of them a 'name'"
            )
            findings.error(
                budget.place(field),
                f"budget '{shown(identity)}' is there twice (first in line "
                f"{first[identity].line}); {remedy}",
            )
        else:
            first[identity] = budget.place(field)


def _check_aliases(document: PolicyDocument, findings: Findings) -> None:
    """Reject two routes with one name: the document would not show which of them is meant."""
    names, owners = set(_names_of(document, "routes")), dict[str, str]()
    for route in document.blocks_of("routes"):
        for spot, alias in route.items_of("aliases"):
            if alias in names:
                findings.error(
                    spot, f"'{alias}' is the name of a route; remove this alias or rename the route"
                )
            elif alias in owners:
                findings.error(
                    spot,
                    f"'{alias}' is already an alias of route '{owners[alias]}'; remove one of them",
                )
            owners.setdefault(alias, route.of("name") or "?")


def _names_of(document: PolicyDocument, listed: str) -> Iterator[str]:
    return (block.of("name") for block in document.blocks_of(listed) if block.of("name"))


def _check_references(
    block: Block, field: str, kind: str, document: PolicyDocument, findings: Findings
) -> None:
    if document.of(f"{kind}s") is None:
        return
    known, seen = set(_names_of(document, f"{kind}s")), set[str]()
    for spot, name in block.items_of(field):
        if name not in known:
            findings.error(spot, f"there is no {kind} '{name}'{suggestion(name, known)}")
        elif name in seen:
            findings.error(spot, f"{kind} '{name}' is listed twice here; remove one")
        seen.add(name)


def _check_class(team: TeamBlock, document: PolicyDocument, findings: Findings) -> None:
    label, classes = team.of("data_class"), document.of("classes")
    if classes is not None and label is not None and label not in classes:
        findings.error(
            team.place("data_class"),
            f"class '{label}' is not declared; add it under classes, with its regions",
        )


def _check_tags(team: TeamBlock, document: PolicyDocument, findings: Findings) -> None:
    known = document.of("data_tags") or ()
    for spot, tag in team.items_of("data_tags") if document.is_readable("data_tags") else ():
        if tag not in known:
            findings.error(
                spot, f"data tag '{tag}' is not declared under data_tags{suggestion(tag, known)}"
            )


def _check_balance(route: RouteBlock, findings: Findings) -> None:
    balance = route.of("balance")
    if balance is None:
        return
    if route.of("objective") not in ("balanced", None):
        findings.error(
            route.place("balance"),
            "counts only with 'objective: balanced'; write that or remove 'balance'",
        )
    if balance.of("cost") == 0 and balance.of("latency") == 0:
        findings.error(
            route.place("balance"),
            "has no weight above 0; write for example {cost: 0.7, latency: 0.3}",
        )


def _check_weights(route: RouteBlock, findings: Findings) -> None:
    objective, weights = route.of("objective"), route.of("weights")
    listed = route.of("deployments")
    if not route.has("weights"):
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
    names = [name for name in listed if name is not INVALID]
    for deployment, (spot, _) in route.entries_of("weights").items():
        if deployment not in names:
            findings.error(
                spot, f"the route has no deployment '{deployment}'{suggestion(deployment, names)}"
            )
    missing = [deployment for deployment in dict.fromkeys(names) if deployment not in weights]
    if missing:
        findings.error(
            route.place("weights"),
            f"lacks {', '.join(missing)}; each deployment of the route has a weight",
        )


def _check_degrading(route: RouteBlock, document: PolicyDocument, findings: Findings) -> None:
    wanted = route.of("degrade_to")
    if wanted is None or document.of("routes") is None:
        return
    next_of = {one.of("name"): one.of("degrade_to") for one in document.blocks_of("routes")}
    known = [name for name in next_of if name is not None]
    spot, own = route.place("degrade_to"), route.of("name")
    if wanted not in known:
        findings.error(spot, f"there is no route '{wanted}'{suggestion(wanted, known)}")
    elif own is not None and (way := _degrade_cycle(own, next_of)):
        findings.error(
            spot, f"leads back to '{own}' ({' to '.join(way)}); degrade to another route"
        )
    if not route.has("latency") and not route.has("max_cost_usd"):
        findings.error(
            spot,
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
