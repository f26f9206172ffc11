"""Errors that involve several fields: unknown references, names taken twice, fields that exclude
others.
"""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal

from gateway.domain.budgets.budgets import BudgetKind
from gateway.wire.policy.allowances import declared_budgets
from gateway.wire.policy.findings import Findings, Spot, shown, suggestion
from gateway.wire.policy.readers import Entry, Listed, entries
from gateway.wire.policy.regions import check_deployment_places, check_regions, check_rules
from gateway.wire.policy.routes import check_routes


def check(document: Entry, findings: Findings) -> None:
    """Add a finding for every error between the readable fields."""
    classes, tags = document.of("classes", Entry), document.of("data_tags", Entry)
    deployments, routes = document.of("deployments", Listed), document.of("routes", Listed)
    # If the regions are unreadable, the wrong names cannot be determined.
    regions = (
        check_regions(document.of("regions", Entry), findings)
        if "regions" in document.values
        else None
    )
    if regions is not None:
        check_rules(document, regions, findings)
    for deployment in entries(deployments):
        _check_deployment(deployment, findings)
        if regions is not None:
            check_deployment_places(deployment, regions, findings)
    _check_unique(deployments, "deployment", findings)
    _check_groups(deployments, findings)
    _check_unique(routes, "route", findings)
    _check_unique(document.of("teams", Listed), "team", findings)
    _check_aliases(routes, findings)
    for route in entries(routes):
        if route.of("deployments", Listed) == []:
            findings.error(route.place("deployments"), "must list at least one deployment")
        for field in ("deployments", "shadow_deployments"):
            _check_references(route, field, "deployment", deployments, findings)
    check_routes(routes, findings)
    for team in entries(document.of("teams", Listed)):
        _check_references(team, "routes", "route", routes, findings)
        _check_class(team, classes, findings)
        if "data_tags" in document.values:
            _check_tags(team, tags, findings)
        _check_unique(team.of("projects", Listed), "project", findings)
        _check_unique(team.of("keys", Listed), "key", findings, field="key")
    _check_unique(document.of("cost_centres", Listed), "cost centre", findings)
    _check_budgets(document, findings)


def _check_deployment(deployment: Entry, findings: Findings) -> None:
    for field, is_broken, message in _DEPLOYMENT_RULES:
        if is_broken(deployment):
            findings.error(deployment.place(field), message)


def _is_self_hosted(deployment: Entry) -> bool:
    declared = deployment.of("self_hosted", bool)
    return declared if declared is not None else deployment.of("provider", str) == "vllm"


def _has(deployment: Entry, field: str) -> bool:
    return field in deployment.spots


def _lacks_output_price(field: str) -> Callable[[Entry], bool]:
    """Return a test for a price or tier without an output price although the deployment
    generates output.
    """

    def lacks(deployment: Entry) -> bool:
        price, operations = deployment.of(field, Entry), deployment.of("operations", Listed)
        only_embeds = operations is not None and set(operations.items) == {"embeddings"}
        if price is None or only_embeds:
            return False
        tiers = price.of("service_tiers", Entry)
        blocks = (price, *(tiers.values.values() if tiers is not None else ()))
        return any(not _has(block, "output_usd_per_mtok") for block in blocks)

    return lacks


def _answers_past_window(deployment: Entry) -> bool:
    window, answer = deployment.of("context_window", int), deployment.of("max_output_tokens", int)
    return window is not None and answer is not None and answer > window


_DEPLOYMENT_RULES: tuple[tuple[str, Callable[[Entry], bool], str], ...] = (
    (
        "api_key",
        lambda d: d.of("provider", str) == "openai" and not _has(d, "api_key"),
        "is missing; openai asks for one: write for example 'api_key: env:OPENAI_API_KEY'",
    ),
    (
        "gpu",
        lambda d: _has(d, "gpu") and _has(d, "price"),
        "a deployment has either 'gpu' or 'price'; remove one of them",
    ),
    (
        "gpu",
        lambda d: _has(d, "gpu") and d.of("provider", str) is not None and not _is_self_hosted(d),
        "GPU hours price only self-hosted deployments; add 'self_hosted: true' or write 'price' "
        "instead",
    ),
    (
        "self_hosted",
        lambda d: d.of("provider", str) == "openai" and d.of("self_hosted", bool) is True,
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
        lambda d: _has(d, "stand_in_price") and (_has(d, "price") or _has(d, "gpu")),
        "stands in only while nothing else prices the deployment, but 'price' or 'gpu' does; "
        "remove one of them",
    ),
    (
        "operations",
        lambda d: d.of("operations", Listed) == [],
        "must list at least one operation, or be left out for the default",
    ),
    (
        "max_output_tokens",
        _answers_past_window,
        "is larger than 'context_window'; an answer must fit in the window",
    ),
)


_ALIKE = ("provider", "model", "region", "gpu", "price", "stand_in_price")


def _check_groups(deployments: Listed | None, findings: Findings) -> None:
    """Check that all members of a group are the same engine at the same price, except for the
    address.

    Any member may serve a session.
    """
    first: dict[str, Entry] = {}
    for deployment in entries(deployments):
        group = deployment.of("group", str)
        if group is None:
            continue
        model = first.setdefault(group, deployment)
        different = [field for field in _ALIKE if _plain(deployment, field) != _plain(model, field)]
        if different:
            findings.error(
                deployment.place("group"),
                f"'{group}' holds replicas of one engine, but {', '.join(different)} of this "
                f"deployment is not that of '{shown(model.of('name', str) or '?')}'; make them the "
                "same or choose another group",
            )


def _plain(entry: Entry, field: str) -> object:
    """Return a field's value without the spots from which it was read."""
    value = entry.values.get(field)
    return (
        {name: _plain(value, name) for name in value.values} if isinstance(value, Entry) else value
    )


def _check_unique(
    listed: Listed | None, kind: str, findings: Findings, *, field: str = "name"
) -> None:
    first: dict[str, Spot] = {}
    for entry in entries(listed):
        name = entry.of(field, str)
        if name is None:
            continue
        if name in first:
            findings.error(
                entry.place(field),
                f"{kind} '{name}' is there twice (first in line {first[name].line})",
            )
        else:
            first[name] = entry.place(field)


def _check_budgets(document: Entry, findings: Findings) -> None:
    """Reject two budgets with one identity: they would share one account, and one limit would
    have no effect.
    """
    first: dict[str, Spot] = {}
    for declared in declared_budgets(document):
        budget, identity = declared.entry, declared.identity
        overdraft = budget.of("overdraft_usd", Decimal)
        if budget.of("kind", str) == BudgetKind.SOFT and overdraft:
            findings.error(
                budget.place("overdraft_usd"),
                "a soft budget refuses nothing, so there is nothing to overdraw; remove this "
                "field or write kind: hard",
            )
        if identity is None:
            continue
        field = "name" if "name" in budget.spots else "period"
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


def _check_aliases(routes: Listed | None, findings: Findings) -> None:
    """Reject two routes with one name: the document would not show which of them is meant."""
    names = {route.of("name", str) for route in entries(routes)}
    owners: dict[str, str] = {}
    for route in entries(routes):
        owner = route.of("name", str) or "?"
        for spot, alias in route.of("aliases", Listed) or ():
            if alias in names:
                findings.error(
                    spot, f"'{alias}' is the name of a route; remove this alias or rename the route"
                )
            elif alias in owners:
                findings.error(
                    spot,
                    f"'{alias}' is already an alias of route '{owners[alias]}'; remove one of them",
                )
            owners.setdefault(alias, owner)


def _check_references(
    entry: Entry, field: str, kind: str, targets: Listed | None, findings: Findings
) -> None:
    if targets is None:
        return
    known = {name for name in (target.of("name", str) for target in entries(targets)) if name}
    seen: set[str] = set()
    for spot, name in entry.of(field, Listed) or ():
        if name not in known:
            findings.error(spot, f"there is no {kind} '{name}'{suggestion(name, known)}")
        elif name in seen:
            findings.error(spot, f"{kind} '{name}' is listed twice here; remove one")
        seen.add(name)


def _check_class(team: Entry, classes: Entry | None, findings: Findings) -> None:
    label = team.of("data_class", str)
    if classes is not None and label is not None and label not in classes.spots:
        findings.error(
            team.place("data_class"),
            f"class '{label}' is not declared; add it under classes, with its regions",
        )


def _check_tags(team: Entry, tags: Entry | None, findings: Findings) -> None:
    known = tags.spots if tags is not None else {}
    for spot, tag in team.of("data_tags", Listed) or ():
        if tag not in known:
            findings.error(
                spot, f"data tag '{tag}' is not declared under data_tags{suggestion(tag, known)}"
            )
