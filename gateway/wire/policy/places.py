"""Residency rules and facts about places in a policy document: their fields, and the conversion
to values and back.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from gateway.domain.places.known_hosts import KNOWN_PROVIDERS, Statement
from gateway.domain.policy.policy import ResidencyRule
from gateway.wire.policy.names import day, name, source, words
from gateway.wire.policy.readers import (
    Block,
    Entry,
    Field,
    Listed,
    boolean,
    declared_only,
    integer,
    list_of,
    one_of,
)

PROVIDERS = ("vllm", "openai", "openai_compatible")
DENIABLE_PROVIDERS = tuple(sorted({*PROVIDERS, *KNOWN_PROVIDERS}))
MODES = ("enforced", "shadow")
_RULE_FIELDS = (
    Field(
        name="regions",
        read=list_of(name),
        example="[eu]",
        default_text="no say",
        meaning="Regions that may process it; a parent stands for all under it; `any` allows every "
        "place, `global` and `unknown` included; `[]` allows none.",
    ),
    Field(
        name="at_rest",
        read=list_of(name),
        example="[eu]",
        default_text="no say",
        meaning="Regions in which the deployment may store data; only `any` allows an unknown one.",
    ),
    Field(
        name="telemetry",
        read=list_of(name),
        example="[eu, us]",
        default_text="no say",
        meaning="Regions to which the deployment may send telemetry; only `any` allows an unknown "
        "one.",
    ),
    Field(
        name="self_hosted",
        read=boolean,
        example="true",
        default=False,
        default_text="`false`",
        meaning="If true, only deployments with `self_hosted: true` may process it.",
    ),
    Field(
        name="max_retention_days",
        read=integer(least=0, most=36_500),
        example="0",
        default_text="no say",
        meaning="Longest time a deployment may keep data; unknown is too long.",
    ),
    Field(
        name="deny_regions",
        read=list_of(name),
        example="[cn]",
        default_text="`[]`",
        meaning="Regions in which no data may be processed or stored, and to which no telemetry "
        "may go, not even in part. An unknown one of the three is denied.",
    ),
    Field(
        name="deny_providers",
        read=list_of(one_of(DENIABLE_PROVIDERS)),
        example="[openai]",
        default_text="`[]`",
        meaning="Providers that may not have it, by the deployment's `provider` or by its host; of "
        f"{', '.join(f'`{p}`' for p in DENIABLE_PROVIDERS)}.",
    ),
    Field(
        name="gateway_regions",
        read=list_of(name),
        example="[eu]",
        default_text="no say",
        meaning="Regions in which the gateway itself must run, by its `TOLLGATE_REGION`.",
    ),
    Field(
        name="mode",
        read=one_of(MODES),
        example="shadow",
        default="enforced",
        default_text="`enforced`",
        meaning="`shadow` denies nothing: its denials are only counted and shown.",
    ),
)

RULE = Block(name="residency rule", fields=_RULE_FIELDS)
CLASS = Block(
    name="class",
    fields=(replace(_RULE_FIELDS[0], is_required=True), *_RULE_FIELDS[1:]),
)

FACTS = Block(
    name="residency block",
    fields=(
        Field(
            name="at_rest",
            read=name,
            example="eu",
            default_text="the bundled fact about its host, else `unknown`",
            meaning="The place of stored data: a region, `global` or `unknown`.",
        ),
        Field(
            name="telemetry",
            read=name,
            example="eu",
            default_text="the bundled fact about its host, else `unknown`",
            meaning="The destination of telemetry: a region, `global` or `unknown`.",
        ),
        Field(
            name="retention_days",
            read=integer(least=0, most=36_500),
            example="30",
            default_text="the bundled fact about its host, else unknown",
            meaning="How long it keeps data; 0: not at all.",
        ),
        Field(
            name="sub_processor",
            read=words,
            example="Example Hosting GmbH",
            default_text="the bundled fact about its host, else unknown",
            meaning="Sub-processor; shown, but no rule uses it.",
        ),
        Field(
            name="source",
            read=source,
            example="contract 2026-114, annex 2",
            default_text="none",
            meaning="Source of these facts, including `region`: a name or an address; goes with "
            "`as_of`.",
        ),
        Field(
            name="as_of",
            read=day,
            example="2026-11-20",
            default_text="none",
            meaning="The day on which it was so; goes with `source`.",
        ),
    ),
)


def rule_from_wire(rule_id: str, rule: Entry) -> ResidencyRule:
    values = rule.values
    return ResidencyRule(
        rule_id=rule_id,
        regions=names_of(values["regions"]),
        at_rest=names_of(values["at_rest"]),
        telemetry=names_of(values["telemetry"]),
        self_hosted_only=values["self_hosted"],
        max_retention_days=values["max_retention_days"],
        deny_regions=names_of(values["deny_regions"]) or frozenset(),
        deny_providers=names_of(values["deny_providers"]) or frozenset(),
        gateway_regions=names_of(values["gateway_regions"]),
        is_shadow=values["mode"] == "shadow",
    )


def names_of(listed: Listed | None) -> frozenset[str] | None:
    """Return the values of a list; None if there is no list, which differs from an empty list."""
    return None if listed is None else frozenset(listed.items)


def rule_to_wire(rule: ResidencyRule) -> dict[str, Any]:
    return declared_only(
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


def statement_from_wire(declared: Entry | None) -> Statement | None:
    if declared is None:
        return None
    values = declared.values
    return Statement(**values | {"source": values["source"] or ""})


def statement_to_wire(said: Statement | None) -> dict[str, Any] | None:
    if said is None:
        return None
    return declared_only(
        {
            "at_rest": said.at_rest,
            "telemetry": said.telemetry,
            "retention_days": said.retention_days,
            "sub_processor": said.sub_processor,
            "source": said.source or None,
            "as_of": None if said.as_of is None else said.as_of.isoformat(),
        }
    )
