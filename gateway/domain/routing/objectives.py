"""Orders a request's eligible deployments by the route's objective, latency and cost bounds,
replicas and degradation.

Pure: current knowledge is passed as `Conditions`. Another objective is one function and one line in
`OBJECTIVES`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from math import inf, log

from gateway.domain.hashing import hash64, mixed
from gateway.domain.operation import Operation
from gateway.domain.policy.policy import Route
from gateway.domain.request.request import RequestFacts
from gateway.domain.routing.affinity import spread
from gateway.domain.routing.decide import Choice, Decision, Ranking
from gateway.domain.routing.predictions import (
    COST,
    DEFAULT_PRIOR,
    KEPT_AGAIN_AT,
    TTFT,
    WINDOW,
    Conditions,
    Expected,
    Prediction,
    Rates,
    rates_of,
)

_NO_MISSES: tuple[str, ...] = ()
_LATE: tuple[str, ...] = (TTFT,)


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidates:
    """A decision's eligible deployments with everything that does not depend on the request, for
    repeated ranking.
    """

    decision: Decision
    choices: tuple[Choice, ...]
    names: tuple[str, ...]
    rates: tuple[Rates, ...]
    windows: tuple[int | None, ...]
    groups: tuple[tuple[str, ...], ...]  # replicas of one engine, in groups of two or more
    weights: tuple[float, ...]
    hashes: tuple[int, ...]  # of the names
    objective: Objective
    writes_output: bool

    @property
    def route(self) -> Route:
        """Return the requested route, not one that is degraded to."""
        return self.decision.route


Objective = Callable[[Candidates, Sequence[Expected], str], Sequence[float]]
Degrade = Callable[[], tuple[Candidates, Conditions] | None]


def candidates_of(decision: Decision, operation: Operation = Operation.CHAT) -> Candidates:
    """Return a decision's eligible deployments with everything for their ranking that does not
    depend on the request.
    """
    listed = decision.as_listed.choices
    names = tuple(choice.candidate.deployment.name for choice in listed)
    by_group: dict[str, list[str]] = {}
    for choice in listed:
        if choice.candidate.deployment.group is not None:
            by_group.setdefault(choice.candidate.deployment.group, []).append(
                choice.candidate.deployment.name
            )
    return Candidates(
        decision=decision,
        choices=listed,
        names=names,
        rates=tuple(_rates(choice) for choice in listed),
        windows=tuple(choice.candidate.deployment.context_window for choice in listed),
        groups=tuple(tuple(members) for members in by_group.values() if len(members) > 1),
        weights=tuple(decision.route.weights.get(name, 0.0) for name in names),
        hashes=tuple(map(hash64, names)),
        objective=OBJECTIVES[decision.route.objective],
        writes_output=operation.writes_output,
    )


def _rates(choice: Choice) -> Rates:
    """Return an eligible deployment's rates in nano-dollars a token, by context tier."""
    assert choice.candidate.price is not None, "an unpriced deployment is never eligible"
    return rates_of(choice.candidate.price)


def rank(
    candidates: Candidates,
    facts: RequestFacts,
    live: Conditions,
    *,
    session: str,
    degrade: Degrade | None = None,
    kept_at: str | None = None,
) -> Ranking:
    """Return the order in which one request of a session tries the eligible deployments; excludes
    none of them.

    `kept_at` is the deployment that has the session's prompt cached: an objective tries it first,
    within the bounds. The listed order of a route without an objective stays.

    Those that meet all bounds come first, in the objective's order. If none does, those of the
    route that `degrade` gives follow. Then come those that miss a bound, and last those whose
    context window is too small.
    """
    expected = expect(candidates, facts, live)
    order = _ordered(candidates.objective(candidates, expected, session))
    if kept_at in candidates.names and candidates.objective is not priority:
        place = candidates.names.index(kept_at)
        order = [place, *(one for one in order if one != place)]
    if not live.late and not any(one.misses for one in expected):
        return _ranking(
            candidates,
            _with_replicas(candidates, order, session, live) if candidates.groups else order,
            expected,
        )
    return _rank_by_bounds(
        candidates, facts, live, session=session, degrade=degrade, expected=expected, order=order
    )


def assumed(candidates: Candidates) -> Conditions:
    """Return the latency figures that the policy declares for the candidates, for a ranking without
    any observation.
    """
    priors = [choice.candidate.deployment.prior or DEFAULT_PRIOR for choice in candidates.choices]
    return Conditions(
        predictions=[Prediction(prior.ttft_s, prior.ttft_s, prior.tpot_s) for prior in priors]
    )


def expect(candidates: Candidates, facts: RequestFacts, live: Conditions) -> list[Expected]:
    """Return the predicted tokens, cost and time of a request at each candidate, in the listed
    order, with the bounds that the predictions miss.
    """
    decision = candidates.decision
    route = decision.route
    bound_s, most_nusd, late = decision.ttft_bound_s, route.max_cost_nusd, live.late
    body_bytes, asked = facts.body_bytes, facts.output_bound_tokens
    output = 0.0
    if candidates.writes_output:
        output = live.output_tokens if asked is None or live.output_tokens < asked else float(asked)
        output *= facts.answers
    prompts = facts.prompts or 1
    reserved = (
        output if asked is None or not candidates.writes_output else float(asked * facts.answers)
    )
    found = []
    for name, rates, window, prediction in zip(
        candidates.names, candidates.rates, candidates.windows, live.predictions, strict=True
    ):
        tokens = body_bytes * prediction.tokens_per_byte
        share = prediction.cached_share
        _, input_nusd, cached_nusd, output_nusd = (
            rates[0] if tokens >= rates[0][0] else _rates_at(rates, tokens)
        )
        cost_nusd = (
            tokens * (input_nusd + share * (cached_nusd - input_nusd)) + output * output_nusd
        )
        ttft_s, ttft_p95_s, misses = prediction.ttft_s, prediction.ttft_p95_s, _NO_MISSES
        # In this form a NaN misses the bound.
        if bound_s is not None and not ttft_p95_s <= (
            bound_s * KEPT_AGAIN_AT if name in late else bound_s
        ):
            misses = _LATE
        if most_nusd is not None and not cost_nusd <= most_nusd:
            misses = (*misses, COST)
        if window is not None and not tokens + reserved <= window * prompts:
            misses = (*misses, WINDOW)
        found.append(
            Expected(
                cost_nusd,
                tokens,
                output,
                share,
                ttft_s,
                ttft_p95_s,
                prediction.tpot_s,
                prediction.samples,
                prediction.cached_samples,
                live.output_samples,
                prediction.waiting,
                misses,
            )
        )
    return found


def _rates_at(rates: Rates, tokens: float) -> tuple[float, float, float, float]:
    """Return the rates of the highest context tier that a prompt of this many tokens reaches."""
    return next((tier for tier in rates if tokens >= tier[0]), rates[-1])


def priority(candidates: Candidates, expected: Sequence[Expected], session: str) -> Sequence[float]:
    """Score the candidates so that the order listed by the route stays; the smallest score is tried
    first.
    """
    return range(len(expected))


def cheapest(candidates: Candidates, expected: Sequence[Expected], session: str) -> Sequence[float]:
    """Score the candidates by the predicted cost of this request; the smallest score is tried
    first.
    """
    return [one.cost_nusd for one in expected]


def fastest(candidates: Candidates, expected: Sequence[Expected], session: str) -> Sequence[float]:
    """Score the candidates by the predicted time until the last token; the smallest score is tried
    first.
    """
    later = max(0.0, expected[0].output_tokens - 1.0)  # one request: equal at each
    return [one.ttft_s + one.tpot_s * later for one in expected]


def balanced(candidates: Candidates, expected: Sequence[Expected], session: str) -> Sequence[float]:
    """Score the candidates by the weighted sum of cost and time, each as a multiple of the least
    among them.
    """
    weights = candidates.route.balance
    costs = _multiples([one.cost_nusd for one in expected])
    times = _multiples(fastest(candidates, expected, session))
    if not weights.cost:  # zero times infinity is NaN
        return times
    if not weights.latency:
        return costs
    return [
        weights.cost * cost + weights.latency * time
        for cost, time in zip(costs, times, strict=True)
    ]


def weighted(candidates: Candidates, expected: Sequence[Expected], session: str) -> Sequence[float]:
    """Score the candidates by a draw from the hash of route and session: stable per session, shares
    by weight over many.

    Each deployment draws by itself, so adding or removing one moves no more sessions than its
    share.
    """
    seed = hash64(f"{candidates.route.name}\n{session}")
    return [
        _exponential_draw(seed ^ own, weight)
        for own, weight in zip(candidates.hashes, candidates.weights, strict=True)
    ]


OBJECTIVES: dict[str, Objective] = {
    "priority": priority,
    "cheapest": cheapest,
    "fastest": fastest,
    "balanced": balanced,
    "weighted": weighted,
}


def _rank_by_bounds(
    candidates: Candidates,
    facts: RequestFacts,
    live: Conditions,
    *,
    session: str,
    degrade: Degrade | None,
    expected: list[Expected],
    order: list[int],
) -> Ranking:
    """Return the ranking of a request if a candidate misses a bound or its window, or missed the
    latency bound recently.
    """
    tiers = _tiers(order, expected)
    kept, missing, _ = tiers
    fitting = [place for place in order if WINDOW not in expected[place].misses]
    preferred = fitting[0] if fitting else order[0]
    if candidates.groups:
        tiers = [_with_replicas(candidates, tier, session, live) for tier in tiers]
    ranking = _ranking(candidates, list(chain.from_iterable(tiers)), expected)
    late = frozenset(
        name for name, one in zip(candidates.names, expected, strict=True) if TTFT in one.misses
    )
    degraded, others = None, None
    if kept:
        if preferred in missing and not _are_replicas(candidates, preferred, tiers[0][0]):
            degraded = "spill"
    elif (
        candidates.route.degrade_to is not None
        and degrade is not None
        and (found := degrade()) is not None
    ):
        others = _rank_degraded_route(found, facts, session=session, besides=candidates.names)
        if others.choices:
            degraded = f"route:{candidates.route.degrade_to}"
    return Ranking(
        decision=candidates.decision,
        late=late,
        degraded=degraded,
        preferred=candidates.names[preferred] if degraded is not None else None,
        choices=ranking.choices if others is None else (*others.choices, *ranking.choices),
        expected=ranking.expected if others is None else (*others.expected, *ranking.expected),
    )


def _tiers(order: Iterable[int], expected: Sequence[Expected]) -> list[list[int]]:
    """Return the candidates in three lists, each in the given order: those that meet all bounds,
    those that miss one, those with too small a window.
    """
    tiers: list[list[int]] = [[], [], []]
    for place in order:
        misses = expected[place].misses
        tiers[0 if not misses else 2 if WINDOW in misses else 1].append(place)
    return tiers


def _rank_degraded_route(
    found: tuple[Candidates, Conditions],
    facts: RequestFacts,
    *,
    session: str,
    besides: Sequence[str],
) -> Ranking:
    """Return the ranking of the degraded-to route's deployments, without those that the requested
    route has too.
    """
    other, live = found
    ranking = rank(other, facts, live, session=session)
    kept = [
        (choice, expected)
        for choice, expected in zip(ranking.choices, ranking.expected, strict=True)
        if choice.candidate.deployment.name not in besides
    ]
    return Ranking(
        decision=other.decision,
        choices=tuple(choice for choice, _ in kept),
        expected=tuple(expected for _, expected in kept),
    )


def _with_replicas(
    candidates: Candidates, order: list[int], session: str, live: Conditions
) -> list[int]:
    """Return the order with each group's replicas reordered among their places: the session's own
    first, unless it is too busy.
    """
    order = list(order)
    place_of = {name: place for place, name in enumerate(candidates.names)}
    for group in candidates.groups:
        positions = [
            position for position, place in enumerate(order) if candidates.names[place] in group
        ]
        members = [candidates.names[order[position]] for position in positions]
        for position, name in zip(
            positions, spread(session, sorted(members), live.in_flight), strict=True
        ):
            order[position] = place_of[name]
    return order


def _are_replicas(candidates: Candidates, one: int, other: int) -> bool:
    """Return True if two candidates are replicas of one engine, that is, members of one group."""
    return any(
        candidates.names[one] in group and candidates.names[other] in group
        for group in candidates.groups
    )


def _ordered(scores: Sequence[float]) -> list[int]:
    """Return the candidates' indexes by rising score, ties as listed.

    NaN and negative scores come last: sorting by them would shuffle all.
    """
    clean = [score if score >= 0.0 else inf for score in scores]
    return sorted(range(len(clean)), key=clean.__getitem__)


def _ranking(candidates: Candidates, order: Sequence[int], expected: Sequence[Expected]) -> Ranking:
    """Return the ranking of the candidates in the given order, with their predictions."""
    return Ranking(
        decision=candidates.decision,
        choices=tuple([candidates.choices[place] for place in order]),
        expected=tuple([expected[place] for place in order]),
    )


def _multiples(values: Sequence[float]) -> list[float]:
    """Return each value as a multiple of the least above 0; a value of 0 stays 0."""
    least = min((value for value in values if 0.0 < value < inf), default=0.0)
    if least <= 0.0:
        return [0.0 if value == 0.0 else inf for value in values]
    return [value / least for value in values]


def _exponential_draw(bits: int, weight: float) -> float:
    """Return an exponential draw: each of several is the least with its share of the weights as
    probability.
    """
    if not 0.0 < weight < inf:
        return inf
    return -log((mixed(bits) + 0.5) / 2**64) / weight
