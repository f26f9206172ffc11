"""The cost of ranking one request's candidates, by objective.

`python -m bench.decide [--write]`.

One core, no network, no database: twenty priced deployments with learned latencies, and a route
with a bound that all meet (and once one that half of them miss). The least of many rounds is the
work itself; the median includes this machine's other load.
"""

from __future__ import annotations

import argparse
import timeit
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from functools import partial
from pathlib import Path
from statistics import median

from bench.stand import machine
from bench.stand.page import replace_between
from gateway.domain.ids import uuid7
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
from gateway.domain.pricing.tokens import TokenKind
from gateway.domain.request.request import Caller, Request, RequestBody, RequestFacts, unsent
from gateway.domain.routing.decide import Decision, decide
from gateway.domain.routing.objectives import OBJECTIVES, candidates_of, rank
from gateway.domain.routing.predictions import Conditions, Prediction
from gateway.services.deployments.estimates import Estimates

PAGE = Path(__file__).parents[1] / "docs" / "routing.md"
MARKS = (
    "<!-- decide:begin, written by `python -m bench.decide --write` -->",
    "<!-- decide:end -->",
)
NOW = datetime(2026, 11, 22, tzinfo=UTC)
CANDIDATES = 20
ROUNDS, CALLS = 40, 500
BOUND_S = 0.8
ASK: RequestFacts = unsent(Operation.CHAT, "assistant", body_bytes=4000, output_bound_tokens=400)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """Microseconds for one call."""

    what: str
    least_us: float
    median_us: float


class StandingClock:
    """A clock that stands still: learned figures stay fresh, as they usually are on a busy
    gateway.
    """

    def now(self) -> datetime:
        return NOW

    def monotonic(self) -> float:
        return 100.0


def measure() -> list[Cost]:
    """All rows of the table."""
    found = []
    for objective in OBJECTIVES:
        decision = decided(objective, bound_s=BOUND_S)
        found.append(
            _timed(
                f"`{objective}`, {CANDIDATES} candidates",
                _ranking(decision, _live(lambda i: 0.2 + i / 50)),
            )
        )
    decision = decided("cheapest", bound_s=BOUND_S)
    half_late = _live(lambda i: 0.2 if i % 2 else 2.0)
    found.append(_timed("`cheapest`, half of them miss the bound", _ranking(decision, half_late)))
    request = _request()
    for what, decision in (
        (
            "the whole of it in a gateway (`Estimates.rank`, `cheapest`)",
            decided("cheapest", bound_s=BOUND_S),
        ),
        ("the same with 3 candidates", decided("cheapest", bound_s=BOUND_S, candidates=3)),
        ("`priority` without a bound (`Estimates.rank`)", decided("priority", bound_s=None)),
    ):
        found.append(_timed(what, partial(Estimates(StandingClock()).rank, request, decision)))
    ranking = rank(candidates_of(decided("cheapest", bound_s=BOUND_S)), ASK, half_late, session="s")

    def recorded() -> object:
        vars(ranking).clear()  # it is cached once it was made
        return ranking.record

    found.append(_timed("the event record of an order that is not the listed one", recorded))
    return found


def decided(objective: str, *, bound_s: float | None, candidates: int = CANDIDATES) -> Decision:
    """Return a decision whose deployments are all eligible."""
    deployments = {
        f"d{i}": Deployment(
            name=f"d{i}",
            provider="openai_compatible",
            base_url=f"http://127.0.0.1:{9000 + i}/v1",
            model="m",
            region="eu-de",
            is_self_hosted=False,
            context_window=128_000,
        )
        for i in range(candidates)
    }
    weights = dict.fromkeys(deployments, 1.0)
    route = Route(
        name="assistant",
        deployments=tuple(deployments),
        objective=objective,
        weights=weights,
        ttft_p95_s=bound_s,
    )
    team = Team(
        name="payments", cost_centre="CC-1", data_class=DataClass.INTERNAL, routes=("assistant",)
    )
    policy = Policy(
        regions={"eu": ("eu-de",)},
        deployments=deployments,
        routes={"assistant": route},
        teams={"payments": team},
        classes={
            DataClass.INTERNAL: ResidencyRule(rule_id="class:internal", regions=frozenset({"eu"}))
        },
    )
    version = PolicyVersion(version=1, sha256="0" * 64, policy=policy)
    prices = {name: _price(i) for i, name in enumerate(deployments)}
    return decide(
        version,
        team=team,
        route=route,
        data_class=DataClass.INTERNAL,
        facts=ASK,
        prices=prices,
        day=NOW.date(),
    )


def _ranking(decision: Decision, live: Conditions) -> Callable[[], object]:
    candidates = candidates_of(decision)
    return lambda: rank(candidates, ASK, live, session="0A1b2C3d4E")


def _live(ttft_s: Callable[[int], float]) -> Conditions:
    predictions = [
        Prediction(ttft_s(i), ttft_s(i), 0.01 + i / 1000, 50.0, 0.24, 0.1)
        for i in range(CANDIDATES)
    ]
    return Conditions(predictions=predictions, output_tokens=200.0)


def _price(number: int) -> Price:
    # Dear ones first: sorting an already sorted order would take no time.
    rates = {
        TokenKind.INPUT: "0.5",
        TokenKind.CACHED_INPUT: "0.1",
        TokenKind.OUTPUT: str(2 + (7 * number) % CANDIDATES),
    }
    return Price(
        provider="openai_compatible",
        model="m",
        source="bench",
        rates=tuple(Rate(kind=kind, usd_per_mtok=Decimal(usd)) for kind, usd in rates.items()),
    )


def _request() -> Request:
    return Request(
        request_id=uuid7(int(NOW.timestamp() * 1000), bytes(10)),
        caller=Caller(key_id="0A1b2C3d4E", team="payments", project=None),
        body=RequestBody(ASK, b"", {}),
        data_class=DataClass.INTERNAL,
        data_class_source="team",
        end_user=None,
        project=None,
        tags=(),
        client_request_id=None,
        traceparent=None,
    )


def _timed(what: str, call: Callable[[], object]) -> Cost:
    call()
    rounds = [seconds / CALLS * 1e6 for seconds in timeit.repeat(call, number=CALLS, repeat=ROUNDS)]
    return Cost(what=what, least_us=min(rounds), median_us=median(rounds))


def table(costs: Sequence[Cost]) -> str:
    """Return the costs in the page's form."""
    rows = [f"| {cost.what} | {cost.least_us:.1f} | {cost.median_us:.1f} |" for cost in costs]
    return "\n".join(["| One request | least µs | median µs |", "|---|---|---|", *rows])


def main() -> None:
    """Measure, print, and with --write put the table into the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="put the table into docs/routing.md")
    options = parser.parse_args()
    text = table(measure())
    print(text)
    if options.write:
        facts = [
            f"- Machine: {machine.describe()}",
            f"- Commit: {machine.commit()}",
            f"- Rounds: {ROUNDS} of {CALLS} calls",
        ]
        replace_between(PAGE, *MARKS, lines=[*facts, "", text])


if __name__ == "__main__":
    main()
