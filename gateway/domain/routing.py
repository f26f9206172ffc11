"""Which deployments may take a request, in which order, and why each of the others may not."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from urllib.parse import urlsplit

from gateway.domain.policy import ClassRule, Deployment, Policy, PolicyVersion, Route, Team
from gateway.domain.pricing import Price
from gateway.domain.request import Ask
from gateway.domain.request_fields import FEATURES, feature_and_tier
from gateway.domain.residency import Permit, denial
from gateway.errors import (
    InvalidRequest,
    ModelNotFound,
    NotSupported,
    RequestError,
    ResidencyDenied,
    RouteNotAllowed,
    UnpricedModel,
)

DEFAULT_PORTS = {"https": 443, "http": 80}


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """One deployment of the route. `obstacles` are (kind, detail); none means it is eligible."""

    deployment: Deployment
    price: Price | None
    obstacles: tuple[tuple[str, str], ...]


@dataclass(frozen=True, kw_only=True)
class Decision:
    """What was decided, before anything is sent. Holds nothing of a single request: alike requests share one."""

    policy: PolicyVersion
    team: Team
    route: Route
    rule_id: str
    candidates: tuple[Candidate, ...]
    ranked: tuple[Candidate, ...]

    def permit(self, candidate: Candidate, *, attempt: int) -> Permit:
        """Leave to send one attempt to a ranked candidate. The only constructor call of `Permit`."""
        assert candidate in self.ranked, "only an eligible deployment gets a permit"
        return Permit(
            deployment=candidate.deployment,
            attempt=attempt,
            policy_version=self.policy.version,
            origin=origin_of(candidate.deployment.base_url),
            rule=self.rule,
            regions=self.policy.policy.regions,
        )

    @cached_property
    def rule(self) -> ClassRule:
        """The rule it was decided by."""
        return next(rule for rule in self.policy.policy.classes.values() if rule.name == self.rule_id)

    @cached_property
    def record(self) -> Mapping[str, object]:
        """The decision as an event keeps it: names and rule ids; the words are rendered on demand."""
        return {
            "policy": self.policy.sha256,
            "objective": self.route.objective,
            "rule": self.rule_id,
            "ranked": [candidate.deployment.name for candidate in self.ranked],
            "candidates": [
                {
                    "deployment": candidate.deployment.name,
                    "region": candidate.deployment.region,
                    "obstacles": [list(obstacle) for obstacle in candidate.obstacles],
                }
                for candidate in self.candidates
            ],
        }  # fmt: skip

    def refusal(self) -> RequestError | None:
        """The error for the caller where no deployment is eligible, from the obstacle that decides; else None."""
        if self.ranked:
            return None
        kinds = {kind for candidate in self.candidates for kind, _ in candidate.obstacles}
        decisive = next(kind for kind in OBSTACLES if kind in kinds)
        details = [
            f"{candidate.deployment.name} {detail}"
            for candidate in self.candidates
            for kind, detail in candidate.obstacles
            if kind == decisive
        ]
        return OBSTACLES[decisive](self, "; ".join(details))


def find_route(policy: Policy, team: Team, model: str) -> Route:
    """The team's route for a model name. Raises `ModelNotFound` or `RouteNotAllowed`, naming what there is."""
    route = policy.route_for(model)
    if route is not None and route.name in team.routes:
        return route
    yours = ", ".join(team.routes) or "none"
    if route is None:
        raise ModelNotFound(
            f"No route '{model}' for team {team.name}. Yours: {yours}. GET /v1/models lists them.", param="model"
        )
    raise RouteNotAllowed(
        f"Team {team.name} may not use route '{route.name}'. Yours: {yours}. "
        f"Ask an admin to add it to the team's routes in the policy.",
        param="model",
    )


def decide(
    version: PolicyVersion, *, team: Team, route: Route, rule_id: str, ask: Ask, prices: Mapping[str, Price]
) -> Decision:
    """Return eligible deployments = capable ∩ priced ∩ allowed by residency, in the objective's order.

    `rule_id` is the name of the data class that the request has after any raise by header.
    """
    policy = version.policy
    rule = next(rule for rule in policy.classes.values() if rule.name == rule_id)
    candidates = []
    for name in route.deployments:
        deployment = policy.deployments[name]
        broken = denial(rule, deployment, policy.regions)
        residency = (("residency", _where_it_is(deployment, rule)),) if broken else ()
        price = prices.get(name)
        obstacles = (*residency, *_inabilities(deployment, ask, price), *_unpriced(name, prices))
        candidates.append(Candidate(deployment=deployment, price=price, obstacles=obstacles))
    eligible = tuple(candidate for candidate in candidates if not candidate.obstacles)
    return Decision(
        policy=version, team=team, route=route, rule_id=rule_id,
        candidates=tuple(candidates), ranked=OBJECTIVES[route.objective](eligible),
    )  # fmt: skip


@lru_cache(maxsize=1024)  # asked twice for each attempt; a policy has a few addresses
def origin_of(base_url: str) -> str:
    """`scheme://host:port` of an address, the port always written."""
    parts = urlsplit(base_url)
    return f"{parts.scheme}://{parts.hostname}:{parts.port or DEFAULT_PORTS[parts.scheme]}"


def _by_priority(eligible: tuple[Candidate, ...]) -> tuple[Candidate, ...]:
    return eligible


OBJECTIVES: dict[str, Callable[[tuple[Candidate, ...]], tuple[Candidate, ...]]] = {"priority": _by_priority}


def _inabilities(deployment: Deployment, ask: Ask, price: Price | None) -> tuple[tuple[str, str], ...]:
    found = []
    if ask.operation not in deployment.operations:
        served = ", ".join(sorted(deployment.operations))
        found.append(("operation", f"serves {served}, not {ask.operation}"))
    missing = ask.capabilities - deployment.capabilities if deployment.capabilities is not None else frozenset()
    if missing:
        found.append(("capability", f"cannot do {', '.join(sorted(missing))}"))
    for asked in sorted(ask.features - deployment.allows):
        name, tier = feature_and_tier(asked)
        if name in deployment.allows or (tier is not None and price is not None and price.covers_tier(tier)):
            continue
        feature = FEATURES[name]
        found.append(("leaves_region" if feature.leaves_region else "field", f"does not allow {name}: {feature.why}"))
    return tuple(found)


def _where_it_is(deployment: Deployment, rule: ClassRule) -> str:
    is_external = rule.self_hosted_only and not deployment.is_self_hosted
    return f"is in {deployment.region}{' and not self-hosted' if is_external else ''}"


def _unpriced(name: str, prices: Mapping[str, Price]) -> tuple[tuple[str, str], ...]:
    return () if name in prices else (("price", "has no price"),)


def _residency_denied(decision: Decision, details: str) -> RequestError:
    return ResidencyDenied(
        f"Refused by residency rule {_broken_rule(decision)}: {details}. Nothing was sent. Try another route, or: "
        f"tollgate policy explain --team {decision.team.name} --route {decision.route.name} --class {decision.rule_id}"
    )


def _broken_rule(decision: Decision) -> str:
    rule = decision.rule
    where = "|".join(sorted(rule.regions)) or "nowhere"
    return f"{rule.name}→{where}{' (self-hosted only)' if rule.self_hosted_only else ''}"


def _feature_refused(decision: Decision, details: str) -> RequestError:
    return ResidencyDenied(
        f"Route {decision.route.name} may not be sent this: {details}. Nothing was sent. "
        f"Leave the field out, or ask an admin to list the feature under the deployment's 'allows'."
    )


def _field_refused(decision: Decision, details: str) -> RequestError:
    return InvalidRequest(
        f"Route {decision.route.name} does not take this field: {details}. "
        f"Leave it out, or ask an admin to list the feature under the deployment's 'allows'."
    )


def _operation_refused(decision: Decision, details: str) -> RequestError:
    return NotSupported(f"Route {decision.route.name} does not serve this endpoint: {details}. Use another route.")


def _capability_refused(decision: Decision, details: str) -> RequestError:
    return InvalidRequest(f"Route {decision.route.name} cannot serve this: {details}. Use another route.")


def _price_refused(decision: Decision, details: str) -> RequestError:
    return UnpricedModel(
        f"Route {decision.route.name} cannot be charged for: {details}. A model without a price is refused, never "
        f"billed at zero. Ask an admin to add 'price' or 'gpu' to the deployment."
    )


# In the order in which an obstacle decides the answer: what the caller cannot mend comes first.
OBSTACLES: dict[str, Callable[[Decision, str], RequestError]] = {
    "residency": _residency_denied,
    "operation": _operation_refused,
    "capability": _capability_refused,
    "leaves_region": _feature_refused,
    "field": _field_refused,
    "price": _price_refused,
}
