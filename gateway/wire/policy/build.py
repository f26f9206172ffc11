"""A document without errors to a `Policy`, and a `Policy` back to a document with its defaults."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from decimal import Decimal
from typing import Any

from gateway.domain.known_places import Statement
from gateway.domain.policy import (
    DEFAULT_OPERATIONS,
    DataClass,
    Deployment,
    EndUserRule,
    Operation,
    Policy,
    ResidencyRule,
    Route,
    Team,
    Timeouts,
)
from gateway.domain.pricing import Price, Rate
from gateway.domain.selfhost import BilledHours, GpuRate
from gateway.domain.tokens import CALL_KINDS
from gateway.wire.policy.allowances import (
    alerts_from_wire,
    alerts_to_wire,
    allowances_to_wire,
    cost_centre_from_wire,
    cost_centre_to_wire,
    limits_by,
    limits_from_wire,
    limits_to_wire,
    team_budgets,
)
from gateway.wire.policy.readers import Entry, Listed, entries
from gateway.wire.policy.schema import CALLS_PER_RATE, RATES

POLICY_SOURCE = "policy"
STAND_IN_SOURCE = "stand-in: policy"


def from_wire(document: Entry) -> Policy:
    """Build the policy of a document that has no errors."""
    values = document.values
    regions = values["regions"].values if values["regions"] else {}
    deployments = [_deployment(entry.values) for entry in values["deployments"].items]
    routes = [_route(entry.values) for entry in values["routes"].items]
    teams = [_team(entry) for entry in values["teams"].items]
    cost_centres = [cost_centre_from_wire(entry) for entry in entries(values["cost_centres"])]
    classes, tags = values["classes"].values, values["data_tags"].values if values["data_tags"] else {}
    return Policy(
        regions={parent: children.items for parent, children in regions.items()},
        classes={DataClass[label.upper()]: _rule(f"class:{label}", rule) for label, rule in classes.items()},
        data_tags={tag: _rule(f"tag:{tag}", rule) for tag, rule in tags.items()},
        facts_valid_days=values["facts_valid_days"],
        deployments={deployment.name: deployment for deployment in deployments},
        routes={route.name: route for route in routes},
        teams={team.name: team for team in teams},
        cost_centres={centre.name: centre for centre in cost_centres},
        alerts=alerts_from_wire(values["alerts"]),
    )


def to_wire(policy: Policy) -> dict[str, Any]:
    """Return the document of a policy, every default written out; reading it gives the same policy."""
    document = {
        "version": 1,
        "regions": {parent: list(children) for parent, children in policy.regions.items()},
        "classes": {data_class.label: _rule_to_wire(rule) for data_class, rule in policy.classes.items()},
        "data_tags": {tag: _rule_to_wire(rule) for tag, rule in policy.data_tags.items()},
        "facts_valid_days": policy.facts_valid_days,
        "deployments": [_deployment_to_wire(deployment) for deployment in policy.deployments.values()],
        "routes": [_route_to_wire(route) for route in policy.routes.values()],
        "teams": [_team_to_wire(team) for team in policy.teams.values()],
        "cost_centres": [cost_centre_to_wire(centre) for centre in policy.cost_centres.values()],
        "alerts": alerts_to_wire(policy.alerts) if policy.alerts is not None else None,
    }
    return _declared(document)


def _declared(document: dict[str, Any]) -> dict[str, Any]:
    """A block less the fields that are not declared and have no default (a price, a window)."""
    return {name: value for name, value in document.items() if value is not None}


def _rule(rule_id: str, rule: Entry) -> ResidencyRule:
    values = rule.values
    return ResidencyRule(
        rule_id=rule_id,
        regions=_names(values["regions"]),
        at_rest=_names(values["at_rest"]),
        telemetry=_names(values["telemetry"]),
        self_hosted_only=values["self_hosted"],
        max_retention_days=values["max_retention_days"],
        deny_regions=_names(values["deny_regions"]) or frozenset(),
        deny_providers=_names(values["deny_providers"]) or frozenset(),
        gateway_regions=_names(values["gateway_regions"]),
        is_shadow=values["mode"] == "shadow",
    )


def _names(listed: Listed | None) -> frozenset[str] | None:
    """What a list holds; None where there is no list, which is not an empty one."""
    return None if listed is None else frozenset(listed.items)


def _rule_to_wire(rule: ResidencyRule) -> dict[str, Any]:
    return _declared(
        {
            "regions": _sorted(rule.regions),
            "at_rest": _sorted(rule.at_rest),
            "telemetry": _sorted(rule.telemetry),
            "self_hosted": rule.self_hosted_only,
            "max_retention_days": rule.max_retention_days,
            "deny_regions": sorted(rule.deny_regions),
            "deny_providers": sorted(rule.deny_providers),
            "gateway_regions": _sorted(rule.gateway_regions),
            "mode": "shadow" if rule.is_shadow else "enforced",
        }
    )


def _sorted(names: frozenset[str] | None) -> list[str] | None:
    return None if names is None else sorted(names)


def _statement(declared: Entry | None) -> Statement | None:
    if declared is None:
        return None
    values = declared.values
    return Statement(**values | {"source": values["source"] or ""})


def _statement_to_wire(said: Statement | None) -> dict[str, Any] | None:
    if said is None:
        return None
    return _declared(
        {
            "at_rest": said.at_rest,
            "telemetry": said.telemetry,
            "retention_days": said.retention_days,
            "sub_processor": said.sub_processor,
            "source": said.source or None,
            "as_of": None if said.as_of is None else said.as_of.isoformat(),
        }
    )


def _deployment(values: dict[str, Any]) -> Deployment:
    declared = values["self_hosted"]
    return Deployment(
        name=values["name"],
        provider=values["provider"],
        base_url=values["base_url"],
        model=values["model"],
        region=values["region"],
        is_self_hosted=values["provider"] == "vllm" if declared is None else declared,
        residency=_statement(values["residency"]),
        api_key=values["api_key"],
        gpu=_gpu(values["gpu"].values) if values["gpu"] else None,
        price=_price(values, values["price"], POLICY_SOURCE) if values["price"] else None,
        stand_in_price=_stand_in(values) if values["stand_in_price"] else None,
        operations=frozenset(map(Operation, values["operations"].items))
        if values["operations"]
        else DEFAULT_OPERATIONS,
        capabilities=None if values["capabilities"] is None else frozenset(values["capabilities"].items),
        allows=frozenset(values["allows"].items) if values["allows"] else frozenset(),
        context_window=values["context_window"],
        max_output_tokens=values["max_output_tokens"],
        input_overhead_tokens=values["input_overhead_tokens"],
        limits=limits_from_wire(values["limits"]),
        timeouts=_timeouts(values["timeouts"]),
    )


def _gpu(values: dict[str, Any]) -> GpuRate:
    return GpuRate(**values | {"hours": BilledHours(values["hours"])})


def _price(values: dict[str, Any], declared: Entry, source: str) -> Price:
    tiers = declared.values["service_tiers"].values if declared.values["service_tiers"] else {}
    rates = [*_rates(declared, None), *(rate for tier, own in tiers.items() for rate in _rates(own, tier))]
    return Price(provider=values["provider"], model=values["model"], source=source, rates=tuple(rates))


def _stand_in(values: dict[str, Any]) -> Price:
    return replace(_price(values, values["stand_in_price"], STAND_IN_SOURCE), is_stand_in=True)


def _rates(declared: Entry, tier: str | None) -> Iterator[Rate]:
    for kind, name in RATES.items():
        usd = declared.values[name]
        if usd is not None:
            per_mtok = usd * CALLS_PER_RATE if kind in CALL_KINDS else usd
            yield Rate(kind=kind, usd_per_mtok=per_mtok, service_tier=tier)


def _timeouts(declared: Entry | None) -> Timeouts:
    if declared is None:
        return Timeouts()
    return Timeouts(**{name: float(seconds) for name, seconds in declared.values.items()})


def _route(values: dict[str, Any]) -> Route:
    return Route(
        name=values["name"],
        deployments=values["deployments"].items,
        shadow_deployments=values["shadow_deployments"].items if values["shadow_deployments"] else (),
        aliases=values["aliases"].items if values["aliases"] else (),
        objective=values["objective"],
        max_output_tokens=values["max_output_tokens"],
    )


def _route_to_wire(route: Route) -> dict[str, Any]:
    return _declared(
        {
            "name": route.name,
            "aliases": list(route.aliases),
            "deployments": list(route.deployments),
            "shadow_deployments": list(route.shadow_deployments),
            "objective": route.objective,
            "max_output_tokens": route.max_output_tokens,
        }
    )


def _team(entry: Entry) -> Team:
    values = entry.values
    return Team(
        name=values["name"],
        cost_centre=values["cost_centre"],
        data_class=DataClass[values["data_class"].upper()],
        routes=values["routes"].items,
        data_tags=_names(values["data_tags"]) or frozenset(),
        residency=_rule(f"team:{values['name']}", values["residency"]) if values["residency"] else None,
        end_user=EndUserRule(values["end_user"]),
        time_zone=values["time_zone"],
        budgets=team_budgets(entry),
        limits=limits_from_wire(values["limits"]),
        project_limits=limits_by("name", values["projects"]),
        key_limits=limits_by("key", values["keys"]),
    )


def _team_to_wire(team: Team) -> dict[str, Any]:
    document = {
        "name": team.name,
        "cost_centre": team.cost_centre,
        "data_class": team.data_class.label,
        "routes": list(team.routes),
        "data_tags": sorted(team.data_tags),
        "residency": _rule_to_wire(team.residency) if team.residency else None,
        "end_user": team.end_user.value,
        **allowances_to_wire(team),
    }
    return _declared(document)


def _deployment_to_wire(deployment: Deployment) -> dict[str, Any]:
    timeouts = deployment.timeouts
    document: dict[str, Any] = {
        "name": deployment.name,
        "provider": deployment.provider,
        "base_url": deployment.base_url,
        "api_key": deployment.api_key,
        "model": deployment.model,
        "region": deployment.region,
        "self_hosted": deployment.is_self_hosted,
        "residency": _statement_to_wire(deployment.residency),
        "gpu": _gpu_to_wire(deployment.gpu) if deployment.gpu else None,
        "price": _price_to_wire(deployment.price) if deployment.price else None,
        "stand_in_price": _price_to_wire(deployment.stand_in_price) if deployment.stand_in_price else None,
        "operations": sorted(operation.value for operation in deployment.operations),
        "capabilities": None if deployment.capabilities is None else sorted(deployment.capabilities),
        "allows": sorted(deployment.allows),
        "context_window": deployment.context_window,
        "max_output_tokens": deployment.max_output_tokens,
        "input_overhead_tokens": deployment.input_overhead_tokens,
        "limits": limits_to_wire(deployment.limits) if deployment.limits.is_limited else None,
        "timeouts": {
            "connect_s": Decimal(str(timeouts.connect_s)),
            "first_byte_s": Decimal(str(timeouts.first_byte_s)),
            "idle_s": Decimal(str(timeouts.idle_s)),
            "total_s": Decimal(str(timeouts.total_s)),
        },
    }
    return _declared(document)


def _gpu_to_wire(gpu: GpuRate) -> dict[str, Any]:
    document = {
        "type": gpu.type,
        "count": gpu.count,
        "usd_per_gpu_hour": gpu.usd_per_gpu_hour,
        "input_tok_per_s": gpu.input_tok_per_s,
        "output_tok_per_s": gpu.output_tok_per_s,
        "cached_input_tok_per_s": gpu.cached_input_tok_per_s,
        "target_utilisation": gpu.target_utilisation,
        "hours": gpu.hours.value,
    }
    return _declared(document)


def _price_to_wire(price: Price) -> dict[str, Any]:
    document: dict[str, Any] = _rates_to_wire(price, None)
    if price.service_tiers:
        document["service_tiers"] = {tier: _rates_to_wire(price, tier) for tier in price.service_tiers}
    return document


def _rates_to_wire(price: Price, tier: str | None) -> dict[str, Decimal]:
    return {
        RATES[rate.kind]: rate.usd_per_mtok / CALLS_PER_RATE if rate.kind in CALL_KINDS else rate.usd_per_mtok
        for rate in price.rates
        if rate.service_tier == tier
    }
