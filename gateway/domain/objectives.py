"""In which order a request tries the eligible: objectives, bounds, replicas, and where it degrades to.

Pure: what is known at the moment comes as `Live`. Another objective is one function and one line in `OBJECTIVES`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from math import inf, log

from gateway.domain.affinity import spread
from gateway.domain.expectation import (
    COST,
    DEFAULT_PRIOR,
    KEPT_AGAIN_AT,
    TTFT,
    WINDOW,
    Expected,
    Live,
    Prospect,
    Rates,
    rates_of,
)
from gateway.domain.hashing import hash64, mixed
from gateway.domain.policy import Operation, Route
from gateway.domain.request import Ask
from gateway.domain.routing import Choice, Decision, Ranking

_NO_MISSES: tuple[str, ...] = ()
_LATE: tuple[str, ...] = (TTFT,)


@dataclass(frozen=True, slots=True, kw_only=True)
class Lineup:
    """The eligible of a decision with all that does not depend on the request, ready to be ranked many times."""

    decision: Decision
    choices: tuple[Choice, ...]
    names: tuple[str, ...]
    rates: tuple[Rates, ...]
    windows: tuple[int | None, ...]
    groups: tuple[tuple[str, ...], ...]  # replicas of one engine, by two and more
    weights: tuple[float, ...]
    hashes: tuple[int, ...]  # of the names
    objective: Objective
    writes_output: bool

    @property
    def route(self) -> Route:
        """The route that was asked for."""
        return self.decision.route


Objective = Callable[[Lineup, Sequence[Expected], str], Sequence[float]]
Degrade = Callable[[], tuple[Lineup, Live] | None]


def lineup_of(decision: Decision, operation: Operation = Operation.CHAT) -> Lineup:
    """Prepare a decision for ranking."""
    listed = decision.as_listed.choices
    names = tuple(choice.candidate.deployment.name for choice in listed)
    by_group: dict[str, list[str]] = {}
    for choice in listed:
        if choice.candidate.deployment.group is not None:
            by_group.setdefault(choice.candidate.deployment.group, []).append(choice.candidate.deployment.name)
    return Lineup(
        decision=decision, choices=listed, names=names,
        rates=tuple(_rates(choice) for choice in listed),
        windows=tuple(choice.candidate.deployment.context_window for choice in listed),
        groups=tuple(tuple(members) for members in by_group.values() if len(members) > 1),
        weights=tuple(decision.route.weights.get(name, 0.0) for name in names), hashes=tuple(map(hash64, names)),
        objective=OBJECTIVES[decision.route.objective], writes_output=operation is not Operation.EMBEDDINGS,
    )  # fmt: skip


def _rates(choice: Choice) -> Rates:
    assert choice.candidate.price is not None, "an unpriced deployment is never eligible"
    return rates_of(choice.candidate.price)


def rank(lineup: Lineup, ask: Ask, live: Live, *, session: str, degrade: Degrade | None = None) -> Ranking:
    """Order the eligible of a lineup for one request of a session.

    Those that keep all bounds come first, in the objective's order; then, where none does, those of the route that
    `degrade` gives; then those that miss one, and last what does not fit into its context window.
    """
    expected = expect(lineup, ask, live)
    order = _ordered(lineup.objective(lineup, expected, session))
    if not live.late and not any(one.misses for one in expected):
        return _ranking(lineup, _with_replicas(lineup, order, session, live) if lineup.groups else order, expected)
    return _bounded(lineup, ask, live, session=session, degrade=degrade, expected=expected, order=order)


def assumed(lineup: Lineup) -> Live:
    """What the policy declares: all there is to go by where nothing was seen."""
    priors = [choice.candidate.deployment.prior or DEFAULT_PRIOR for choice in lineup.choices]
    return Live(prospects=[Prospect(prior.ttft_s, prior.ttft_s, prior.tpot_s) for prior in priors])


def expect(lineup: Lineup, ask: Ask, live: Live) -> list[Expected]:
    """What is expected of each, as listed, with the bounds that it would miss."""
    decision = lineup.decision
    route = decision.route
    bound_s, most_nusd, late = decision.ttft_bound_s, route.max_cost_nusd, live.late
    body_bytes, asked = ask.body_bytes, ask.output_bound_tokens
    output = 0.0
    if lineup.writes_output:
        output = live.output_tokens if asked is None or live.output_tokens < asked else float(asked)
        output *= ask.answers
    prompts = ask.prompts or 1
    reserved = output if asked is None or not lineup.writes_output else float(asked * ask.answers)
    found = []
    for name, rates, window, prospect in zip(lineup.names, lineup.rates, lineup.windows, live.prospects, strict=True):
        tokens = body_bytes * prospect.tokens_per_byte
        share = prospect.cached_share
        _, input_nusd, cached_nusd, output_nusd = rates[0] if tokens >= rates[0][0] else _rates_at(rates, tokens)
        cost_nusd = tokens * (input_nusd + share * (cached_nusd - input_nusd)) + output * output_nusd
        ttft_s, ttft_p95_s, misses = prospect.ttft_s, prospect.ttft_p95_s, _NO_MISSES
        # Asked this way round, what is no number misses.
        if bound_s is not None and not ttft_p95_s <= (bound_s * KEPT_AGAIN_AT if name in late else bound_s):
            misses = _LATE
        if most_nusd is not None and not cost_nusd <= most_nusd:
            misses = (*misses, COST)
        if window is not None and not tokens + reserved <= window * prompts:
            misses = (*misses, WINDOW)
        found.append(
            Expected(
                cost_nusd, tokens, output, share, ttft_s, ttft_p95_s, prospect.tpot_s, prospect.samples,
                prospect.cached_samples, live.output_samples, prospect.waiting, misses,
            )
        )  # fmt: skip
    return found


def _rates_at(rates: Rates, tokens: float) -> tuple[float, float, float, float]:
    """The rates of the highest context tier that a prompt reaches."""
    return next((tier for tier in rates if tokens >= tier[0]), rates[-1])


def priority(lineup: Lineup, expected: Sequence[Expected], session: str) -> Sequence[float]:
    """As listed."""
    return range(len(expected))


def cheapest(lineup: Lineup, expected: Sequence[Expected], session: str) -> Sequence[float]:
    """By the expected cost of this request."""
    return [one.cost_nusd for one in expected]


def fastest(lineup: Lineup, expected: Sequence[Expected], session: str) -> Sequence[float]:
    """By the time expected until its last token."""
    later = max(0.0, expected[0].output_tokens - 1.0)  # one request: the same at each
    return [one.ttft_s + one.tpot_s * later for one in expected]


def balanced(lineup: Lineup, expected: Sequence[Expected], session: str) -> Sequence[float]:
    """By cost and time, each as a multiple of the least among the candidates, weighted and added up."""
    weights = lineup.route.balance
    costs = _multiples([one.cost_nusd for one in expected])
    times = _multiples(fastest(lineup, expected, session))
    if not weights.cost:  # nothing times infinity is no number
        return times
    if not weights.latency:
        return costs
    return [weights.cost * cost + weights.latency * time for cost, time in zip(costs, times, strict=True)]


def weighted(lineup: Lineup, expected: Sequence[Expected], session: str) -> Sequence[float]:
    """By a draw from the hash of route and session: the same order for one session, shares by weight over many.

    Each deployment draws by itself, so one that comes or goes moves no more sessions than its share.
    """
    seed = hash64(f"{lineup.route.name}\n{session}")
    return [_drawn(seed ^ own, weight) for own, weight in zip(lineup.hashes, lineup.weights, strict=True)]


OBJECTIVES: dict[str, Objective] = {
    "priority": priority,
    "cheapest": cheapest,
    "fastest": fastest,
    "balanced": balanced,
    "weighted": weighted,
}


def _bounded(
    lineup: Lineup, ask: Ask, live: Live, *, session: str, degrade: Degrade | None, expected: list[Expected],
    order: list[int],
) -> Ranking:  # fmt: skip
    """The same where a bound or a window is missed, or was missed lately."""
    tiers = _tiers(order, expected)
    kept, missing, _ = tiers
    fitting = [place for place in order if WINDOW not in expected[place].misses]
    preferred = fitting[0] if fitting else order[0]
    if lineup.groups:
        tiers = [_with_replicas(lineup, tier, session, live) for tier in tiers]
    ranking = _ranking(lineup, list(chain.from_iterable(tiers)), expected)
    late = frozenset(name for name, one in zip(lineup.names, expected, strict=True) if TTFT in one.misses)
    degraded, others = None, None
    if kept:
        if preferred in missing and not _are_replicas(lineup, preferred, tiers[0][0]):
            degraded = "spill"
    elif lineup.route.degrade_to is not None and degrade is not None and (found := degrade()) is not None:
        others = _others(found, ask, session=session, besides=lineup.names)
        if others.choices:
            degraded = f"route:{lineup.route.degrade_to}"
    return Ranking(
        decision=lineup.decision, late=late, degraded=degraded,
        preferred=lineup.names[preferred] if degraded is not None else None,
        choices=ranking.choices if others is None else (*others.choices, *ranking.choices),
        expected=ranking.expected if others is None else (*others.expected, *ranking.expected),
    )  # fmt: skip


def _tiers(order: Iterable[int], expected: Sequence[Expected]) -> list[list[int]]:
    """What keeps all bounds, what misses one, and what does not fit: each in the given order."""
    tiers: list[list[int]] = [[], [], []]
    for place in order:
        misses = expected[place].misses
        tiers[0 if not misses else 2 if WINDOW in misses else 1].append(place)
    return tiers


def _others(found: tuple[Lineup, Live], ask: Ask, *, session: str, besides: Sequence[str]) -> Ranking:
    """The ranking of a route that is degraded to, less the deployments that were there before."""
    other, live = found
    ranking = rank(other, ask, live, session=session)
    kept = [
        (choice, expected)
        for choice, expected in zip(ranking.choices, ranking.expected, strict=True)
        if choice.candidate.deployment.name not in besides
    ]
    return Ranking(
        decision=other.decision, choices=tuple(choice for choice, _ in kept),
        expected=tuple(expected for _, expected in kept),
    )  # fmt: skip


def _with_replicas(lineup: Lineup, order: list[int], session: str, live: Live) -> list[int]:
    """The same order, but within each group the member that the session was at takes the first of their places."""
    order = list(order)
    place_of = {name: place for place, name in enumerate(lineup.names)}
    for group in lineup.groups:
        positions = [position for position, place in enumerate(order) if lineup.names[place] in group]
        members = [lineup.names[order[position]] for position in positions]
        for position, name in zip(positions, spread(session, sorted(members), live.in_flight), strict=True):
            order[position] = place_of[name]
    return order


def _are_replicas(lineup: Lineup, one: int, other: int) -> bool:
    return any(lineup.names[one] in group and lineup.names[other] in group for group in lineup.groups)


def _ordered(scores: Sequence[float]) -> list[int]:
    """Places by score, ties as listed. What is no number of at least 0 comes last: sorting by it would shuffle all."""
    clean = [score if score >= 0.0 else inf for score in scores]
    return sorted(range(len(clean)), key=clean.__getitem__)


def _ranking(lineup: Lineup, order: Sequence[int], expected: Sequence[Expected]) -> Ranking:
    return Ranking(
        decision=lineup.decision, choices=tuple([lineup.choices[place] for place in order]),
        expected=tuple([expected[place] for place in order]),
    )  # fmt: skip


def _multiples(values: Sequence[float]) -> list[float]:
    """Each value as a multiple of the least above 0; what costs nothing is no multiple of it."""
    least = min((value for value in values if 0.0 < value < inf), default=0.0)
    if least <= 0.0:
        return [0.0 if value == 0.0 else inf for value in values]
    return [value / least for value in values]


def _drawn(bits: int, weight: float) -> float:
    """An exponential draw: the least of several is each one's by its share of the weights."""
    if not 0.0 < weight < inf:
        return inf
    return -log((mixed(bits) + 0.5) / 2**64) / weight
