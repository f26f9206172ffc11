"""Builds the caller's error if no deployment of a route may take a request: the deciding obstacle
and the next step.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from gateway.domain.policy.policy import ResidencyRule
from gateway.domain.residency.messages import listed
from gateway.domain.residency.rules import Denial
from gateway.domain.words import listed_text
from gateway.errors import (
    InvalidRequest,
    NotSupported,
    RequestError,
    ResidencyDenied,
    UnpricedModel,
)

UNLISTED = "unlisted"  # the obstacle of members whose effect on the cost is not known
MOST_NAMED, MOST_SHOWN = 5, 128  # members in an error, and letters of each


@dataclass(frozen=True, slots=True, kw_only=True)
class Unplaced:
    """A request without an eligible deployment. `denials` are the enforced residency denials.

    `details` has each deployment with an obstacle of the deciding kind, and that obstacle. `fields`
    are the request's fields that need permission, `lacking` the deployments which residency allows
    and which lack that permission. `serving` are other routes of the team that serve the request's
    endpoint, None if no request is known. `unlisted` are the members of which no deployment knows
    the effect on the cost.
    """

    team: str
    route: str
    data_class: str
    rules: tuple[ResidencyRule, ...]
    denials: tuple[Denial, ...]
    details: str
    fields: tuple[str, ...] = ()
    lacking: str = ""
    serving: tuple[str, ...] | None = None
    unlisted: tuple[str, ...] = ()


def _at_fault(unplaced: Unplaced) -> str:
    """Return a sentence with the request's fields at fault; empty if none is known."""
    return f"In this request: {', '.join(unplaced.fields)}. " if unplaced.fields else ""


def _also_at_fault(unplaced: Unplaced) -> str:
    """Return sentences with the request's fields that an allowed deployment may not be sent, and
    both remedies; empty if there are none.
    """
    if not unplaced.fields:
        return ""
    return (
        f"A deployment that is allowed may not be sent {', '.join(unplaced.fields)}: leave "
        f"that out. An admin can also list the feature under 'allows': {unplaced.lacking}. "
    )


def _residency_denied(unplaced: Unplaced) -> RequestError:
    """Return the error for a request that residency rules deny, with the rules and the next
    step.
    """
    broken = {denial.rule_id for denial in unplaced.denials}
    titles = [_title(rule) for rule in unplaced.rules if rule.rule_id in broken]
    tags = "".join(
        f" --data-tag {rule.rule_id.partition(':')[2]}"
        for rule in unplaced.rules
        if _is_of_tag(rule)
    )
    return ResidencyDenied(
        f"Refused by residency {'rule' if len(titles) == 1 else 'rules'} {', '.join(titles)}: "
        f"{unplaced.details}. Nothing was sent. "
        f"{_also_at_fault(unplaced)}{_remedies({denial.field for denial in unplaced.denials})}Try "
        f"another route, or: tollgate policy explain --team {unplaced.team} --route "
        f"{unplaced.route} --class {unplaced.data_class}{tags}"
    )


def _title(rule: ResidencyRule) -> str:
    """Return a rule's name and its allowed regions: `restricted→eu`, `tag:phi→eu`,
    `team:payments`.
    """
    where = "" if rule.regions is None else f"→{listed(rule.regions)}"
    self_hosted = " (self-hosted only)" if rule.self_hosted_only else ""
    return f"{rule.rule_id.removeprefix('class:')}{where}{self_hosted}"


def _is_of_tag(rule: ResidencyRule) -> bool:
    """Return True if a residency rule is that of a data tag."""
    return rule.rule_id.startswith("tag:")


def _remedies(fields: set[str]) -> str:
    """Return sentences on the settings that hold the denied facts; empty if only the place itself
    is denied.
    """
    facts = "The 'residency' block of a deployment in the policy has the facts about it. "
    region = "TOLLGATE_REGION is a gateway's own region. "
    is_of_facts = fields & {"at_rest", "telemetry", "max_retention_days", "deny_regions"}
    return f"{facts if is_of_facts else ''}{region if 'gateway_regions' in fields else ''}"


def _ejected_refused(unplaced: Unplaced) -> RequestError:
    """Return the error for a route whose remaining deployments are ejected, with the command that
    readmits one.
    """
    return ResidencyDenied(
        f"Route {unplaced.route} has nowhere to go: {unplaced.details}. Nothing was sent. "
        f"An admin finds out why, and then: tollgate policy readmit DEPLOYMENT --reason …"
    )


def _feature_refused(unplaced: Unplaced) -> RequestError:
    """Return the residency error for a request field that stores or sends data elsewhere without
    permission.
    """
    return ResidencyDenied(
        f"Route {unplaced.route} may not be sent this: {unplaced.details}. "
        f"{_at_fault(unplaced)}Nothing was sent. Leave the field out, or ask an admin to list the "
        "feature under the deployment's 'allows'."
    )


def _field_refused(unplaced: Unplaced) -> RequestError:
    """Return the error for a request field that the route's deployments do not allow."""
    return InvalidRequest(
        f"Route {unplaced.route} does not take this field: {unplaced.details}. "
        f"{_at_fault(unplaced)}Leave it out, or ask an admin to list the feature under the "
        "deployment's 'allows'."
    )


def _operation_refused(unplaced: Unplaced) -> RequestError:
    """Return the error for an endpoint that the route's deployments do not serve."""
    if unplaced.serving is None:
        remedy = "Use another route."
    elif unplaced.serving:
        remedy = f"Use a route that does: {', '.join(unplaced.serving)}."
    else:
        remedy = "No route of your team does: ask an admin for one."
    return NotSupported(
        f"Route {unplaced.route} does not serve this endpoint: {unplaced.details}. {remedy}"
    )


def _capability_refused(unplaced: Unplaced) -> RequestError:
    """Return the error for a request that needs a capability which the route's deployments lack."""
    return InvalidRequest(
        f"Route {unplaced.route} cannot serve this: {unplaced.details}. Use another route."
    )


def _unlisted_refused(unplaced: Unplaced) -> RequestError:
    """Return the error for a request with members whose effect on the cost is not known, with all
    remedies.
    """
    names = unplaced.unlisted
    shown = ", ".join(f"'{name[:MOST_SHOWN]}'" for name in names[:MOST_NAMED])
    listed = listed_text(names[:MOST_NAMED])
    remedy = f"`{listed}` (it costs nothing), " if listed is not None else ""
    return InvalidRequest(
        f"A hard budget applies to team {unplaced.team}, and what {shown} does to the cost is not "
        f"known on route {unplaced.route}: {unplaced.details}. Nothing was sent. Leave it out, or "
        f"ask an admin to add to the deployment {remedy}`unlisted: drop` (it is not sent) or "
        "`unlisted: {factor: N}` (it is sent, and N times the cost is held).",
        param=names[0][:MOST_SHOWN] if names else None,
    )


def _price_refused(unplaced: Unplaced) -> RequestError:
    """Return the error for a route whose deployments have no price."""
    return UnpricedModel(
        f"Route {unplaced.route} cannot be charged for: {unplaced.details}. A model without a "
        "price is refused, never billed at zero. Ask an admin to add 'price' to the "
        "deployment ('gpu' if it is self-hosted), or to run tollgate price add."
    )


# In the order in which an obstacle decides the answer: those that the caller cannot fix come first.
OBSTACLES: dict[str, Callable[[Unplaced], RequestError]] = {
    "residency": _residency_denied,
    "ejected": _ejected_refused,
    "operation": _operation_refused,
    "capability": _capability_refused,
    "leaves_region": _feature_refused,
    "field": _field_refused,
    "price": _price_refused,
    UNLISTED: _unlisted_refused,
}
