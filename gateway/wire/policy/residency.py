"""Declares the blocks of residency rules and of facts about places in a policy document, and
converts them to domain values and back.
"""

from __future__ import annotations

from typing import Annotated, Any, Self

from gateway.domain.policy.policy import ResidencyRule
from gateway.domain.providers.known_hosts import KNOWN_PROVIDERS, Statement
from gateway.domain.providers.table import PROVIDERS
from gateway.domain.words import listed
from gateway.wire.policy.scalars import Days, IsShadow, Name, Names, Source, Words
from gateway.wire.yaml_blocks.blocks import Block, Items, optional, required
from gateway.wire.yaml_blocks.scalars import Boolean, Day, one_of

_COMPANIES = {one.company for one in PROVIDERS.values() if one.company}
DENIABLE_PROVIDERS = tuple(sorted({*PROVIDERS, *KNOWN_PROVIDERS, *_COMPANIES}))
ALLOWED = ("regions", "at_rest", "telemetry", "gateway_regions")


class ResidencyRuleBlock(Block):
    """A residency rule of a data tag or a team."""

    title = "residency rule"
    makes = ResidencyRule
    sets = (*ALLOWED, "deny_regions", "deny_providers")
    regions: Names | None = optional(
        "Regions that may process it; a parent stands for all under it; `any` allows "
        "every place, `global` and `unknown` included; `[]` allows none.",
        "[eu]",
        shown="no say",
    )
    at_rest: Names | None = optional(
        "Regions in which the deployment may store data; only `any` allows an unknown one.",
        "[eu]",
        shown="no say",
    )
    telemetry: Names | None = optional(
        "Regions to which the deployment may send telemetry; only `any` allows an unknown one.",
        "[eu, us]",
        shown="no say",
    )
    self_hosted_only: Boolean = optional(
        "If true, only deployments with `self_hosted: true` may process it.",
        "true",
        False,
        shown="`false`",
        alias="self_hosted",
    )
    max_retention_days: Days | None = optional(
        "Longest time a deployment may keep data; unknown is too long.", "0", shown="no say"
    )
    deny_regions: Names | None = optional(
        "Regions in which no data may be processed or stored, and to which no telemetry "
        "may go, not even in part. An unknown one of the three is denied.",
        "[cn]",
        shown="`[]`",
    )
    deny_providers: Annotated[list[Annotated[str, one_of(DENIABLE_PROVIDERS)]], Items()] | None = (
        optional(
            "Providers that may not have it, by the deployment's `provider` or by its host; "
            f"of {listed(DENIABLE_PROVIDERS)}.",
            "[openai]",
            shown="`[]`",
        )
    )
    gateway_regions: Names | None = optional(
        "Regions in which the gateway itself must run, by its `TOLLGATE_REGION`.",
        "[eu]",
        shown="no say",
    )
    is_shadow: IsShadow = optional(
        "`shadow` denies nothing: its denials are only counted and shown.",
        "shadow",
        False,
        shown="`enforced`",
        alias="mode",
    )


class ClassBlock(ResidencyRuleBlock):
    """The residency rule of a data class."""

    title = "class"
    regions: Names = required(
        "Regions that may process it; a parent stands for all under it; `any` allows "
        "every place, `global` and `unknown` included; `[]` allows none.",
        "[eu]",
    )


class FactsBlock(Block):
    """Facts about a deployment's place."""

    title = "residency block"
    makes = Statement
    at_rest: Name | None = optional(
        "The place of stored data: a region, `global` or `unknown`.",
        "eu",
        shown="the bundled fact about its host, else `unknown`",
    )
    telemetry: Name | None = optional(
        "The destination of telemetry: a region, `global` or `unknown`.",
        "eu",
        shown="the bundled fact about its host, else `unknown`",
    )
    retention_days: Days | None = optional(
        "How long it keeps data; 0: not at all.",
        "30",
        shown="the bundled fact about its host, else unknown",
    )
    sub_processor: Words | None = optional(
        "Sub-processor; shown, but no rule uses it.",
        "Example Hosting GmbH",
        shown="the bundled fact about its host, else unknown",
    )
    source: Source | None = optional(
        "Source of these facts, including `region`: a name or an address; goes with `as_of`.",
        "contract 2026-114, annex 2",
    )
    as_of: Day | None = optional("The day on which it was so; goes with `source`.", "2026-11-20")

    @classmethod
    def of_value(cls, value: Any, **others: Any) -> Self:
        """Return the block of the stated facts about a deployment's place."""
        return super().of_value(value, source=value.source or None, **others)
