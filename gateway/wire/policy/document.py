"""Declares the whole policy document as a block, and converts it to a `Policy` and back; checks no
rules between fields.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any, Self

from gateway.domain.policy.policy import DataClass, Policy
from gateway.domain.words import listed
from gateway.wire.policy.cost_shares import CostShareBlock
from gateway.wire.policy.dashboard import DashboardBlock
from gateway.wire.policy.deployments import (
    BillingBlock,
    CredentialsBlock,
    DeploymentBlock,
    LatencyBlock,
    TimeoutsBlock,
    UnlistedBlock,
)
from gateway.wire.policy.idle_cost import IdleCostBlock
from gateway.wire.policy.limits import LimitsBlock
from gateway.wire.policy.prices import GpuBlock, PriceBlock
from gateway.wire.policy.residency import ClassBlock, FactsBlock, ResidencyRuleBlock
from gateway.wire.policy.routes import BalanceBlock, BoundBlock, RouteBlock
from gateway.wire.policy.scalars import LABELS, Names, Version, check_label, check_region, check_tag
from gateway.wire.policy.teams import (
    AlertsBlock,
    BudgetBlock,
    CostCentreBlock,
    KeyBlock,
    ProjectBlock,
    TeamBlock,
)
from gateway.wire.yaml_blocks.blocks import Block, Entries, Items, optional, required
from gateway.wire.yaml_blocks.scalars import integer


def _policy(*, version: int, **members: Any) -> Policy:
    """Return the policy of a document's members, without the version of its format."""
    return Policy(**members)


class PolicyDocument(Block):
    """A policy document of Tollgate."""

    title = "policy"
    makes = _policy
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
    data_tags: Annotated[dict[str, ResidencyRuleBlock], Entries(check_tag)] | None = optional(
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
        "Titles and owners of cost centres, and budgets of all their teams together.",
        "[]",
        shown="`[]`",
    )
    alerts: AlertsBlock | None = optional(
        "The receivers of alerts.",
        "{webhook: ..., secret: ...}",
        shown="none: budget alerts are only in log and metrics",
    )
    dashboard: DashboardBlock | None = optional(
        "Which teams a person sees in the dashboard, by a claim of the sign-in.",
        "{finance: [finops], teams: {payments: [grp-payments]}}",
        shown="none: people who sign in see no page",
    )

    def policy(self) -> Policy:
        """Return the policy of a document without errors."""
        values = (self.deployments, self.routes, self.teams, self.cost_centres or ())
        deployments, routes, teams, centres = map(_by_name, values)
        tags, classes = self.data_tags or {}, self.classes
        policy: Policy = self.value(
            regions={parent: tuple(under) for parent, under in (self.regions or {}).items()},
            classes={
                DataClass[label.upper()]: rule.value(rule_id=f"class:{label}")
                for label, rule in classes.items()
            },
            data_tags={tag: rule.value(rule_id=f"tag:{tag}") for tag, rule in tags.items()},
            deployments=deployments,
            routes=routes,
            teams=teams,
            cost_centres=centres,
        )
        return policy

    @classmethod
    def of_value(cls, value: Any, **others: Any) -> Self:
        """Return the document of a policy, with every default written out."""
        return super().of_value(
            value,
            version=1,
            classes={one.label: ClassBlock.of_value(rule) for one, rule in value.classes.items()},
            deployments=[DeploymentBlock.of_value(one) for one in value.deployments.values()],
            routes=[RouteBlock.of_value(route) for route in value.routes.values()],
            teams=[TeamBlock.of_value(team) for team in value.teams.values()],
            cost_centres=[CostCentreBlock.of_value(one) for one in value.cost_centres.values()],
            **others,
        )


def _by_name(blocks: Iterable[Block]) -> dict[str, Any]:
    """Return the domain values of blocks by their names."""
    values = [block.value() for block in blocks]
    return {value.name: value for value in values}


# The heading of each block in the reference.
BLOCKS: dict[str, type[Block]] = {
    "Document": PolicyDocument,
    "classes": ClassBlock,
    "data_tags": ResidencyRuleBlock,
    "deployments": DeploymentBlock,
    "deployments: residency": FactsBlock,
    "deployments: credentials": CredentialsBlock,
    "deployments: billing": BillingBlock,
    "deployments: unlisted": UnlistedBlock,
    "deployments: gpu": GpuBlock,
    "deployments: price": PriceBlock,
    "deployments: idle_cost": IdleCostBlock,
    "deployments: latency": LatencyBlock,
    "deployments: timeouts": TimeoutsBlock,
    "routes": RouteBlock,
    "routes: balance": BalanceBlock,
    "routes: latency": BoundBlock,
    "teams": TeamBlock,
    "budgets": BudgetBlock,
    "limits": LimitsBlock,
    "teams: cost_centre": CostShareBlock,
    "teams: projects": ProjectBlock,
    "teams: keys": KeyBlock,
    "cost_centres": CostCentreBlock,
    "alerts": AlertsBlock,
    "dashboard": DashboardBlock,
}
