"""Decides which deployments may take a request (able, priced, allowed by residency, not ejected)
and why each other may not, and makes the permits to send; judges no load or health.

`domain.routing.objectives` puts them in order.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import date
from functools import cached_property, lru_cache
from itertools import islice
from urllib.parse import urlsplit

from msgspec import Struct
from msgspec.structs import replace as replace_struct

from gateway.domain.operation import Operation
from gateway.domain.places.regions import UNKNOWN
from gateway.domain.policy.policy import (
    LEFT_OUT,
    DataClass,
    Deployment,
    Policy,
    PolicyVersion,
    Priority,
    ResidencyRule,
    Route,
    Team,
)
from gateway.domain.policy.request_fields import FEATURES, NEEDED_UNDER_RULES, feature_and_tier
from gateway.domain.pricing.pricing import Price
from gateway.domain.request.request import RequestFacts
from gateway.domain.request.unlisted import still_unlisted
from gateway.domain.residency.rules import Denial, Permit, denials, rules_for
from gateway.domain.residency.stated_place import Contradiction, contradiction
from gateway.domain.routing.messages import OBSTACLES, UNLISTED, Unplaced
from gateway.domain.routing.predictions import Expected
from gateway.errors import ModelNotFound, RequestError, RouteNotAllowed

DEFAULT_PORTS = {"https": 443, "http": 80}
NONE_EJECTED: Mapping[str, str] = {}
MOST_ROUTES_NAMED = 5  # in an error; members too
SHOWN_CHARS = 200  # of a caller's invented name: a megabyte of it would be echoed in full
# The share of a route's latency bound that counts for each priority: as a deployment fills up,
# `low` leaves it first.
SHARES_OF_BOUND = {Priority.HIGH: 1.0, Priority.NORMAL: 1.0, Priority.LOW: 0.5}


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """One deployment of the route. `obstacles` are (kind, detail); without any it is eligible.

    `denials` are those of residency; the enforced ones are obstacles too. `unlisted` are the
    request's members whose effect on the cost is not known there, if a hard budget relies on it.
    """

    deployment: Deployment
    price: Price | None
    obstacles: tuple[tuple[str, str], ...]
    denials: tuple[Denial, ...] = ()
    unlisted: tuple[str, ...] = ()

    @property
    def left_out(self) -> tuple[str, ...]:
        """Return the request's members that are not sent to the deployment."""
        return self.unlisted if self.deployment.unlisted.drops else ()

    @property
    def shadow(self) -> tuple[Denial, ...]:
        """Return the residency denials by rules in shadow mode, which exclude nothing."""
        return tuple(denial for denial in self.denials if denial.is_shadow)


@dataclass(frozen=True, kw_only=True)
class Decision:
    """The decision, made before anything is sent.

    It contains nothing of a single request: similar requests share one.
    """

    policy: PolicyVersion
    team: Team
    route: Route
    data_class: DataClass
    rules: tuple[ResidencyRule, ...]
    gateway_region: str
    day: date  # of the request, if facts expire or the team's cost centre moves; else any day
    candidates: tuple[Candidate, ...]
    eligible: tuple[Candidate, ...]  # in the route's order
    # Of the route's shadow deployments: recorded, never sent to.
    shadow_eligible: tuple[Candidate, ...] = ()

    def permit(self, candidate: Candidate, *, attempt: int) -> Permit:
        """Return the permission to send one attempt to a ranked candidate.

        The only constructor call of `Permit` for a request; `probe_permit` has that for probes.
        """
        assert candidate in self.eligible, "only an eligible deployment gets a permit"
        policy = self.policy.policy
        return Permit(
            deployment=candidate.deployment,
            attempt=attempt,
            policy_version=self.policy.version,
            origin=origin_of(candidate.deployment.base_url),
            rules=self.rules,
            regions=policy.region_tree,
            gateway_region=self.gateway_region,
            day=self.day,
            valid_days=policy.facts_valid_days,
        )

    def contradiction(self, stated: str, deployment: Deployment) -> Contradiction | None:
        """Return how an answer from the stated region contradicts the deployment's promise or this
        decision's rules; None if it does not.
        """
        return contradiction(
            stated,
            deployment,
            rules=self.rules,
            regions=self.policy.policy.region_tree,
            gateway_region=self.gateway_region,
            day=self.day,
        )

    def only(self, deployment: str) -> Decision | None:
        """Return this decision for one of its candidates alone, None if it is none of them: only
        that deployment has the stored response that the request continues.
        """
        found = tuple(one for one in self.candidates if one.deployment.name == deployment)
        if not found:
            return None
        eligible = tuple(one for one in found if one in self.eligible)
        return replace(self, candidates=found, eligible=eligible)

    @cached_property
    def as_listed(self) -> Ranking:
        """Return the ranking in the listed order, for a route without an objective: one for all
        similar requests.
        """
        choices = tuple(Choice(decision=self, candidate=candidate) for candidate in self.eligible)
        return Ranking(decision=self, choices=choices)

    @cached_property
    def is_ordered(self) -> bool:
        """Return True if a request may get an order other than the listed one (by objective or
        replicas), or the route has a bound to check.
        """
        if self.route.is_bounded:
            return True
        groups = Counter(
            one.deployment.group for one in self.eligible if one.deployment.group is not None
        )
        return len(self.eligible) > 1 and (
            self.route.objective != "priority" or max(groups.values(), default=0) > 1
        )

    @cached_property
    def least_window(self) -> int | None:
        """Return the smallest context window of the eligible deployments, to see if a prompt may
        not fit one; None if there is no choice between several.
        """
        windows = [one.deployment.context_window for one in self.eligible]
        return (
            min((window for window in windows if window is not None), default=None)
            if len(windows) > 1
            else None
        )

    @cached_property
    def ttft_bound_s(self) -> float | None:
        """Return the route's bound on the 95th percentile of TTFT, in seconds, made smaller for a
        team of low priority; None without one.
        """
        bound_s = self.route.ttft_p95_s
        return None if bound_s is None else bound_s * SHARES_OF_BOUND[self.team.priority]

    @cached_property
    def denying_rules(self) -> tuple[str, ...]:
        """Return the ids of the residency rules that exclude at least one of the route's
        deployments, without rules in shadow mode.
        """
        return tuple(sorted({denial.rule_id for denial in self._enforced}))

    @cached_property
    def class_label(self) -> str:
        """Return the name of the request's data class."""
        return self.data_class.label

    @cached_property
    def record(self) -> Mapping[str, object]:
        """Return the decision's record for an event: names and rule ids; the words are rendered
        on demand.
        """
        record: dict[str, object] = {
            "policy": self.policy.sha256,
            "objective": self.route.objective,
            "rule": self.class_label,
            "rules": [rule.rule_id for rule in self.rules],
            "ranked": [candidate.deployment.name for candidate in self.eligible],
            "candidates": self.recorded_candidates,
        }
        if self.route.shadow_deployments:
            record["shadow_ranked"] = [
                candidate.deployment.name for candidate in self.shadow_eligible
            ]
        if self.gateway_region != UNKNOWN:
            record["gateway_region"] = self.gateway_region
        if self.route.is_bounded:
            bounds = {
                "ttft_p95_s": self.route.ttft_p95_s,
                "max_cost_nusd": self.route.max_cost_nusd,
            }
            record["bounds"] = {name: bound for name, bound in bounds.items() if bound is not None}
        return record

    @cached_property
    def recorded_candidates(self) -> list[dict[str, object]]:
        """Return the records of all candidates for an event."""
        return [self._recorded(candidate) for candidate in self.candidates]

    @property
    def _enforced(self) -> tuple[Denial, ...]:
        """Return the enforced residency denials of all candidates."""
        return tuple(
            denial for one in self.candidates for denial in one.denials if not denial.is_shadow
        )

    def _recorded(self, candidate: Candidate) -> dict[str, object]:
        """Return one candidate's record for an event, without facts if none are known."""
        deployment = candidate.deployment
        known = deployment.known_on(self.day, self.policy.policy.facts_valid_days)
        record: dict[str, object] = {
            "deployment": deployment.name,
            "region": deployment.region,
            "host": deployment.facts.host,
            "obstacles": [list(obstacle) for obstacle in candidate.obstacles],
        }
        record |= {
            name: place
            for name, place in (("at_rest", known.at_rest), ("telemetry", known.telemetry))
            if place != UNKNOWN
        }
        if candidate.shadow:
            record["shadow"] = [["residency", denial.why] for denial in candidate.shadow]
        return record

    def refusal(self, facts: RequestFacts | None = None) -> RequestError | None:
        """Return the caller's error if no deployment is eligible, from the deciding obstacle; else
        None.

        `facts` names the fields at fault, because the decision itself belongs to all similar
        requests.
        """
        if self.eligible:
            return None
        decisive = self._decisive_kind()
        placed = [one for one in self.candidates if not _is_denied(one)]
        unplaced = Unplaced(
            team=self.team.name,
            route=self.route.name,
            data_class=self.class_label,
            rules=self.rules,
            denials=self._enforced,
            details=_details(self.candidates, decisive),
            fields=() if facts is None else self._fields_at_fault(facts),
            lacking=_details(placed, "leaves_region", "field"),
            serving=None if facts is None else self._routes_serving(facts.operation),
            unlisted=self._unlisted_names(),
        )
        error = OBSTACLES[decisive](unplaced)
        error.rules = self.denying_rules
        return error

    def _decisive_kind(self) -> str:
        """Return the kind of obstacle that the caller is told about: that of its unlisted members
        if nothing else excludes some deployment, as it can leave them out.
        """
        kinds = [{kind for kind, _ in candidate.obstacles} for candidate in self.candidates]
        if {UNLISTED} in kinds:
            return UNLISTED
        return next(kind for kind in OBSTACLES if any(kind in found for found in kinds))

    def _unlisted_names(self) -> tuple[str, ...]:
        """Return the request's members that are all that excludes some deployment, of the one with
        the fewest.
        """
        found = [
            one.unlisted
            for one in self.candidates
            if {kind for kind, _ in one.obstacles} == {UNLISTED}
        ]
        return min(found, key=len, default=())

    def _routes_serving(self, operation: Operation) -> tuple[str, ...]:
        """Return the first other routes of the team with a deployment that serves an operation."""
        policy = self.policy.policy
        serving = (
            name
            for name in self.team.routes
            if name != self.route.name
            and any(
                operation in policy.deployments[one].operations
                for one in policy.routes[name].deployments
            )
        )
        return tuple(islice(serving, MOST_ROUTES_NAMED))

    def _fields_at_fault(self, facts: RequestFacts) -> tuple[str, ...]:
        """Return the request's fields that exclude deployments which residency would allow."""
        is_ruled = is_restricted(self.rules)
        missing = {
            feature
            for one in self.candidates
            if not _is_denied(one)
            for feature, _ in _missing_permissions(
                one.deployment, facts, one.price, is_ruled=is_ruled
            )
        }
        return tuple(where for feature, where in facts.named if feature in missing)


def _is_denied(candidate: Candidate) -> bool:
    """Return True if a residency rule denies the deployment."""
    return any(kind == "residency" for kind, _ in candidate.obstacles)


def _details(candidates: Iterable[Candidate], *kinds: str) -> str:
    """Return the deployments that have obstacles of these kinds, each with its obstacle."""
    return "; ".join(
        f"{candidate.deployment.name} {detail}"
        for candidate in candidates
        for kind, detail in candidate.obstacles
        if kind in kinds
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """One candidate in a ranking, with the decision that its permit comes from."""

    decision: Decision
    candidate: Candidate


class Ranking(Struct, frozen=True, kw_only=True, dict=True):
    """One request's order of the eligible deployments, and its record for the events.

    `expected` has each choice's prediction, empty if none was needed. `degraded` is None, `spill`
    if the objective's choice misses a bound and another takes the request, or `route:NAME` if all
    miss one and that route's deployments come first. `preferred` is the one that was left. `late`
    are the decision's own that miss the latency bound. `kept_at` is the first choice, if it is
    first because it has the session's prompt cached.
    """

    decision: Decision
    choices: tuple[Choice, ...]
    expected: tuple[Expected, ...] = ()
    degraded: str | None = None
    preferred: str | None = None
    late: frozenset[str] = frozenset()
    kept_at: str | None = None

    def degraded_at(self, choice: Choice) -> str | None:
        """Return `degraded` for this choice; None if the preferred one answers after all."""
        own = choice.decision is self.decision
        is_as_preferred = (
            choice.candidate.deployment.name == self.preferred if self.degraded == "spill" else own
        )
        return None if is_as_preferred else self.degraded

    def whole_first(self) -> Ranking:
        """Return the order with those deployments last that are not sent all of the request."""
        if not any(choice.candidate.left_out for choice in self.choices):
            return self
        order = sorted(
            range(len(self.choices)), key=lambda at: bool(self.choices[at].candidate.left_out)
        )
        return replace_struct(
            self,
            choices=tuple(self.choices[at] for at in order),
            expected=tuple(self.expected[at] for at in order) if self.expected else (),
        )

    @cached_property
    def record(self) -> Mapping[str, object]:
        """Return the decision's record for an event, with this request's order if it is not the
        listed one.
        """
        listed = self.decision.record
        ranked = [choice.candidate.deployment.name for choice in self.choices]
        if ranked == listed["ranked"] and not any(expected.misses for expected in self.expected):
            return listed
        record = {
            **listed,
            "ranked": ranked,
            "expected": [expected.record() for expected in self.expected],
        }
        if self.kept_at is not None:
            record["session_kept_at"] = self.kept_at
        if self.degraded is not None:
            own = {choice.candidate.deployment.name for choice in self.decision.as_listed.choices}
            missed = [
                name
                for name, one in zip(ranked, self.expected, strict=True)
                if one.misses and name in own
            ]
            record["degraded"] = {"kind": self.degraded, "from": self.preferred, "missed": missed}
        others = {choice.decision.route.name: choice.decision for choice in self.choices}
        others.pop(self.decision.route.name, None)
        for other in others.values():
            record["candidates"] = [
                *self.decision.recorded_candidates,
                *self._candidates_only_in(other),
            ]
        return record

    def _candidates_only_in(self, other: Decision) -> Iterator[Mapping[str, object]]:
        """Yield the records of candidates that only the degraded-to route has, marked with that
        route, for this ranking's record.
        """
        own = {one.deployment.name for one in self.decision.candidates}
        for recorded in other.recorded_candidates:
            if recorded["deployment"] not in own:
                yield {**recorded, "route": other.route.name}


def find_route(policy: Policy, team: Team, model: str) -> Route:
    """Return the team's route for a model name.

    Raises `ModelNotFound` or `RouteNotAllowed`, with the available names.
    """
    route = policy.route_for(model)
    if route is not None and route.name in team.routes:
        return route
    yours = ", ".join(team.routes) or "none"
    if route is None:
        raise ModelNotFound(
            f"No route '{model[:SHOWN_CHARS]}' for team {team.name}. Yours: {yours}. GET "
            "/v1/models lists them.",
            param="model",
        )
    raise RouteNotAllowed(
        f"Team {team.name} may not use route '{route.name}'. Yours: {yours}. Ask an admin to add "
        "it to the team's routes in the policy.",
        param="model",
    )


def decide(
    version: PolicyVersion,
    *,
    team: Team,
    route: Route,
    data_class: DataClass,
    facts: RequestFacts,
    prices: Mapping[str, Price],
    day: date,
    data_tags: frozenset[str] = frozenset(),
    gateway_region: str = UNKNOWN,
    ejected: Mapping[str, str] = NONE_EJECTED,
    unlisted: Collection[str] = (),
) -> Decision:
    """Return the decision on a request: the eligible deployments (capable, priced, allowed by
    residency), in the route's order.

    `data_class` is the request's class after any raise by header, `data_tags` its own tags besides
    its team's. `day` is the UTC day of its arrival; `ejected` are deployments out of use, with the
    place that their upstreams reported. `unlisted` are the request's members whose effect on the
    cost is not known at one of the deployments, if a hard budget relies on it. Raises
    `InvalidRequest` for a class or a tag that the policy does not declare.
    """
    policy = version.policy
    rules = rules_for(policy, team, data_class=data_class, data_tags=data_tags)
    is_ruled = is_restricted(rules)

    def candidate(name: str) -> Candidate:
        """Return one of the route's deployments with its obstacles and residency denials."""
        deployment = policy.deployments[name]
        found = denials(
            rules,
            deployment,
            regions=policy.region_tree,
            gateway_region=gateway_region,
            day=day,
            valid_days=policy.facts_valid_days,
        )
        residency = tuple(("residency", denial.why) for denial in found if not denial.is_shadow)
        price = prices.get(name)
        unknown = still_unlisted(deployment, facts.operation, unlisted) if unlisted else ()
        obstacles = (
            *residency,
            *_out_of_use(name, ejected),
            *_unmet_requirements(deployment, facts, price, is_ruled=is_ruled),
            *_unpriced(name, prices),
            *_unlisted(deployment, unknown),
        )
        return Candidate(
            deployment=deployment,
            price=price,
            obstacles=obstacles,
            denials=found,
            unlisted=unknown,
        )

    def eligible(candidates: tuple[Candidate, ...]) -> tuple[Candidate, ...]:
        """Return the candidates without an obstacle; those come last that are not sent all of the
        request. An objective sorts them by its score: of equals, those come first that need no
        translation.
        """
        found = [one for one in candidates if not one.obstacles]
        if unlisted:
            found.sort(key=lambda one: bool(one.left_out))
        if route.objective != "priority":
            found.sort(key=lambda one: one.deployment.translates(facts.operation))
        return tuple(found)

    candidates = tuple(candidate(name) for name in route.deployments)
    shadows = tuple(candidate(name) for name in route.shadow_deployments)
    return Decision(
        policy=version,
        team=team,
        route=route,
        data_class=data_class,
        rules=rules,
        gateway_region=gateway_region,
        day=day,
        candidates=candidates,
        eligible=eligible(candidates),
        shadow_eligible=eligible(shadows),
    )


@lru_cache(maxsize=1024)  # asked twice for each attempt; a policy has a few addresses
def origin_of(base_url: str) -> str:
    """Return `scheme://host:port` of an address, always with the port."""
    parts = urlsplit(base_url)
    return f"{parts.scheme}://{parts.hostname}:{parts.port or DEFAULT_PORTS[parts.scheme]}"


def is_restricted(rules: Iterable[ResidencyRule]) -> bool:
    """Return True if one of the rules can deny something: unknown parts of a request then need
    permission.
    """
    return any(rule.restricts for rule in rules)


def _missing_permissions(
    deployment: Deployment, facts: RequestFacts, price: Price | None, *, is_ruled: bool
) -> Iterator[tuple[str, str]]:
    """Yield each feature of the request and the permission for it that the deployment lacks."""
    unsent = deployment.unsent_features(facts.operation)
    for asked in sorted(facts.features - deployment.allows - unsent):
        name, tier = feature_and_tier(NEEDED_UNDER_RULES.get(asked, asked))
        is_free = asked in NEEDED_UNDER_RULES and not is_ruled
        is_priced = tier is not None and price is not None and price.covers_tier(tier)
        if not (is_free or is_priced or name in deployment.allows):
            yield asked, name


def _unmet_requirements(
    deployment: Deployment, facts: RequestFacts, price: Price | None, *, is_ruled: bool
) -> tuple[tuple[str, str], ...]:
    """Return the obstacles (kind, detail) of a deployment that lacks the operation, a capability or
    a permission of the request.
    """
    found = []
    if facts.operation not in deployment.operations:
        served = ", ".join(sorted(deployment.operations))
        found.append(("operation", f"serves {served}, not {facts.operation}"))
    missing = (
        facts.capabilities - deployment.capabilities
        if deployment.capabilities is not None
        else frozenset()
    )
    if missing:
        found.append(("capability", f"cannot do {', '.join(sorted(missing))}"))
    for name in dict.fromkeys(
        name for _, name in _missing_permissions(deployment, facts, price, is_ruled=is_ruled)
    ):
        feature = FEATURES[name]
        detail = f"does not allow {name}: {feature.why}"
        if name in LEFT_OUT and deployment.translates(facts.operation):
            detail += " (`untranslatable: drop` there would leave it out)"
        found.append(("leaves_region" if feature.leaves_region else "field", detail))
    return tuple(found)


def _out_of_use(name: str, ejected: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """Return the obstacle of a deployment that is ejected (its upstream reported another place than
    promised); none for others.
    """
    if name not in ejected:
        return ()
    return (
        (
            "ejected",
            f"is out of use: its upstream reported that it ran in '{ejected[name]}', which was not "
            "promised",
        ),
    )


def _unlisted(deployment: Deployment, names: tuple[str, ...]) -> tuple[tuple[str, str], ...]:
    """Return the obstacle of a deployment that refuses members whose effect on the cost is not
    known there; none for others.
    """
    if not names or not deployment.unlisted.refuses:
        return ()
    shown = ", ".join(f"'{name[:SHOWN_CHARS]}'" for name in names[:MOST_ROUTES_NAMED])
    return ((UNLISTED, f"does not list {shown}: a hard budget relies on a bound of the cost"),)


def _unpriced(name: str, prices: Mapping[str, Price]) -> tuple[tuple[str, str], ...]:
    """Return the obstacle of a deployment without a price, none for others."""
    return () if name in prices else (("price", "has no price"),)
