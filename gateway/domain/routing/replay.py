"""Decides the fate of past requests under another policy (deployment, cost or refusal), and walks
them through hard budgets; sends nothing.

A request is read from its event. The fields that requests share decide (`Alike`), so similar ones
share one `Fate`. Only the tokens and the charged budgets are individual. If the route's objective
or a bound depends on the tokens, similar requests have an `Ordering`, and each its own fate.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta
from enum import StrEnum
from typing import Any, NamedTuple

from gateway.domain.budgets.budgets import EPOCH, Account
from gateway.domain.operation import Operation
from gateway.domain.policy.policy import DataClass, Deployment, PolicyVersion, Route, Team
from gateway.domain.policy.request_fields import feature_and_tier
from gateway.domain.policy.unlisted_use import has_hard_budget
from gateway.domain.pricing.pricing import Price, UnknownTier, cost_nusd, lines
from gateway.domain.pricing.tokens import TokenUsage
from gateway.domain.request.bound import bound_of
from gateway.domain.request.request import RequestFacts, unsent
from gateway.domain.routing.decide import Choice, Decision, decide, find_route
from gateway.domain.routing.objectives import Candidates, candidates_of, rank
from gateway.domain.routing.predictions import (
    DEFAULT_PRIOR,
    OUTPUT_TOKENS,
    TOKENS_PER_BYTE,
    Conditions,
    Prediction,
)
from gateway.errors import (
    ModelNotFound,
    RequestError,
    ResidencyDenied,
    RouteNotAllowed,
    UnpricedModel,
)


class Refusal(StrEnum):
    """The reason of a refusal."""

    ROUTE = "route"  # the team or its route is gone
    RESIDENCY = "residency"
    CAPABILITY = "capability"  # the endpoint, a capability, a field or the data class itself
    PRICE = "price"


_REFUSALS: dict[type[RequestError], Refusal] = {
    ModelNotFound: Refusal.ROUTE,
    RouteNotAllowed: Refusal.ROUTE,
    ResidencyDenied: Refusal.RESIDENCY,
    UnpricedModel: Refusal.PRICE,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Alike:
    """The fields that many past requests share.

    `ranked` is the order of the original decision: the deployments before `deployment` were full or
    failed. `missed` are those that missed a bound of the route at that moment. `data_tags` are the
    request's own. `unlisted` are its members that no schema listed, as far as they were recorded.
    """

    team: str
    project: str | None
    key_id: str
    route: str
    deployment: str
    model: str
    region: str
    data_class: str
    class_source: str
    operation: Operation
    service_tier: str | None
    price_id: str | None
    capabilities: frozenset[str] = frozenset()
    features: frozenset[str] = frozenset()
    data_tags: frozenset[str] = frozenset()
    ranked: tuple[str, ...] = ()
    missed: frozenset[str] = frozenset()
    unlisted: frozenset[str] = frozenset()

    @property
    def passed_over(self) -> frozenset[str]:
        """Return the deployments that the past requests did not use because they missed a bound,
        had failed, or were full.
        """
        if self.deployment not in self.ranked:
            return self.missed
        return (self.missed | frozenset(self.ranked[: self.ranked.index(self.deployment)])) - {
            self.deployment
        }


class PastRequest(NamedTuple):
    """One past attempt.

    `is_followed`: it had no answer, and another attempt of its request came after it.

    `cost_nusd` is None if unknown; `held_nusd` then replaces it. `detail` are the rarer kinds of
    tokens.
    """

    alike: Alike
    at_ms: int
    input_tokens: int | None
    cached_input_tokens: int | None
    cache_write_tokens: int | None
    output_tokens: int | None
    reasoning_tokens: int | None
    detail: Mapping[str, Any] | None
    cost_nusd: int | None
    held_nusd: int | None
    input_bound_tokens: int
    max_output_tokens: int | None
    choices: int
    is_followed: bool
    prompts: int = 1

    @property
    def usage(self) -> TokenUsage:
        """Return the tokens that the past attempt used."""
        return TokenUsage(
            input_tokens=self.input_tokens,
            cached_input_tokens=self.cached_input_tokens,
            cache_write_tokens=self.cache_write_tokens,
            output_tokens=self.output_tokens,
            reasoning_tokens=self.reasoning_tokens,
            **{
                name: count
                for name, count in (self.detail or {}).items()
                if name in TokenUsage.__struct_fields__
            },
        )


class PastSpeed(NamedTuple):
    """A deployment's answer times: medians, None if nothing was measured."""

    ttft_s: float | None
    tpot_s: float | None


class PastSpend(NamedTuple):
    """A key's spending within a quarter of an hour; unknown costs count at their hold."""

    team: str
    project: str | None
    key_id: str
    slot_s: int
    nusd: int


class Pace(NamedTuple):
    """A deployment's speed in the replayed past."""

    ttft_s: float
    ttft_p95_s: float
    tpot_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """The place and day of a decision: `day` is for facts that expire."""

    gateway_region: str
    day: date


@dataclass(frozen=True, slots=True, kw_only=True)
class Fate:
    """The result for similar requests. `accounts` are the hard budgets that would be asked.

    `tier_price` is `price` in the service tier that would answer, None if it does not cover that.
    """

    refusal: Refusal | None
    route: Route | None = None
    deployment: Deployment | None = None
    price: Price | None = None
    tier_price: Price | None = None
    accounts: tuple[Account, ...] = ()

    @property
    def destination(self) -> str | None:
        """Return the deployment's name, None if the request is refused."""
        return None if self.deployment is None else self.deployment.name


def fate_of(
    alike: Alike, version: PolicyVersion, *, prices: Mapping[str, Price], place: Place
) -> Fate:
    """Return the deployment or refusal that similar past requests would get under another policy
    and at other prices.
    """
    policy = version.policy
    team = policy.teams.get(alike.team)
    if team is None:
        return Fate(refusal=Refusal.ROUTE)
    try:
        route = find_route(policy, team, alike.route)
        decision = _decided(alike, version, team=team, route=route, prices=prices, place=place)
        if refused := decision.refusal():
            raise refused
    except RequestError as error:
        return Fate(refusal=_REFUSALS.get(type(error), Refusal.CAPABILITY))
    return _fate(_chosen(decision.as_listed.choices, alike.passed_over), alike)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ordering:
    """Orders each of many similar requests by itself, with the function that orders live ones.

    `other` is the route that is degraded to. Sessions are not recorded: each key counts as one.
    """

    alike: Alike
    candidates: Candidates
    other: Candidates | None
    paces: Mapping[str, Pace]

    def fate(self, request: PastRequest) -> Fate:
        """Return the deployment or refusal that one past request would get, ordered by itself."""
        alike, other = self.alike, self.other
        tokens = _tokens(request)
        ask = unsent(alike.operation, alike.route, body_bytes=tokens.input_tokens)
        ranking = rank(
            self.candidates,
            ask,
            self._conditions(self.candidates, tokens),
            session=alike.key_id,
            degrade=None if other is None else lambda: (other, self._conditions(other, tokens)),
        )
        choices = ranking.choices
        if other is not None and ranking.degraded is None:
            # Deployments that were late at that moment are skipped, and leave the rest to the other
            # route.
            choices = (*choices, *other.choices)
        chosen = _chosen(choices, alike.passed_over)
        return _fate(_same_engine(chosen, choices, alike), alike)

    def _conditions(self, candidates: Candidates, tokens: _Tokens) -> Conditions:
        """Return the conditions that rank a past request: the past pace of each candidate, and the
        request's own output tokens.
        """
        return Conditions(
            predictions=[
                self._prediction(choice.candidate.deployment, tokens)
                for choice in candidates.choices
            ],
            output_tokens=tokens.output_tokens,
        )

    def _prediction(self, deployment: Deployment, tokens: _Tokens) -> Prediction:
        """Return a deployment's prediction by its pace in the past, or by its prior if nothing was
        measured.
        """
        prior = deployment.prior or DEFAULT_PRIOR
        pace = self.paces.get(deployment.name) or Pace(prior.ttft_s, prior.ttft_s, prior.tpot_s)
        # Sizes are tokens here already, not bytes.
        return Prediction(*pace, tokens_per_byte=1.0, cached_share=tokens.cached_share)


def orderer_of(
    alike: Alike,
    version: PolicyVersion,
    *,
    prices: Mapping[str, Price],
    place: Place,
    paces: Mapping[str, Pace],
) -> Ordering | None:
    """Return the object that orders similar requests under another policy, request by request; None
    if they all share one result.
    """
    team = version.policy.teams.get(alike.team)
    if team is None:
        return None
    try:
        route = find_route(version.policy, team, alike.route)
        decision = _decided(alike, version, team=team, route=route, prices=prices, place=place)
        if not decision.eligible or not decision.is_ordered:
            return None
        other = None
        if route.degrade_to is not None:
            degraded = _decided(
                alike,
                version,
                team=team,
                route=version.policy.routes[route.degrade_to],
                prices=prices,
                place=place,
            )
            other = candidates_of(degraded, alike.operation) if degraded.eligible else None
    except RequestError:
        return None  # `fate_of` gives the reason
    return Ordering(
        alike=alike, candidates=candidates_of(decision, alike.operation), other=other, paces=paces
    )


def cost_after_nusd(request: PastRequest, fate: Fate) -> int | None:
    """Return a past request's cost in nano-dollars at the deployment and price of the other policy;
    None if it cannot be known.
    """
    if request.cost_nusd is None or fate.tier_price is None:
        return None
    if (
        fate.destination == request.alike.deployment
        and fate.tier_price.price_id == request.alike.price_id
    ):
        return request.cost_nusd
    try:
        return cost_nusd(lines(request.usage, fate.tier_price))
    except ValueError:  # this price does not cover a kind of these tokens
        return None


def hold_nusd(request: PastRequest, fate: Fate) -> int:
    """Return the hold in nano-dollars that a past request would get before it is sent to the
    deployment that the other policy chooses.
    """
    assert fate.route is not None, "what is refused is not held for"
    assert fate.deployment is not None, "nor has it a destination"
    assert fate.price is not None, "nor a price"
    alike, overhead = request.alike, fate.deployment.input_overhead_tokens
    ask = _facts(
        alike,
        body_bytes=max(0, request.input_bound_tokens - overhead),
        output_bound_tokens=request.max_output_tokens,
        choices=request.choices,
        prompts=request.prompts,
    )
    return bound_of(
        ask,
        route=fate.route,
        deployment=fate.deployment,
        price=fate.price,
        bounds_rounds=bool(fate.accounts),
    ).nusd


@dataclass(slots=True)
class BudgetWalk:
    """Hard budgets, walked through request by request.

    `granted_nusd` is by account and the second a period begins.

    Concurrent holds are not modelled: each request settles before the next one.
    """

    granted_nusd: Mapping[tuple[str, int], int] = field(default_factory=dict)
    _spent_nusd: dict[tuple[str, int], int] = field(default_factory=dict)
    _running: dict[str, tuple[int, int, int]] = field(default_factory=dict)

    def blocked_by(
        self, accounts: tuple[Account, ...], at_ms: int, *, hold_nusd: int
    ) -> Account | None:
        """Return the first hard budget's account without room for a request's hold; None if all
        have room. Charges nothing.
        """
        for account in accounts:
            period = self._period(account, at_ms)
            limit_nusd = account.rule.limit_nusd + self.granted_nusd.get(period, 0)
            if self._spent_nusd.get(period, 0) + hold_nusd > limit_nusd:
                return account
        return None

    def charge(self, accounts: tuple[Account, ...], at_ms: int, *, cost_nusd: int) -> None:
        """Add a request's cost to its accounts, in the periods that a moment belongs to."""
        for account in accounts:
            period = self._period(account, at_ms)
            self._spent_nusd[period] = self._spent_nusd.get(period, 0) + cost_nusd

    def _period(self, account: Account, at_ms: int) -> tuple[str, int]:
        """Return the identity of an account's period.

        Time advances, so it is nearly always the previous request's period.
        """
        starts_s, first_ms, end_ms = self._running.get(account.account_id, (0, 0, 0))
        if not first_ms <= at_ms < end_ms:
            span = account.rule.period_at(EPOCH + timedelta(milliseconds=at_ms))
            starts_s, first_ms = span.starts_s, span.starts_s * 1000
            end_ms = _FOREVER_MS if span.ends_at is None else _ms(span.ends_at)
            self._running[account.account_id] = (starts_s, first_ms, end_ms)
        return account.account_id, starts_s


_FOREVER_MS = 2**62


def _decided(
    alike: Alike,
    version: PolicyVersion,
    *,
    team: Team,
    route: Route,
    prices: Mapping[str, Price],
    place: Place,
) -> Decision:
    """Return the decision on similar past requests, by the gateway's own `decide`. Raises
    `InvalidRequest` as the gateway would.
    """
    return decide(
        version,
        team=team,
        route=route,
        data_class=_class_of(alike, team),
        data_tags=alike.data_tags,
        facts=_facts(alike),
        prices=prices,
        gateway_region=place.gateway_region,
        day=place.day,
        unlisted=alike.unlisted if has_hard_budget(version.policy, team) else (),
    )


def _facts(
    alike: Alike,
    *,
    body_bytes: int = 0,
    output_bound_tokens: int | None = None,
    choices: int = 1,
    prompts: int = 1,
) -> RequestFacts:
    """Return the request facts of similar past requests, as far as events record them."""
    return unsent(
        alike.operation,
        alike.route,
        capabilities=alike.capabilities,
        features=alike.features,
        output_bound_tokens=output_bound_tokens,
        choices=choices,
        body_bytes=body_bytes,
        prompts=prompts,
    )


def _class_of(alike: Alike, team: Team) -> DataClass:
    """Return the data class of similar past requests: a header, or a stored response, that raised
    it then would raise it again.
    """
    if alike.class_source == "team":
        return team.data_class
    return max(team.data_class, DataClass[alike.data_class.upper()])


class _Tokens(NamedTuple):
    """A request's tokens; if unknown, the predicted ones."""

    input_tokens: int
    output_tokens: float
    cached_share: float


def _tokens(request: PastRequest) -> _Tokens:
    """Return a past request's tokens for its ranking, with typical figures in place of unknown
    ones.
    """
    read, written, cached = request.input_tokens, request.output_tokens, request.cached_input_tokens
    if read is None:
        read = int(request.input_bound_tokens * TOKENS_PER_BYTE)
    return _Tokens(
        read,
        OUTPUT_TOKENS if written is None else written,
        min(1.0, (cached or 0) / read) if read else 0.0,
    )


def _chosen(choices: Sequence[Choice], passed_over: frozenset[str]) -> Choice:
    """Return the first choice that was not passed over in the past; the first of all if every one
    was.
    """
    return next(
        (one for one in choices if one.candidate.deployment.name not in passed_over), choices[0]
    )


def _same_engine(chosen: Choice, choices: Sequence[Choice], alike: Alike) -> Choice:
    """Return the deployment that served the past request, if it is among the choices as a replica
    of the chosen one's engine; else the chosen one.

    A request stays at its session's replica.
    """
    group = chosen.candidate.deployment.group
    there = (one for one in choices if one.candidate.deployment.name == alike.deployment)
    return next(
        (one for one in there if group is not None and one.candidate.deployment.group == group),
        chosen,
    )


def _fate(chosen: Choice, alike: Alike) -> Fate:
    """Return the result for requests that the chosen deployment would serve, with its prices and
    hard budgets.
    """
    deployment, price = chosen.candidate.deployment, chosen.candidate.price
    assert price is not None, "an unpriced deployment is never eligible"
    decision = chosen.decision
    return Fate(
        refusal=None,
        route=decision.route,
        deployment=deployment,
        price=price,
        tier_price=_tier_price(price, alike, is_same=deployment.name == alike.deployment),
        accounts=_hard_accounts(decision, alike),
    )


def _tier_price(price: Price, alike: Alike, *, is_same: bool) -> Price | None:
    """Return the price in the service tier that would answer: the recorded tier at the same
    deployment, the requested one at another; None if the price does not cover it.
    """
    asked = (feature_and_tier(feature)[1] for feature in alike.features)
    tier = (
        alike.service_tier if is_same else next((tier for tier in asked if tier is not None), None)
    )
    try:
        return price.for_tier(tier)
    except UnknownTier:
        return None


def _hard_accounts(decision: Decision, alike: Alike) -> tuple[Account, ...]:
    """Return the accounts of the hard budgets that similar past requests would be charged to."""
    accounts = decision.policy.policy.accounts(
        decision.team, project=alike.project, key_id=alike.key_id, day=decision.day
    )
    return tuple(account for account in accounts if account.rule.is_hard)


def _ms(moment: datetime) -> int:
    """Return a moment in whole milliseconds since 1970."""
    return (moment - EPOCH) // timedelta(milliseconds=1)
