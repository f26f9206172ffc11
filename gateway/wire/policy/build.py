"""Converting a document without errors to a `Policy`, and a `Policy` back to a document with its
defaults.
"""

from __future__ import annotations

from decimal import Decimal
from typing import Any

from gateway.domain.budgets.budgets import EACH
from gateway.domain.policy.policy import (
    DEFAULT_OPERATIONS,
    DataClass,
    Deployment,
    EndUserRule,
    LatencyPrior,
    Operation,
    OutputLimit,
    Policy,
    Priority,
    Team,
    Timeouts,
    default_output_limit,
)
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
from gateway.wire.policy.places import (
    names_of,
    rule_from_wire,
    rule_to_wire,
    statement_from_wire,
    statement_to_wire,
)
from gateway.wire.policy.rates import (
    POLICY_SOURCE,
    gpu_from_wire,
    gpu_to_wire,
    price_from_wire,
    price_to_wire,
    stand_in_from_wire,
)
from gateway.wire.policy.readers import Entry, declared_only, entries
from gateway.wire.policy.routes import milliseconds, route_from_wire, route_to_wire


def from_wire(document: Entry) -> Policy:
    """Build the policy of a document that has no errors."""
    values = document.values
    regions = values["regions"].values if values["regions"] else {}
    deployments = [_deployment(entry.values) for entry in values["deployments"].items]
    routes = [route_from_wire(entry.values) for entry in values["routes"].items]
    teams = [_team(entry) for entry in values["teams"].items]
    cost_centres = [cost_centre_from_wire(entry) for entry in entries(values["cost_centres"])]
    classes, tags = (
        values["classes"].values,
        values["data_tags"].values if values["data_tags"] else {},
    )
    return Policy(
        regions={parent: children.items for parent, children in regions.items()},
        classes={
            DataClass[label.upper()]: rule_from_wire(f"class:{label}", rule)
            for label, rule in classes.items()
        },
        data_tags={tag: rule_from_wire(f"tag:{tag}", rule) for tag, rule in tags.items()},
        facts_valid_days=values["facts_valid_days"],
        deployments={deployment.name: deployment for deployment in deployments},
        routes={route.name: route for route in routes},
        teams={team.name: team for team in teams},
        cost_centres={centre.name: centre for centre in cost_centres},
        alerts=alerts_from_wire(values["alerts"]),
    )


def to_wire(policy: Policy) -> dict[str, Any]:
    """Return the document of a policy, every default written out; reading it gives the same
    policy.
    """
    document = {
        "version": 1,
        "regions": {parent: list(children) for parent, children in policy.regions.items()},
        "classes": {
            data_class.label: rule_to_wire(rule) for data_class, rule in policy.classes.items()
        },
        "data_tags": {tag: rule_to_wire(rule) for tag, rule in policy.data_tags.items()},
        "facts_valid_days": policy.facts_valid_days,
        "deployments": [
            _deployment_to_wire(deployment) for deployment in policy.deployments.values()
        ],
        "routes": [route_to_wire(route) for route in policy.routes.values()],
        "teams": [_team_to_wire(team) for team in policy.teams.values()],
        "cost_centres": [cost_centre_to_wire(centre) for centre in policy.cost_centres.values()],
        "alerts": alerts_to_wire(policy.alerts) if policy.alerts is not None else None,
    }
    return declared_only(document)


def _deployment(values: dict[str, Any]) -> Deployment:
    declared = values["self_hosted"]
    return Deployment(
        name=values["name"],
        provider=values["provider"],
        base_url=values["base_url"],
        model=values["model"],
        region=values["region"],
        is_self_hosted=values["provider"] == "vllm" if declared is None else declared,
        residency=statement_from_wire(values["residency"]),
        api_key=values["api_key"],
        gpu=gpu_from_wire(values["gpu"].values) if values["gpu"] else None,
        price=price_from_wire(values, values["price"], POLICY_SOURCE) if values["price"] else None,
        stand_in_price=stand_in_from_wire(values) if values["stand_in_price"] else None,
        operations=frozenset(map(Operation, values["operations"].items))
        if values["operations"]
        else DEFAULT_OPERATIONS,
        capabilities=None
        if values["capabilities"] is None
        else frozenset(values["capabilities"].items),
        allows=frozenset(values["allows"].items) if values["allows"] else frozenset(),
        context_window=values["context_window"],
        max_output_tokens=values["max_output_tokens"],
        output_limit=_output_limit(values),
        input_overhead_tokens=values["input_overhead_tokens"],
        limits=limits_from_wire(values["limits"]),
        max_in_flight=values["max_in_flight"],
        group=values["group"],
        prior=_prior(values["latency"]),
        timeouts=_timeouts(values["timeouts"]),
    )


def _output_limit(values: dict[str, Any]) -> OutputLimit:
    if values["output_limit"] is None:
        return default_output_limit(values["provider"], values["base_url"])
    return OutputLimit(values["output_limit"])


def _timeouts(declared: Entry | None) -> Timeouts:
    if declared is None:
        return Timeouts()
    return Timeouts(**{name: float(seconds) for name, seconds in declared.values.items()})


def _prior(declared: Entry | None) -> LatencyPrior | None:
    if declared is None:
        return None
    # Divided as decimals: written out again, it is the number that was read.
    return LatencyPrior(
        ttft_s=float(declared.values["ttft_ms"] / 1000),
        tpot_s=float(declared.values["tpot_ms"] / 1000),
    )


def _prior_to_wire(prior: LatencyPrior | None) -> dict[str, Decimal] | None:
    if prior is None:
        return None
    return {"ttft_ms": milliseconds(prior.ttft_s), "tpot_ms": milliseconds(prior.tpot_s)}


def _team(entry: Entry) -> Team:
    values = entry.values
    return Team(
        name=values["name"],
        cost_centre=values["cost_centre"],
        data_class=DataClass[values["data_class"].upper()],
        routes=values["routes"].items,
        data_tags=names_of(values["data_tags"]) or frozenset(),
        residency=rule_from_wire(f"team:{values['name']}", values["residency"])
        if values["residency"]
        else None,
        end_user=EndUserRule(values["end_user"]),
        priority=Priority(values["priority"]),
        time_zone=values["time_zone"],
        budgets=team_budgets(entry),
        limits=limits_from_wire(values["limits"]),
        projects=frozenset(owner.values["name"] for owner in entries(values["projects"])) - {EACH},
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
        "residency": rule_to_wire(team.residency) if team.residency else None,
        "end_user": team.end_user.value,
        "priority": team.priority.value,
        **allowances_to_wire(team),
    }
    return declared_only(document)


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
        "residency": statement_to_wire(deployment.residency),
        "gpu": gpu_to_wire(deployment.gpu) if deployment.gpu else None,
        "price": price_to_wire(deployment.price) if deployment.price else None,
        "stand_in_price": price_to_wire(deployment.stand_in_price)
        if deployment.stand_in_price
        else None,
        "operations": sorted(operation.value for operation in deployment.operations),
        "capabilities": None
        if deployment.capabilities is None
        else sorted(deployment.capabilities),
        "allows": sorted(deployment.allows),
        "context_window": deployment.context_window,
        "max_output_tokens": deployment.max_output_tokens,
        "output_limit": deployment.output_limit.value,
        "input_overhead_tokens": deployment.input_overhead_tokens,
        "limits": limits_to_wire(deployment.limits) if deployment.limits.is_limited else None,
        "max_in_flight": deployment.max_in_flight,
        "group": deployment.group,
        "latency": _prior_to_wire(deployment.prior),
        "timeouts": {
            "connect_s": Decimal(str(timeouts.connect_s)),
            "first_byte_s": Decimal(str(timeouts.first_byte_s)),
            "first_token_s": Decimal(str(timeouts.first_token_s)),
            "idle_s": Decimal(str(timeouts.idle_s)),
            "total_s": Decimal(str(timeouts.total_s)),
        },
    }
    return declared_only(document)
