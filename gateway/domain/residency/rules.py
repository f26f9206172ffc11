"""Decides which residency rules deny a deployment to a request, and declares the permit to send,
which it verifies again before connecting.

A denial depends only on rules, facts, the gateway's region and the day. Unknown means denied; a
denial always wins; order never matters.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import date

from msgspec import Struct

from gateway.domain.places.regions import RegionTree
from gateway.domain.policy.policy import DataClass, Deployment, Policy, ResidencyRule, Team
from gateway.domain.providers.facts import Known
from gateway.domain.residency.messages import DenialWords
from gateway.errors import InvalidRequest, ResidencyDenied


@dataclass(frozen=True, slots=True, order=True)
class Denial:
    """A rule that does not allow a deployment, and its field.

    A denial in shadow mode is counted and shown, not enforced.

    `why` names the deployment's obstacle; it ends with the rule and the field.
    """

    rule_id: str
    field: str
    is_shadow: bool
    why: str


def rules_for(
    policy: Policy, team: Team, *, data_class: DataClass, data_tags: frozenset[str] = frozenset()
) -> tuple[ResidencyRule, ...]:
    """Return a request's rules: its class's, its data tags' (including the team's) and its team's,
    by their ids.

    Raises `InvalidRequest` for a class or a tag that the policy does not declare: no rule would
    mean no restriction.
    """
    if data_class not in policy.classes:
        raise InvalidRequest(
            f"The policy declares no data class '{data_class.label}'. Ask an admin to add it."
        )
    tags = team.data_tags | data_tags
    if unknown := sorted(tags - policy.data_tags.keys()):
        declared = ", ".join(sorted(policy.data_tags)) or "none"
        raise InvalidRequest(
            f"The policy declares no data tag '{unknown[0]}'. Declared: {declared}."
        )
    rules = [policy.classes[data_class], *(policy.data_tags[tag] for tag in tags)]
    if team.residency is not None:
        rules.append(team.residency)
    return tuple(sorted(rules, key=lambda rule: rule.rule_id))


def denials(
    rules: Iterable[ResidencyRule],
    deployment: Deployment,
    *,
    regions: RegionTree,
    gateway_region: str,
    day: date,
    valid_days: int | None,
) -> tuple[Denial, ...]:
    """Return each rule and field that deny a request at a deployment, in the order of the rules'
    ids; empty if it is allowed.

    Facts older than `valid_days` on the day count as unknown, and so do undated ones about systems
    that others run.
    """
    known = deployment.known_on(day, valid_days)
    found = [
        (rule, field)
        for rule in rules
        for field in _broken_fields(rule, known, regions, gateway_region)
    ]
    if not found:
        return ()  # the usual case
    words = DenialWords(
        deployment.facts,
        regions=regions,
        gateway_region=gateway_region,
        day=day,
        valid_days=valid_days,
    )
    return tuple(
        sorted(
            Denial(rule.rule_id, field, rule.is_shadow, words.why(rule, field))
            for rule, field in found
        )
    )


def _broken_fields(
    rule: ResidencyRule, known: Known, regions: RegionTree, gateway_region: str
) -> Iterator[str]:
    """Yield the fields of one rule that do not allow the known facts."""
    if rule.regions is not None and not regions.covered(known.processing, rule.regions):
        yield "regions"
    if rule.at_rest is not None and not regions.covered(known.at_rest, rule.at_rest):
        yield "at_rest"
    if rule.telemetry is not None and not regions.covered(known.telemetry, rule.telemetry):
        yield "telemetry"
    if rule.self_hosted_only and not known.is_self_hosted:
        yield "self_hosted"
    if rule.max_retention_days is not None and _is_longer(
        known.retention_days, rule.max_retention_days
    ):
        yield "max_retention_days"
    if rule.deny_regions and _overlaps_any(known, regions, rule.deny_regions):
        yield "deny_regions"
    if rule.deny_providers and known.providers & rule.deny_providers:
        yield "deny_providers"
    if rule.gateway_regions is not None and not regions.covered(
        gateway_region, rule.gateway_regions
    ):
        yield "gateway_regions"


def _is_longer(retention_days: int | None, most: int) -> bool:
    """Return True if data may be kept for more than `most` days; an unknown time counts as
    longer.
    """
    return retention_days is None or retention_days > most


def _overlaps_any(known: Known, regions: RegionTree, denied: frozenset[str]) -> bool:
    """Return True if any known place of a deployment overlaps with the denied regions."""
    return any(
        regions.overlaps(place, denied)
        for place in (known.processing, known.at_rest, known.telemetry)
    )


class Permit(Struct, frozen=True, kw_only=True, gc=False):
    """The permission to send one attempt to one deployment. Only `routing.Decision.permit` makes
    it, and `probe_permit` for a probe.

    `origin` is `scheme://host:port`. The transport checks it against the socket's target and calls
    `verify` again just before it connects.
    """

    deployment: Deployment
    attempt: int
    policy_version: int
    origin: str
    rules: tuple[ResidencyRule, ...]
    regions: RegionTree
    gateway_region: str
    day: date
    valid_days: int | None


def verify(permit: Permit, *, origin: str) -> None:
    """Raise `ResidencyDenied` unless the permit holds for this target, by the rules it was given
    under.
    """
    found = denials(
        permit.rules,
        permit.deployment,
        regions=permit.regions,
        gateway_region=permit.gateway_region,
        day=permit.day,
        valid_days=permit.valid_days,
    )
    broken = next((denial for denial in found if not denial.is_shadow), None)
    if broken is None and origin == permit.origin:
        return
    name = permit.deployment.name
    why = (
        f"{name} {broken.why}"
        if broken is not None
        else f"the target {origin} is not {permit.origin}"
    )
    raise ResidencyDenied(f"Refused before connecting to {name}: {why}. Nothing was sent.")
