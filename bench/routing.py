"""A simulated day under each routing objective, against round robin and one deployment alone.

    python -m bench.routing [--seed 7] [--requests 140000] [--write]

The world is `bench.world.routing_world`'s; the decisions are the gateway's own:
`domain.routing.decide.decide`, `services.deployments.estimates` with its observations and the
engine's load report once a second, `domain.deployments.breaker`. Only time and deployments are
simulated, so a day takes a minute and the same seed gives the same day. `docs/routing.md` has the
table and the picture.
"""

from __future__ import annotations

import argparse
import heapq
import math
import random
import sys
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from functools import partial
from pathlib import Path

from bench.stand import machine
from bench.stand.page import replace_between
from bench.world.routing_picture import picture
from bench.world.routing_world import (
    CHEAP,
    DAY_S,
    ENGINE,
    FAST,
    PLACES,
    TEAMS,
    Api,
    Arrival,
    EngineState,
    Place,
    arrivals,
    by_name,
    cost_usd,
    least_cost_usd,
    percentile,
)
from gateway.domain.deployments.breaker import Breaker
from gateway.domain.deployments.engine_load import EngineLoad
from gateway.domain.ids import uuid7
from gateway.domain.ledger.usage_event import Outcome, UsageEvent
from gateway.domain.operation import Operation
from gateway.domain.policy.policy import (
    DataClass,
    Deployment,
    Policy,
    PolicyVersion,
    ResidencyRule,
    Route,
    Team,
)
from gateway.domain.pricing.pricing import Price, Rate
from gateway.domain.pricing.tokens import TokenKind, TokenUsage, UsageSource
from gateway.domain.request.request import Caller, Request, RequestBody, unsent
from gateway.domain.routing.decide import Decision, decide
from gateway.services.deployments.estimates import Estimates

DOCS = Path(__file__).parents[1] / "docs"
MARKS = ("<!-- day:begin, written by `python -m bench.routing --write` -->", "<!-- day:end -->")
BEGIN = datetime(2026, 11, 22, tzinfo=UTC)
BOUND_S = 2.0
LOOK_EVERY_S, LOAD_WINDOW_S = 1.0, 10.0
CONNECT_S = 0.002  # until a refused connection is known
MOST_ATTEMPTS = 3
NOONS = (0.8, 1.2, 1.4)  # the day again with that many requests
FULLER = (
    "The fuller the noon, the more there is to choose: the best assignment gives the engine what "
    "saves most per second of it, and knows what comes. The gateway takes requests as they come, "
    "each to where it is cheapest then."
)
SMALLER = Api(
    name="small",
    input_usd_per_mtok=0.02,
    output_usd_per_mtok=0.16,
    median_ttft_s=0.15,
    tpot_s=0.005,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One way through the day.

    `served` counts by deployment, `degraded` the requests that left the preferred one.
    """

    name: str
    cost_usd: float
    ttft_p95_s: float
    busy_ttft_p95_s: float  # between 11 and 14 o'clock
    over_bound: int
    errors: int
    degraded: int
    requests: int
    served: Mapping[str, int]
    by_hour: Mapping[int, Counter[str]]


class SimulatedClock:
    """The world's time."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def now(self) -> datetime:
        """UTC."""
        return BEGIN + timedelta(seconds=self.now_s)

    def monotonic(self) -> float:
        """Seconds since midnight."""
        return self.now_s


class SimulatedLoads:
    """The engine's load reports, as old as a gateway would have them.

    Implements `services.deployments.estimates.Loads`.
    """

    def __init__(self, state: EngineState, clock: SimulatedClock) -> None:
        self._state, self._clock = state, clock
        self._load: EngineLoad | None = None
        self._looked_s = -math.inf
        self._looks: deque[tuple[float, int]] = deque()
        self._sent = 0
        self._room: float | None = None

    def sent(self) -> None:
        """Count a request that is sent there."""
        self._sent += 1

    def of(self, deployment: str) -> EngineLoad | None:
        """Return the last look with the requests sent since."""
        if deployment != ENGINE.name:
            return None
        if self._clock.now_s - self._looked_s >= LOOK_EVERY_S:
            self._look()
        assert self._load is not None
        return EngineLoad(
            running=self._load.running,
            waiting=self._load.waiting,
            finished_per_s=self._load.finished_per_s,
            prefill_s=0.06,
            tpot_s=ENGINE.tpot_s,
            sent_since=self._sent,
            age_s=self._clock.now_s - self._looked_s,
            room=self._room,
        )

    def note_header(self, deployment: str, value: str) -> None:
        """Ignore it: nothing is reported beside answers here."""

    def _look(self) -> None:
        now_s = self._looked_s = self._clock.now_s
        self._state.advance(now_s)
        self._looks.append((now_s, self._state.finished))
        while now_s - self._looks[0][0] > LOAD_WINDOW_S:
            self._looks.popleft()
        then_s, finished = self._looks[0]
        rate = (self._state.finished - finished) / (now_s - then_s) if now_s > then_s else None
        self._load = EngineLoad(
            running=self._state.running, waiting=self._state.waiting, finished_per_s=rate or None
        )
        if self._load.waiting:
            self._room = max(self._room or 0.0, self._load.running or 0.0)
        self._sent = 0


@dataclass(slots=True)
class Day:
    """One run through the day.

    `ranked` returns a request's order, best first, and whether it is a spill.
    """

    clock: SimulatedClock = field(default_factory=SimulatedClock)
    engine: EngineState = field(default_factory=lambda: EngineState(ENGINE))
    breakers: dict[str, Breaker] = field(default_factory=dict)
    abandoned: list[tuple[float, int, Callable[[], object]]] = field(default_factory=list)
    ttft_s: list[float] = field(default_factory=list)
    busy_ttft_s: list[float] = field(default_factory=list)
    spent_usd: float = 0.0
    errors: int = 0
    degraded: int = 0
    served: Counter[str] = field(default_factory=Counter)
    by_hour: dict[int, Counter[str]] = field(default_factory=dict)
    chance: random.Random = field(default_factory=lambda: random.Random(1))
    noted: int = 0

    def pass_time(self, until_s: float) -> None:
        """Process all events until a moment."""
        while self.abandoned and self.abandoned[0][0] <= until_s:
            at_s, _, happens = heapq.heappop(self.abandoned)
            self.clock.now_s = max(self.clock.now_s, at_s)
            happens()
        self.clock.now_s = max(self.clock.now_s, until_s)

    def later(self, at_s: float, happens: Callable[[], object]) -> None:
        """Schedule an event."""
        self.noted += 1
        heapq.heappush(self.abandoned, (at_s, self.noted, happens))

    def serve(
        self,
        arrival: Arrival,
        names: Sequence[str],
        places: Mapping[str, Place],
        *,
        on_sent: Callable[[str], None] = lambda name: None,
        on_done: Callable[[str, float, float], None] = lambda name, ttft_s, took_s: None,
    ) -> str | None:
        """Try deployments in order, at most three; return the one that served it, None for an
        error.
        """
        now_s = self.clock.now_s
        closed = [
            name
            for name in names
            if self._breaker(name).opened_s is None or self._breaker(name).is_due(now_s)
        ]
        for name in (closed or list(names))[:MOST_ATTEMPTS]:
            place, breaker = places[name], self._breaker(name)
            breaker.began(now_s)
            if isinstance(place, Api) and place.is_down(now_s):
                breaker.failed(now_s, now_s + CONNECT_S, is_silent=True)
                continue
            on_sent(name)
            ttft_s, took_s = self._answer(place, arrival)
            self.later(now_s + ttft_s, partial(breaker.succeeded, now_s, now_s + ttft_s))
            self.later(now_s + took_s, partial(on_done, name, ttft_s, took_s))
            self.ttft_s.append(ttft_s)
            if 11 <= arrival.at_s / 3600 < 14:
                self.busy_ttft_s.append(ttft_s)
            self.spent_usd += cost_usd(place, arrival)
            self.served[name] += 1
            self.by_hour.setdefault(int(arrival.at_s // 3600), Counter())[name] += 1
            return name
        self.errors += 1
        self.by_hour.setdefault(int(arrival.at_s // 3600), Counter())["error"] += 1
        return None

    def _answer(self, place: Place, arrival: Arrival) -> tuple[float, float]:
        if isinstance(place, Api):
            ttft_s = self.chance.lognormvariate(math.log(place.median_ttft_s), place.sigma)
            return ttft_s, ttft_s + arrival.output_tokens * place.tpot_s
        first_s, last_s = self.engine.take(arrival)
        return first_s - arrival.at_s, last_s - arrival.at_s

    def _breaker(self, name: str) -> Breaker:
        return self.breakers.setdefault(name, Breaker())

    def result(self, name: str, *, requests: int) -> Result:
        """Return the day's result."""
        return Result(
            name=name,
            cost_usd=self.spent_usd,
            ttft_p95_s=percentile(self.ttft_s, 0.95),
            busy_ttft_p95_s=percentile(self.busy_ttft_s, 0.95),
            errors=self.errors,
            degraded=self.degraded,
            over_bound=sum(ttft_s > BOUND_S for ttft_s in self.ttft_s),
            requests=requests,
            served=dict(self.served),
            by_hour=self.by_hour,
        )


def alone(day: Sequence[Arrival], place: Place) -> Result:
    """Send all to one deployment."""
    run = Day()
    for arrival in day:
        run.pass_time(arrival.at_s)
        run.serve(arrival, (place.name,), by_name())
    return run.result(f"only `{place.name}`", requests=len(day))


def round_robin(day: Sequence[Arrival]) -> Result:
    """Send to each in turn, to the next if one fails."""
    run, names = Day(), [place.name for place in PLACES]
    for arrival in day:
        run.pass_time(arrival.at_s)
        first = arrival.number % len(names)
        run.serve(arrival, names[first:] + names[:first], by_name())
    return run.result("round robin", requests=len(day))


def routed(
    day: Sequence[Arrival],
    objective: str,
    *,
    bound_s: float | None = BOUND_S,
    degrades: bool = False,
    name: str = "",
) -> Result:
    """Use the gateway's own ranking."""
    run = Day()
    loads = SimulatedLoads(run.engine, run.clock)
    estimates = Estimates(run.clock, loads=loads)
    places = by_name((*PLACES, SMALLER))
    listed = (ENGINE, CHEAP, FAST) if not degrades else (ENGINE,)
    main = _decisions(
        objective, listed, bound_s=bound_s, degrade_to="smaller" if degrades else None
    )
    smaller = _decisions("priority", (SMALLER,), bound_s=None, name="smaller") if degrades else {}
    for arrival in day:
        run.pass_time(arrival.at_s)
        decision, request = main[arrival.team], _request(arrival)
        below = smaller.get(arrival.team)
        ranking = estimates.rank(
            request, decision, degrade=None if below is None else partial(_same, below)
        )
        names = [choice.candidate.deployment.name for choice in ranking.choices]

        def sent(place: str) -> None:
            estimates.began(place)
            if place == ENGINE.name:
                loads.sent()

        def done(
            place: str,
            ttft_s: float,
            took_s: float,
            request: Request = request,
            arrival: Arrival = arrival,
            decision: Decision = decision,
        ) -> None:
            estimates.ended(place)
            estimates.note(
                _event(request, arrival, place, decision=decision, ttft_s=ttft_s, took_s=took_s)
            )

        served = run.serve(arrival, names, places, on_sent=sent, on_done=done)
        if served is not None:
            choice = next(one for one in ranking.choices if one.candidate.deployment.name == served)
            run.degraded += ranking.degraded_at(choice) is not None
    return run.result(name or f"`{objective}`", requests=len(day))


def _same(decision: Decision) -> Decision:
    return decision


def _decisions(
    objective: str,
    places: Sequence[Place],
    *,
    bound_s: float | None,
    degrade_to: str | None = None,
    name: str = "assistant",
) -> dict[str, Decision]:
    """Return a gateway's decision for each team: all deployments are allowed."""
    weights = {
        place.name: weight for place, weight in zip(places, (70.0, 20.0, 10.0), strict=False)
    }
    deployments = {place.name: _deployment(place) for place in places}
    route = Route(
        name=name,
        deployments=tuple(deployments),
        objective=objective,
        ttft_p95_s=bound_s,
        degrade_to=degrade_to,
        weights=weights if objective == "weighted" else {},
    )
    teams = {
        team: Team(name=team, cost_centre="CC-1", data_class=DataClass.INTERNAL, routes=(name,))
        for team in TEAMS
    }
    policy = Policy(
        regions={},
        deployments=deployments,
        routes={name: route},
        teams=teams,
        classes={
            DataClass.INTERNAL: ResidencyRule(rule_id="class:internal", regions=frozenset({"any"}))
        },
    )
    version = PolicyVersion(version=1, sha256="0" * 64, policy=policy)
    prices = {place.name: _price(place) for place in places}
    return {
        team.name: decide(
            version,
            team=team,
            route=route,
            data_class=DataClass.INTERNAL,
            prices=prices,
            day=BEGIN.date(),
            facts=unsent(Operation.CHAT, name),
        )
        for team in teams.values()
    }


def _deployment(place: Place) -> Deployment:
    is_own = place.name == ENGINE.name
    return Deployment(
        name=place.name,
        provider="vllm" if is_own else "openai_compatible",
        base_url=f"http://127.0.0.1:9/{place.name}",
        model=place.name,
        region="de",
        is_self_hosted=is_own,
    )


def _price(place: Place) -> Price:
    rates = {TokenKind.INPUT: place.input_usd_per_mtok, TokenKind.OUTPUT: place.output_usd_per_mtok}
    return Price(
        provider="bench",
        model=place.name,
        source="bench",
        rates=tuple(Rate(kind=kind, usd_per_mtok=Decimal(str(usd))) for kind, usd in rates.items()),
    )


def _request(arrival: Arrival) -> Request:
    facts = unsent(
        Operation.CHAT,
        "assistant",
        body_bytes=arrival.body_bytes,
        output_bound_tokens=arrival.most_output_tokens,
    )
    at_ms = int((BEGIN.timestamp() + arrival.at_s) * 1000)
    return Request(
        request_id=uuid7(at_ms, arrival.number.to_bytes(10, "big")),
        body=RequestBody(facts, b"", {}),
        data_class=DataClass.INTERNAL,
        caller=Caller(key_id=f"key-{arrival.team}", team=arrival.team, project=None),
        data_class_source="team",
        end_user=None,
        project=None,
        tags=(),
        client_request_id=None,
        traceparent=None,
    )


def _event(
    request: Request,
    arrival: Arrival,
    place: str,
    *,
    decision: Decision,
    ttft_s: float,
    took_s: float,
) -> UsageEvent:
    """Return the event that a gateway would write, as far as the estimates use it."""
    price = next((one.price for one in decision.candidates if one.deployment.name == place), None)
    return UsageEvent(
        request_id=request.request_id,
        attempt=1,
        started_at=BEGIN,
        team=arrival.team,
        project=None,
        cost_centre="CC-1",
        key_id=request.caller.key_id,
        end_user=None,
        tags={},
        route=decision.route.name,
        deployment=place,
        provider="bench",
        model=place,
        region="de",
        is_self_hosted=place == ENGINE.name,
        data_class="internal",
        policy_version=1,
        operation="chat",
        outcome=Outcome.OK,
        http_status=200,
        streamed=True,
        usage=TokenUsage(input_tokens=arrival.input_tokens, output_tokens=arrival.output_tokens),
        usage_source=UsageSource.PROVIDER,
        price_id=None if price is None else price.price_id,
        lines=(),
        cost_nusd=0,
        held_nusd=None,
        ttft_s=ttft_s,
        tpot_s=(took_s - ttft_s) / max(arrival.output_tokens - 1, 1),
        duration_s=took_s,
        overhead_s=0.0,
        features={"input_bound_tokens": arrival.body_bytes + 64},
    )


def run_all(day: Sequence[Arrival]) -> Iterator[Result]:
    """Run all ways through the day, one after the other."""
    yield routed(day, "cheapest", name=f"`cheapest`, TTFT p95 ≤ {BOUND_S:g} s")
    yield routed(day, "cheapest", bound_s=None, name="`cheapest` without a bound")
    yield routed(day, "fastest")
    yield routed(day, "balanced", name="`balanced`, half and half")
    yield routed(day, "priority", name=f"`priority`, TTFT p95 ≤ {BOUND_S:g} s")
    yield routed(day, "weighted", name="`weighted` 70/20/10")
    yield routed(day, "cheapest", degrades=True, name="`own` alone, `degrade_to` a smaller model")
    yield round_robin(day)
    for place in PLACES:
        yield alone(day, place)


def _served(one: Result) -> str:
    """Return the share of each deployment."""
    return ", ".join(
        f"{name} {count / one.requests:.1%}" for name, count in sorted(one.served.items())
    )


def table(results: Sequence[Result], *, least_usd: float) -> str:
    """Return one row for each way."""
    rows = [
        f"| {one.name} | {one.cost_usd:,.2f} | {_ratio(one, least_usd)} | "
        f"{_seconds(one.ttft_p95_s)} | {_seconds(one.busy_ttft_p95_s)} | "
        f"{one.over_bound / one.requests:.2%} | {one.errors / one.requests:.2%} | "
        f"{one.degraded / one.requests:.2%} | {_served(one)} |"
        for one in results
    ]
    head = (
        "| way | cost USD | ÷ least | TTFT p95 s | 11–14 h s | over the bound | errors | "
        "degraded | served by |\n"
        "|---|---:|---:|---:|---:|---:|---:|---:|---|"
    )
    return "\n".join([head, *rows])


def _ratio(one: Result, least_usd: float) -> str:
    """Return the ratio. Another model has another price, so it is no assignment of the same
    work.
    """
    return "–" if SMALLER.name in one.served else f"{one.cost_usd / least_usd:.3f}"


def noons(seed: int, sizes: Sequence[int]) -> str:
    """Return the same day with fewer and with more requests, under `cheapest` with its bound."""
    rows = []
    for size in sizes:
        day = list(arrivals(seed, requests=size))
        one, least_usd = routed(day, "cheapest"), least_cost_usd(day)
        rows.append(
            f"| {noon(day):.0%} | {one.cost_usd / least_usd:.3f} | {_seconds(one.busy_ttft_p95_s)} "
            f"| {one.over_bound / one.requests:.2%} | {one.degraded / one.requests:.2%} |"
        )
    head = (
        "| at noon | ÷ least | TTFT p95 11–14 h s | over the bound | degraded "
        "|\n|---:|---:|---:|---:|---:|"
    )
    return "\n".join([head, *rows])


def noon(day: Sequence[Arrival]) -> float:
    """Return the share of the engine's time that the hour around noon needs."""
    asked_s = sum(ENGINE.work_s(one) for one in day if 11.5 * 3600 <= one.at_s < 12.5 * 3600)
    return asked_s / (ENGINE.sequences * 3600)


def _seconds(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.2f}"


def main() -> None:
    """Simulate, print, and with --write put table and picture into the docs."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--requests", type=int, default=140_000)
    parser.add_argument("--write", action="store_true", help="put table and picture into docs/")
    options = parser.parse_args()
    day = list(arrivals(options.seed, requests=options.requests))
    least_usd = least_cost_usd(day)
    facts = [
        f"- Seed {options.seed}, {len(day):,} requests of {len(TEAMS)} teams in {DAY_S / 3600:g} "
        f"h; at noon {noon(day):.0%} of what the engine can do",
        f"- `cheap` refuses connections from {CHEAP.down[0] / 3600:g} to {CHEAP.down[1] / 3600:g} "
        "h",
        f"- No assignment whose first tokens come in time costs less than ${least_usd:,.2f}: that "
        "one knows the day beforehand and splits requests. Who lets callers wait for minutes pays "
        "a little less",
        f"- Commit: {machine.commit()}",
    ]
    results = []
    for result in _timed(run_all(day)):
        results.append(result)
    text = table(results, least_usd=least_usd)
    fuller = noons(options.seed, [int(options.requests * share) for share in NOONS])
    print("\n".join(facts), text, fuller, sep="\n\n")
    if options.write:
        (DOCS / "routing-day.svg").write_text(
            picture(results[0].by_hour, places=(*PLACES,)), encoding="utf-8"
        )
        drawn = "![Requests by hour and place under `cheapest` with a bound](routing-day.svg)"
        replace_between(
            DOCS / "routing.md", *MARKS, lines=[*facts, "", text, "", drawn, "", FULLER, "", fuller]
        )


def _timed(results: Iterator[Result]) -> Iterator[Result]:
    """Report progress: a day of all ways takes minutes."""
    began_s = time.monotonic()
    for result in results:
        print(f"{time.monotonic() - began_s:5.0f} s  {result.name}", file=sys.stderr)
        yield result


if __name__ == "__main__":
    main()
