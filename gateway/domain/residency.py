"""Where a request may be processed. Unknown means denied; a denial always wins; order never matters."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from gateway.domain.policy import ClassRule, Deployment
from gateway.errors import ResidencyDenied

ANY = "any"
UNPLACED = frozenset({"global", "unknown"})  # no promise about the place: these match only `any`


def leaves(region: str, regions: Mapping[str, tuple[str, ...]]) -> frozenset[str]:
    """The smallest regions under `region`; a region without children is its own leaf."""
    children = regions.get(region)
    if not children:
        return frozenset({region})
    return frozenset().union(*(leaves(child, regions) for child in children))


def denial(rule: ClassRule, deployment: Deployment, regions: Mapping[str, tuple[str, ...]]) -> str | None:
    """Why `deployment` may not process requests under `rule`, as a rule id; None if it may.

    A deployment is allowed only if all leaves under its region are allowed.
    """
    if rule.self_hosted_only and not deployment.is_self_hosted:
        return f"{rule.name}→self-hosted"
    if ANY in rule.regions:
        return None
    allowed = frozenset().union(*(leaves(region, regions) for region in rule.regions)) - UNPLACED
    if leaves(deployment.region, regions) <= allowed:
        return None
    return f"{rule.name}→{'|'.join(sorted(rule.regions)) or 'nowhere'}"


class Permit(Struct, frozen=True, kw_only=True, gc=False):
    """Leave to send one attempt to one deployment. Made by `routing.Decision.permit` alone.

    `origin` is `scheme://host:port`. The transport checks it against the socket's target and asks
    `verify` again just before it connects.
    """

    deployment: Deployment
    attempt: int
    policy_version: int
    origin: str
    rule: ClassRule
    regions: Mapping[str, tuple[str, ...]]


def verify(permit: Permit, *, origin: str) -> None:
    """Raise `ResidencyDenied` unless the permit holds for this target, by the rule it was given under."""
    broken = denial(permit.rule, permit.deployment, permit.regions)
    if broken is None and origin == permit.origin:
        return
    why = broken or f"the target {origin} is not {permit.origin}"
    raise ResidencyDenied(f"Refused before connecting to {permit.deployment.name}: {why}. Nothing was sent.")
