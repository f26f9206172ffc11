"""The whole policy document, its conversion to a `Policy` and back, and its JSON Schema."""

from __future__ import annotations

import re
from datetime import date
from typing import Annotated, Any, ClassVar, Self

import yaml
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import core_schema

from gateway.domain.policy.policy import Alerts, DataClass, Policy
from gateway.wire.policy.blocks import Block, Entries, Items, optional, required
from gateway.wire.policy.deployments import DeploymentBlock, LatencyBlock, TimeoutsBlock
from gateway.wire.policy.limits import LimitsBlock
from gateway.wire.policy.places import ClassBlock, FactsBlock, RuleBlock
from gateway.wire.policy.prices import GpuBlock, PriceBlock
from gateway.wire.policy.routes import BalanceBlock, BoundBlock, RouteBlock
from gateway.wire.policy.scalars import (
    LABELS,
    Names,
    Version,
    check_label,
    check_region,
    check_tag,
    integer,
    listed,
)
from gateway.wire.policy.teams import (
    AlertsBlock,
    BudgetBlock,
    CostCentreBlock,
    KeyBlock,
    ProjectBlock,
    TeamBlock,
)

SCHEMA_DIALECT = "https://json-schema.org/draft/2020-12/schema"
_IS_VALUE = re.compile(r"`[\w.]+`|`\[\]`|`{}`|[0-9.]+")


class PolicyDocument(Block):
    """A policy document of Tollgate."""

    title: ClassVar[str] = "policy"
    version: Version = required("Version of the format: `1`.", "1")
    regions: Annotated[dict[str, Names], Entries(check_region)] | None = optional(
        "Regions besides the built-in ones: parents and their children, any depth; a "
        "child that is itself a key is a parent.",
        "{eu: [eu-de, eu-fr]}",
        shown="`{}`",
    )
    classes: Annotated[dict[str, ClassBlock], Entries(check_label)] = required(
        f"The allowed places of each data class; keys: {listed(LABELS)}.",
        "{internal: {regions: [any]}}",
    )
    data_tags: Annotated[dict[str, RuleBlock], Entries(check_tag)] | None = optional(
        "Kinds of data that teams and requests name, with the rule that each adds.",
        "{phi: {at_rest: [eu], max_retention_days: 0}}",
        shown="`{}`",
    )
    facts_valid_days: Annotated[int, integer(1, 3_650)] | None = optional(
        "Facts of deployments that are older count as unknown, and so do undated ones of "
        "deployments that are not self-hosted.",
        "90",
        shown="none: facts do not expire",
    )
    deployments: Annotated[list[DeploymentBlock], Items()] = required(
        "Concrete models at providers or engines.", "[]"
    )
    routes: Annotated[list[RouteBlock], Items()] = required("Model names that teams ask for.", "[]")
    teams: Annotated[list[TeamBlock], Items()] = required("The teams, which call and pay.", "[]")
    cost_centres: Annotated[list[CostCentreBlock], Items()] | None = optional(
        "Budgets of all teams of a cost centre together.", "[]", shown="`[]`"
    )
    alerts: AlertsBlock | None = optional(
        "The destination of budget alerts.",
        "{webhook: ..., secret: ...}",
        shown="none: budget alerts are only in log and metrics",
    )

    def policy(self) -> Policy:
        """Return the policy of a document without errors."""
        deployments = [block.deployment() for block in self.deployments]
        routes = [block.route() for block in self.routes]
        teams = [block.team() for block in self.teams]
        centres = [block.cost_centre() for block in self.cost_centres or ()]
        return Policy(
            regions={parent: tuple(under) for parent, under in (self.regions or {}).items()},
            classes={
                DataClass[label.upper()]: rule.rule(f"class:{label}")
                for label, rule in self.classes.items()
            },
            data_tags={
                tag: rule.rule(f"tag:{tag}") for tag, rule in (self.data_tags or {}).items()
            },
            facts_valid_days=self.facts_valid_days,
            deployments={deployment.name: deployment for deployment in deployments},
            routes={route.name: route for route in routes},
            teams={team.name: team for team in teams},
            cost_centres={centre.name: centre for centre in centres},
            alerts=None if self.alerts is None else Alerts(**self.alerts.values()),
        )

    @classmethod
    def of_policy(cls, policy: Policy) -> Self:
        """Return the document of a policy, with every default written out."""
        return cls.of_value(
            policy,
            version=1,
            regions={parent: list(children) for parent, children in policy.regions.items()},
            classes={
                data_class.label: ClassBlock.of_rule(rule)
                for data_class, rule in policy.classes.items()
            },
            data_tags={tag: RuleBlock.of_rule(rule) for tag, rule in policy.data_tags.items()},
            deployments=[DeploymentBlock.of_deployment(d) for d in policy.deployments.values()],
            routes=[RouteBlock.of_route(route) for route in policy.routes.values()],
            teams=[TeamBlock.of_team(team) for team in policy.teams.values()],
            cost_centres=[
                CostCentreBlock.of_cost_centre(centre) for centre in policy.cost_centres.values()
            ],
            alerts=None if policy.alerts is None else AlertsBlock.of_value(policy.alerts),
        )


# The heading of each block in the reference.
BLOCKS: dict[str, type[Block]] = {
    "Document": PolicyDocument,
    "classes": ClassBlock,
    "data_tags": RuleBlock,
    "deployments": DeploymentBlock,
    "deployments: residency": FactsBlock,
    "deployments: gpu": GpuBlock,
    "deployments: price": PriceBlock,
    "deployments: latency": LatencyBlock,
    "deployments: timeouts": TimeoutsBlock,
    "routes": RouteBlock,
    "routes: balance": BalanceBlock,
    "routes: latency": BoundBlock,
    "teams": TeamBlock,
    "budgets": BudgetBlock,
    "limits": LimitsBlock,
    "teams: projects": ProjectBlock,
    "teams: keys": KeyBlock,
    "cost_centres": CostCentreBlock,
    "alerts": AlertsBlock,
}


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema 2020-12 of a document, for editors.

    It accepts every document that `parse` accepts. Rules between fields are not in it.
    """
    schema = PolicyDocument.model_json_schema(schema_generator=_Schema)
    for block in (schema, *schema["$defs"].values()):
        for field in block["properties"].values():
            _complete(field)
    return {"$schema": SCHEMA_DIALECT, **schema, "title": "Tollgate policy"}


class _Schema(GenerateJsonSchema):
    """pydantic's schema without null: an absent field is left out of a document, never empty."""

    def nullable_schema(self, schema: core_schema.NullableSchema) -> JsonSchemaValue:
        return self.generate_inner(schema["schema"])

    def default_schema(self, schema: core_schema.WithDefaultSchema) -> JsonSchemaValue:
        return self.generate_inner(schema["schema"])

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False


def _complete(field: dict[str, Any]) -> None:
    """Turn a field's example and default, which are YAML, into values."""
    examples = [text for text in field.pop("examples", ()) if "..." not in text]
    if examples:
        field["examples"] = [_value(examples[0])]
    default = field.pop("x-default", "none")
    if _IS_VALUE.fullmatch(default):
        field["default"] = _value(default.strip("`"))
    elif default != "none":
        field["description"] = f"{field['description']} Default: {default}."


def _value(text: str) -> Any:
    value = yaml.safe_load(text)
    return text if isinstance(value, date) else value
