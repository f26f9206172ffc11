"""A simulated day: ten teams, a peak at noon, one self-hosted engine at its capacity, two APIs, one
outage.

Seconds since midnight, US dollars, tokens. Nothing here knows how requests are routed: it defines
the arrivals, and a deployment's reaction. The engine has a fixed number of concurrent sequences and
a queue in order of arrival. A sequence takes its prefill and a constant time for each output token.
So a request's work is known, and the cheapest assignment has a lower bound (`least_cost_usd`).
"""

from __future__ import annotations

import heapq
import math
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

DAY_S = 86_400.0
BYTES_PER_TOKEN = 4.2  # of the prompts of this world; the router learns it


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """A kind of request: medians and the spread (sigma of a log-normal) of prompt and answer, in
    tokens.
    """

    name: str
    share: float
    input_tokens: float
    output_tokens: float
    sigma: float = 0.6
    most_output_tokens: int = 2048


MIX = (
    Work(name="chat", share=0.45, input_tokens=700, output_tokens=220),
    Work(name="retrieval", share=0.25, input_tokens=1800, output_tokens=260),
    Work(name="extraction", share=0.20, input_tokens=1100, output_tokens=150, sigma=0.4),
    Work(name="code", share=0.10, input_tokens=1500, output_tokens=480),
)
TEAMS = tuple(f"team-{number:02d}" for number in range(10))
TEAM_SHARES = tuple(1 / (rank + 1) for rank in range(len(TEAMS)))  # a few teams send most requests


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """One request. Only the world knows the length of its answer."""

    number: int
    at_s: float
    team: str
    work: str
    input_tokens: int
    output_tokens: int
    most_output_tokens: int

    @property
    def body_bytes(self) -> int:
        """Return the prompt's size as a gateway sees it."""
        return int(self.input_tokens * BYTES_PER_TOKEN) + 120


@dataclass(frozen=True, slots=True, kw_only=True)
class Api:
    """A deployment without a concurrency limit.

    `median_ttft_s` with `sigma` is log-normal; down means refused.
    """

    name: str
    input_usd_per_mtok: float
    output_usd_per_mtok: float
    median_ttft_s: float
    tpot_s: float
    sigma: float = 0.35
    down: tuple[float, float] = (math.inf, math.inf)

    def is_down(self, at_s: float) -> bool:
        """Return True if it refuses connections."""
        return self.down[0] <= at_s < self.down[1]


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """A self-hosted engine, priced by its standard cost."""

    name: str
    input_usd_per_mtok: float
    output_usd_per_mtok: float
    sequences: int
    input_tok_per_s: float
    tpot_s: float

    def work_s(self, arrival: Arrival) -> float:
        """Return how long a request occupies one of its sequences."""
        return self.prefill_s(arrival) + arrival.output_tokens * self.tpot_s

    def prefill_s(self, arrival: Arrival) -> float:
        """Return the time to first token once it runs."""
        return 0.03 + arrival.input_tokens / self.input_tok_per_s


ENGINE = Engine(
    name="own",
    input_usd_per_mtok=0.043,
    output_usd_per_mtok=0.689,
    sequences=32,
    input_tok_per_s=40_000,
    tpot_s=0.02,
)
CHEAP = Api(
    name="cheap",
    input_usd_per_mtok=0.10,
    output_usd_per_mtok=0.90,
    median_ttft_s=0.55,
    tpot_s=0.016,
    down=(12.5 * 3600, 13.25 * 3600),
)
FAST = Api(
    name="fast", input_usd_per_mtok=0.30, output_usd_per_mtok=2.40, median_ttft_s=0.2, tpot_s=0.007
)
Place = Engine | Api
PLACES: tuple[Place, ...] = (ENGINE, CHEAP, FAST)


def cost_usd(place: Place, arrival: Arrival) -> float:
    """Return the cost of a request at a deployment."""
    usd = (
        arrival.input_tokens * place.input_usd_per_mtok
        + arrival.output_tokens * place.output_usd_per_mtok
    )
    return usd / 1e6


def arrivals(seed: int, *, requests: int) -> Iterator[Arrival]:
    """Yield about that many requests of one day, in order: few at night, most at noon."""
    chance = random.Random(seed)
    mean = sum(map(_intensity, range(24 * 60))) / (24 * 60)
    per_s_at_one = requests / DAY_S / mean
    most_per_s = per_s_at_one * max(map(_intensity, range(24 * 60)))
    at_s, number = 0.0, 0
    while (at_s := at_s + chance.expovariate(most_per_s)) < DAY_S:
        if chance.random() * most_per_s > per_s_at_one * _intensity(at_s / 60):
            continue
        (work,) = chance.choices(MIX, [kind.share for kind in MIX])
        (team,) = chance.choices(TEAMS, TEAM_SHARES)
        yield Arrival(
            number=number,
            at_s=at_s,
            team=team,
            work=work.name,
            most_output_tokens=work.most_output_tokens,
            input_tokens=max(
                int(chance.lognormvariate(math.log(work.input_tokens), work.sigma)), 8
            ),
            output_tokens=min(
                max(int(chance.lognormvariate(math.log(work.output_tokens), work.sigma)), 1),
                work.most_output_tokens,
            ),
        )
        number += 1


def _intensity(minute: float) -> float:
    """Return a minute's load; 1 is the peak at noon."""
    return 0.12 + 0.88 * math.exp(-(((minute / 60 - 12) / 2.6) ** 2))


@dataclass(slots=True)
class EngineState:
    """An engine at a moment.

    `free_s` is when each of its busy sequences is free again.
    """

    engine: Engine
    free_s: list[float] = field(default_factory=list)
    ends_s: list[float] = field(default_factory=list)  # of all sent and unfinished requests
    starts_s: list[float] = field(default_factory=list)  # start times of the waiting requests
    finished: int = 0

    def take(self, arrival: Arrival) -> tuple[float, float]:
        """Send it a request; return the times of its first and last token.

        Arrivals come in order.
        """
        self.advance(arrival.at_s)
        start_s = arrival.at_s
        if len(self.free_s) >= self.engine.sequences:
            # The sequence of the one that ends first.
            start_s = max(start_s, heapq.heappop(self.free_s))
            heapq.heappush(self.starts_s, start_s)
        first_s = start_s + self.engine.prefill_s(arrival)
        last_s = start_s + self.engine.work_s(arrival)
        heapq.heappush(self.free_s, last_s)
        heapq.heappush(self.ends_s, last_s)
        return first_s, last_s

    def advance(self, now_s: float) -> None:
        """Let time pass."""
        while self.starts_s and self.starts_s[0] <= now_s:
            heapq.heappop(self.starts_s)
        while self.free_s and self.free_s[0] <= now_s:
            heapq.heappop(self.free_s)
        while self.ends_s and self.ends_s[0] <= now_s:
            heapq.heappop(self.ends_s)
            self.finished += 1

    @property
    def waiting(self) -> int:
        """Return the number of waiting requests."""
        return len(self.starts_s)

    @property
    def running(self) -> int:
        """Return the number of running requests."""
        return len(self.ends_s) - self.waiting


def least_cost_usd(day: Sequence[Arrival], *, window_s: float = 300.0) -> float:
    """Return a cost that no assignment can undercut: in every five minutes the engine takes the
    work that saves most.

    The true optimum may be dearer. This one knows the day beforehand, splits requests, has no first
    token to wait for within the five minutes and begins them with all of its time. Work that
    continues from one window into the next is small.
    """
    total, by_window = 0.0, dict[int, list[Arrival]]()
    for arrival in day:
        by_window.setdefault(int(arrival.at_s // window_s), []).append(arrival)
    for held in by_window.values():
        left_s = ENGINE.sequences * window_s
        savings: list[tuple[float, float, float]] = []
        for arrival in held:
            elsewhere = min(
                cost_usd(api, arrival) for api in (CHEAP, FAST) if not api.is_down(arrival.at_s)
            )
            saved, work_s = elsewhere - cost_usd(ENGINE, arrival), ENGINE.work_s(arrival)
            total += elsewhere
            savings.append((saved / work_s, saved, work_s))
        for _, saved, work_s in sorted(savings, reverse=True):
            share = min(left_s / work_s, 1.0)
            if saved <= 0 or share <= 0:
                break
            total -= saved * share
            left_s -= work_s * share
    return total


def percentile(values: Sequence[float], share: float) -> float:
    """Return the value below which a share lies; NaN without values."""
    ordered = sorted(values)
    return ordered[min(int(share * len(ordered)), len(ordered) - 1)] if ordered else math.nan


def by_name(places: Sequence[Place] = PLACES) -> Mapping[str, Place]:
    """Return the deployments by their names."""
    return {place.name: place for place in places}
