"""Decides past requests again under another policy version, and sums destinations, costs, latency
and refusals by team and route; it sends nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta
from typing import NamedTuple, Protocol

from msgspec import Struct

from gateway.domain.budgets.budgets import EPOCH
from gateway.domain.policy.policy import Policy, PolicyVersion
from gateway.domain.routing.replay import (
    Alike,
    BudgetWalk,
    Fate,
    Ordering,
    Pace,
    PastRequest,
    PastSpeed,
    PastSpend,
    Place,
    Refusal,
    cost_after_nusd,
    fate_of,
    hold_nusd,
    orderer_of,
)
from gateway.services.policy.past_prices import PastPrices


class PastSource(Protocol):
    """The past traffic between two moments; `reports.Past` implements it."""

    @property
    def since(self) -> datetime:
        """Return the moment at which the replayed time begins."""

    @property
    def until(self) -> datetime:
        """Return the moment before which the replayed time ends."""

    def requests(self) -> Iterator[Sequence[PastRequest]]:
        """Yield the past attempts in time order, in batches."""

    def speeds(self) -> Mapping[str, PastSpeed]:
        """Return each deployment's median answer times in the past."""

    def spent_before(self, first: datetime) -> Iterable[PastSpend]:
        """Yield the spending from `first` until the replayed time begins."""

    def grants(self) -> Mapping[tuple[str, int], int]:
        """Return the amounts granted on top of limits, by account and the second when its period
        began.
        """


class Way(NamedTuple):
    """The deployments that a request goes to before and after; they may be the same."""

    before: str
    after: str


class Moved(Struct):
    """The requests that moved in one way, and their answer tokens after the first."""

    requests: int = 0
    to_other_model: int = 0
    later_tokens: int = 0


class Latency(NamedTuple):
    """The latency that a served request may expect.

    None if a used deployment has no past.
    """

    ttft_before_s: float | None
    ttft_after_s: float | None
    tpot_before_s: float | None
    tpot_after_s: float | None


@dataclass(slots=True, kw_only=True)
class RouteTally:
    """The sums of one team's replayed requests on one route.

    Costs cover only requests with a known cost before and after. Refused and blocked requests have
    a cost before and none after. `unknown` requests could not be compared.
    """

    team: str
    route: str
    requests: int = 0
    cost_before_nusd: int = 0
    cost_after_nusd: int = 0
    unknown: int = 0
    ways: dict[Way, Moved] = field(default_factory=dict)
    refused: Counter[Refusal] = field(default_factory=Counter)
    blocked: Counter[str] = field(default_factory=Counter)

    @property
    def moved(self) -> Mapping[Way, int]:
        """Return the number of requests that change their deployment, the most frequent change
        first.
        """
        found = {way: moved.requests for way, moved in self.ways.items() if way.before != way.after}
        return dict(sorted(found.items(), key=lambda item: (-item[1], item[0])))

    def latency(self, speeds: Mapping[str, PastSpeed]) -> Latency:
        """Return the latency before and after: each deployment's medians, weighted by its
        requests.
        """
        before = [
            (speeds.get(way.before), moved) for way, moved in self.ways.items() if moved.requests
        ]
        after = [
            (speeds.get(way.after), moved) for way, moved in self.ways.items() if moved.requests
        ]
        return Latency(
            _mean_ttft_s(before), _mean_ttft_s(after), _mean_tpot_s(before), _mean_tpot_s(after)
        )

    @property
    def refusals(self) -> int:
        """Return the number of refused requests, for any reason except a budget."""
        return self.refused.total()


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """The effect that a policy would have had on past requests.

    `first_at` and `last_at` are None if there was no request.

    `regions_before` and `regions_after` count requests. `earlier_attempts` are attempts that failed
    before another one answered. No figure includes them or their cost.
    """

    first_at: datetime | None
    last_at: datetime | None
    tallies: tuple[RouteTally, ...]
    regions_before: Mapping[str, int]
    regions_after: Mapping[str, int]
    speeds: Mapping[str, PastSpeed]
    earlier_attempts: int
    earlier_cost_nusd: int

    @property
    def requests(self) -> int:
        """Return the number of all replayed requests."""
        return sum(tally.requests for tally in self.tallies)

    @property
    def cost_before_nusd(self) -> int:
        """Return the actual cost of the comparable requests."""
        return sum(tally.cost_before_nusd for tally in self.tallies)

    @property
    def cost_after_nusd(self) -> int:
        """Return the cost that the comparable requests would have had."""
        return sum(tally.cost_after_nusd for tally in self.tallies)


class _Ordered(Struct):
    """Similar requests that are ordered one by one, with the figures of those that go to one
    deployment.
    """

    ordering: Ordering
    alikes: dict[str, _SimilarRequests] = {}


class _SimilarRequests(Struct):
    """The figures of similar requests at the same prices.

    Keeps `alike` alive, so that no other object can get its identity.
    """

    alike: Alike
    fate: Fate
    tally: RouteTally
    way: Moved | None
    is_other_model: bool
    region: str
    region_after: str | None


def replay(
    version: PolicyVersion,
    past: PastSource,
    *,
    prices: PastPrices,
    place: Place,
    on_progress: Callable[[float, int], None] = lambda done, requests: None,
) -> Replay:
    """Decide all past requests again under a policy version, and return the sums.

    `on_progress` is called with the completed share, from 0 to 1, and the number of decided
    requests.
    """
    walk = _budget_walk(version.policy, past, place.day)
    speeds = past.speeds()
    run = _Run(version, prices, place, walk=walk, paces=_paces(speeds))
    whole_s = (past.until - past.since).total_seconds()
    for batch in past.requests():
        for request in batch:
            run.add_request(request)
        on_progress(((run.last_ms / 1000) - past.since.timestamp()) / whole_s, run.requests)
    return Replay(
        first_at=_moment(run.first_ms),
        last_at=_moment(run.last_ms),
        tallies=tuple(sorted(run.tallies.values(), key=lambda tally: (tally.team, tally.route))),
        regions_before=dict(run.regions_before),
        regions_after=dict(run.regions_after),
        speeds=speeds,
        earlier_attempts=run.earlier_attempts,
        earlier_cost_nusd=run.earlier_cost_nusd,
    )


class _Run:
    """The running sums of one replay."""

    def __init__(
        self,
        version: PolicyVersion,
        prices: PastPrices,
        place: Place,
        *,
        walk: BudgetWalk,
        paces: Mapping[str, Pace],
    ) -> None:
        """Start with empty sums, for a policy version and its prices."""
        self._version, self._prices, self._place, self._budget_walk, self._paces = (
            version,
            prices,
            place,
            walk,
            paces,
        )
        self._known: dict[tuple[int, int], _SimilarRequests | _Ordered] = {}
        self.tallies: dict[tuple[str, str], RouteTally] = {}
        self.regions_before: Counter[str] = Counter()
        self.regions_after: Counter[str] = Counter()
        self.requests = self.earlier_attempts = self.earlier_cost_nusd = 0
        self.first_ms = self.last_ms = 0

    def add_request(self, request: PastRequest) -> None:
        """Decide one past request again and add it to the sums; of an attempt that another
        followed, only its cost is counted.
        """
        if request.is_followed:
            self.earlier_attempts += 1
            self.earlier_cost_nusd += request.cost_nusd or 0
            return
        self.requests += 1
        self.first_ms = self.first_ms or request.at_ms
        self.last_ms = request.at_ms
        known = self._similar_requests(request)
        known.tally.requests += 1
        self.regions_before[known.region] += 1
        fate = known.fate
        if fate.refusal is not None:
            known.tally.refused[fate.refusal] += 1
            self._add_cost(known.tally, request.cost_nusd, 0)
        elif fate.accounts and not self._fits_budgets(request, known):
            self._add_cost(known.tally, request.cost_nusd, 0)
        else:
            self._add_served(request, known)

    def _add_served(self, request: PastRequest, known: _SimilarRequests) -> None:
        """Add a request that the other policy would serve: its move, region and cost."""
        assert known.way is not None, "what is not refused goes somewhere"
        assert known.region_after is not None, "and that is in a region"
        cost_nusd = cost_after_nusd(request, known.fate)
        known.way.requests += 1
        known.way.to_other_model += known.is_other_model
        known.way.later_tokens += max(0, (request.output_tokens or 0) - 1)
        self.regions_after[known.region_after] += 1
        self._add_cost(known.tally, request.cost_nusd, cost_nusd)
        if known.fate.accounts:
            spent_nusd = request.held_nusd or 0 if cost_nusd is None else cost_nusd
            self._budget_walk.charge(known.fate.accounts, request.at_ms, cost_nusd=spent_nusd)

    def _fits_budgets(self, request: PastRequest, known: _SimilarRequests) -> bool:
        """Return True if every hard budget has room for the request; otherwise count it as
        blocked.
        """
        hold = hold_nusd(request, known.fate)
        account = self._budget_walk.blocked_by(known.fate.accounts, request.at_ms, hold_nusd=hold)
        if account is not None:
            known.tally.blocked[account.account_id] += 1
        return account is None

    @staticmethod
    def _add_cost(tally: RouteTally, before_nusd: int | None, after_nusd: int | None) -> None:
        """Add a request's costs before and after; count it as unknown if one is missing."""
        if before_nusd is None or after_nusd is None:
            tally.unknown += 1
            return
        tally.cost_before_nusd += before_nusd
        tally.cost_after_nusd += after_nusd

    def _similar_requests(self, request: PastRequest) -> _SimilarRequests:
        """Return the sums of the requests that are decided and priced like this one."""
        # A reader makes one `Alike` for all similar requests, so its identity stands for it.
        # Hashing it takes longer.
        number = self._prices.at(request.at_ms)
        place = (id(request.alike), number)
        found = self._known.get(place)
        if found is None:
            found = self._known[place] = self._decided(request.alike, number)
        if isinstance(found, _SimilarRequests):
            return found
        fate = found.ordering.fate(request)
        assert fate.destination is not None, "what is ordered is not refused"
        going = found.alikes.get(fate.destination)
        if going is None:
            going = found.alikes[fate.destination] = self._similar_requests_of(request.alike, fate)
        return going

    def _decided(self, alike: Alike, number: int) -> _SimilarRequests | _Ordered:
        """Decide a kind of request again; return its sums, or its orderer if each request is
        ordered by itself.
        """
        prices = self._prices.prices(number)
        ordering = orderer_of(
            alike, self._version, prices=prices, place=self._place, paces=self._paces
        )
        if ordering is not None:
            return _Ordered(ordering)
        return self._similar_requests_of(
            alike, fate_of(alike, self._version, prices=prices, place=self._place)
        )

    def _similar_requests_of(self, alike: Alike, fate: Fate) -> _SimilarRequests:
        """Make the sums for requests with this new destination, inside their route's tally."""
        tally = self.tallies.setdefault(
            (alike.team, alike.route), RouteTally(team=alike.team, route=alike.route)
        )
        if fate.deployment is None:
            return _SimilarRequests(alike, fate, tally, None, False, alike.region, None)
        way = tally.ways.setdefault(Way(alike.deployment, fate.deployment.name), Moved())
        is_other_model = alike.model != fate.deployment.model
        return _SimilarRequests(
            alike, fate, tally, way, is_other_model, alike.region, fate.deployment.region
        )


def _paces(speeds: Mapping[str, PastSpeed]) -> dict[str, Pace]:
    """Return each deployment's past medians as speeds. They cannot show that a 95th-percentile
    bound was missed at some moment.
    """
    return {
        name: Pace(speed.ttft_s, speed.ttft_s, speed.tpot_s or 0.0)
        for name, speed in speeds.items()
        if speed.ttft_s is not None
    }


def _mean_ttft_s(ways: Sequence[tuple[PastSpeed | None, Moved]]) -> float | None:
    """Return the mean time to first token over deployments, weighted by requests; None if one is
    unknown.
    """
    measured = [(None if speed is None else speed.ttft_s, moved.requests) for speed, moved in ways]
    return _mean(measured)


def _mean_tpot_s(ways: Sequence[tuple[PastSpeed | None, Moved]]) -> float | None:
    """Return the mean time per output token over deployments, weighted by tokens; None if one is
    unknown.
    """
    measured = [
        (None if speed is None else speed.tpot_s, moved.later_tokens) for speed, moved in ways
    ]
    return _mean([(value, weight) for value, weight in measured if weight])


def _mean(measured: Sequence[tuple[float | None, int]]) -> float | None:
    """Return the weighted mean of some values; None if one is unknown or nothing is weighted."""
    known = [(value, weight) for value, weight in measured if value is not None]
    whole = sum(weight for _, weight in known)
    if len(known) < len(measured) or not whole:
        return None
    return sum(value * weight for value, weight in known) / whole


def _budget_walk(policy: Policy, past: PastSource, day: date) -> BudgetWalk:
    """Return the budgets as the replayed time begins, with the spending of their running periods;
    the teams have the cost centres of `day`.
    """
    hard = [rule for rule in policy.budgets if rule.is_hard]
    if not hard:
        return BudgetWalk()
    walk = BudgetWalk(granted_nusd=past.grants())
    first = min(rule.period_at(past.since).starts_at for rule in hard)
    if first < past.since:
        for spent in past.spent_before(first):
            team = policy.teams.get(spent.team)
            if team is not None:
                accounts = policy.accounts(
                    team, project=spent.project, key_id=spent.key_id, day=day
                )
                hard_ones = tuple(account for account in accounts if account.rule.is_hard)
                walk.charge(hard_ones, spent.slot_s * 1000, cost_nusd=spent.nusd)
    return walk


def _moment(at_ms: int) -> datetime | None:
    """Return the moment of a Unix time in milliseconds; None for 0, which stands for no request."""
    return EPOCH + timedelta(milliseconds=at_ms) if at_ms else None
