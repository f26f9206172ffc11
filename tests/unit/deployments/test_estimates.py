"""A worker's estimates of deployments from its own attempts and engines' reports, and their
decay.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace as changed
from typing import Any

import pytest
from msgspec.structs import replace

from gateway.domain.deployments.engine_load import EngineLoad
from gateway.domain.ledger.usage_event import Outcome, UsageEvent
from gateway.domain.operation import Operation
from gateway.domain.policy.policy import DataClass, LatencyPrior, Priority, Route
from gateway.domain.pricing.pricing import Price
from gateway.domain.pricing.tokens import TokenUsage
from gateway.domain.request.request import Request
from gateway.domain.routing.decide import Decision, Ranking, decide
from gateway.services.deployments import estimates as module
from gateway.services.deployments.estimates import LOADING_S, Estimates
from tests import factories
from tests.fakes import FakeClock
from tests.storage.factories import event

PRICE = factories.price()
REQUEST = factories.request()
TOKENS = {"input_bound_tokens": 4064, "features": []}


class FakeLoads:
    """Engines with a test's reports."""

    def __init__(self) -> None:
        self.loads: dict[str, EngineLoad] = {}

    def of(self, deployment: str) -> EngineLoad | None:
        return self.loads.get(deployment)


def decided(
    *names: str,
    deployments: Mapping[str, Any] | None = None,
    price: Price = PRICE,
    team: str = "payments",
    priority: Priority = Priority.NORMAL,
    **route: Any,
) -> Decision:
    """A decision about these deployments, all eligible."""
    known = [factories.deployment(name, **(deployments or {}).get(name, {})) for name in names]
    asked = Route(**{"name": "assistant", "deployments": names, "objective": "fastest"} | route)
    owner = factories.team(team, priority=priority)
    document = factories.policy(*known, routes={asked.name: asked}, teams={team: owner})
    return decide(
        factories.version(document),
        team=owner,
        route=asked,
        data_class=DataClass.INTERNAL,
        facts=factories.facts(),
        prices=dict.fromkeys(names, price),
        day=factories.NOW.date(),
    )


def ended(deployment: str, **changes: Any) -> UsageEvent:
    """An attempt that ended well: 1000 tokens of 4000 bytes in, 100 out."""
    values: dict[str, Any] = {
        "deployment": deployment,
        "model": "m-1",
        "price_id": PRICE.price_id,
        "route": "assistant",
        "team": "payments",
        "ttft_s": 0.1,
        "tpot_s": 0.01,
        "features": TOKENS,
        "operation": "chat",
        "usage": TokenUsage(input_tokens=1000, output_tokens=100),
        "outcome": Outcome.OK,
    }
    return replace(event(), **values | changes)


def names(ranking: Ranking) -> list[str]:
    return [choice.candidate.deployment.name for choice in ranking.choices]


def learned(estimates: Estimates, deployment: str, times: int = 50, **changes: Any) -> None:
    for _ in range(times):
        estimates.note(ended(deployment, **changes))


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def estimates(clock: FakeClock) -> Estimates:
    return Estimates(clock)


def test_a_route_that_asks_for_no_order_gets_its_own_and_pays_nothing(estimates: Estimates) -> None:
    """The very same object for every request: nothing was computed."""
    plain = decided("a", "b", objective="priority")
    assert estimates.rank(REQUEST, plain) is plain.as_listed
    alone = decided("a", objective="cheapest")
    assert estimates.rank(REQUEST, alone) is alone.as_listed


def test_a_prompt_that_may_not_fit_is_looked_at_closer(estimates: Estimates) -> None:
    """Even under `priority`: a request that the first would refuse goes to the second at once."""
    plain = decided("a", "b", objective="priority", deployments={"a": {"context_window": 1000}})
    long = factories.request(
        facts=replace(REQUEST.body.facts, body_bytes=4000, output_bound_tokens=100)
    )
    assert names(estimates.rank(long, plain)) == ["b", "a"]
    short = factories.request(
        facts=replace(REQUEST.body.facts, body_bytes=400, output_bound_tokens=100)
    )
    assert estimates.rank(short, plain) is plain.as_listed


def test_the_fastest_deployment_comes_first(estimates: Estimates, clock: FakeClock) -> None:
    """By this worker's observations; before any, by the declared figures."""
    decision = decided("a", "b")
    assert names(estimates.rank(REQUEST, decision)) == ["a", "b"]
    learned(estimates, "a", ttft_s=2.0)
    learned(estimates, "b", ttft_s=0.2)
    clock.advance(1)
    found = estimates.rank(REQUEST, decision)
    assert names(found) == ["b", "a"]
    assert [round(one.samples) for one in found.expected] == [49, 49]


def test_learned_latency_is_forgotten(estimates: Estimates, clock: FakeClock) -> None:
    """A slow API is tried again although it had no requests since."""
    decision = decided("a", "b", deployments={"b": {"prior": LatencyPrior(ttft_s=0.6)}})
    learned(estimates, "a", ttft_s=20.0)
    assert names(estimates.rank(REQUEST, decision)) == ["b", "a"]
    clock.advance(900)
    assert names(estimates.rank(REQUEST, decision)) == ["a", "b"]


def test_a_timeout_is_a_long_wait(estimates: Estimates) -> None:
    """A silent deployment shows no first token, and must not look as fast as declared."""
    learned(
        estimates, "a", ttft_s=None, tpot_s=None, outcome=Outcome.UPSTREAM_TIMEOUT, duration_s=60.0
    )
    learned(
        estimates, "b", ttft_s=None, tpot_s=None, outcome=Outcome.UPSTREAM_ERROR, duration_s=60.0
    )
    assert names(estimates.rank(REQUEST, decided("a", "b"))) == ["b", "a"]


@pytest.mark.parametrize(
    "other",
    [
        {"price": factories.price("2", "8")},
        {"deployments": {"a": {"base_url": "http://127.0.0.1:7/v1"}}},
        {"deployments": {"a": {"model": "m-2"}}},
    ],
)
def test_another_engine_under_the_same_name_starts_without_estimates(
    estimates: Estimates, clock: FakeClock, other: dict[str, Any]
) -> None:
    """Knowledge about the old engine does not apply, nor do attempts that still end there."""
    estimates.rank(REQUEST, decided("a", "b"))
    learned(estimates, "a", ttft_s=9.0)
    clock.advance(1)
    found = estimates.rank(REQUEST, decided("a", "b", **other))
    assert [one.ttft_s for one in found.expected] == [0.5, 0.5]
    if "base_url" not in str(other):
        learned(estimates, "a", ttft_s=9.0)
        clock.advance(1)
        assert names(estimates.rank(REQUEST, decided("a", "b", **other))) == ["a", "b"]


def test_samples_from_before_the_first_ranking_count(estimates: Estimates) -> None:
    """A route may have been `priority` until a minute ago; only observations at another price
    are forgotten.
    """
    learned(estimates, "a", price_id="price_old", ttft_s=0.01)
    learned(estimates, "a", ttft_s=5.0)
    assert estimates.rank(REQUEST, decided("a", "b")).expected[-1].ttft_s == pytest.approx(
        5, rel=0.1
    )


def test_answers_are_as_long_as_this_teams_on_this_route(
    estimates: Estimates, clock: FakeClock
) -> None:
    """Five of 256 tokens are assumed; another team's say nothing."""
    decision = decided("a", "b")
    for _ in range(15):
        estimates.note(ended("a"))
        estimates.note(
            ended("a", team="search", usage=TokenUsage(input_tokens=10, output_tokens=9000))
        )
        estimates.note(
            ended(
                "a",
                outcome=Outcome.UPSTREAM_CUT,
                usage=TokenUsage(input_tokens=10, output_tokens=1),
            )
        )
        estimates.note(
            ended("a", operation="embeddings", usage=TokenUsage(input_tokens=10, output_tokens=1))
        )
    _, live = estimates.current_conditions(decision)
    assert live.output_tokens == pytest.approx((15 * 100 + 5 * 256) / 20)
    assert live.output_samples == pytest.approx(15)


def test_an_answer_of_several_choices_counts_as_several(estimates: Estimates) -> None:
    """Else one request for ten choices would make all look ten times as long."""
    learned(
        estimates,
        "a",
        15,
        features=TOKENS | {"choices": 4},
        usage=TokenUsage(input_tokens=9, output_tokens=400),
    )
    assert estimates.current_conditions(decided("a", "b"))[1].output_tokens == pytest.approx(139)


def test_tokens_per_byte_are_of_the_sums_with_five_assumed(
    estimates: Estimates, clock: FakeClock
) -> None:
    """Tokenizers differ, and a long prompt counts as much as it costs; one that is not all in its
    body says nothing.
    """
    decision = decided("a", "b")
    estimates.current_conditions(decision)
    learned(estimates, "a", 15, usage=TokenUsage(input_tokens=2000, output_tokens=1))
    learned(
        estimates,
        "b",
        15,
        usage=TokenUsage(input_tokens=9000, output_tokens=1),
        features={"input_bound_tokens": 4064, "features": ["stored_state"]},
    )
    learned(estimates, "b", 15, usage=TokenUsage(input_tokens=9000, output_tokens=1), features={})
    clock.advance(1)
    a, b = estimates.current_conditions(decision)[1].predictions
    assert a.tokens_per_byte == pytest.approx((15 * 0.5 + 5 * 0.25) / 20, rel=0.01)
    assert b.tokens_per_byte == 0.25


def test_the_cached_share_is_of_route_team_and_deployment(estimates: Estimates) -> None:
    """A prompt that one team repeats is cached at its deployment, and for no other team."""
    cached = TokenUsage(input_tokens=1000, cached_input_tokens=800, output_tokens=1)
    learned(estimates, "a", 15, usage=cached)
    learned(estimates, "b", 15, usage=cached, team="search")
    shares = [
        one.cached_share for one in estimates.current_conditions(decided("a", "b"))[1].predictions
    ]
    assert shares == [pytest.approx(0.6), 0.0]


def engine(**changes: Any) -> dict[str, Any]:
    return {"a": {"is_self_hosted": True} | changes}


def test_a_fresh_engine_signal_replaces_past_observations(clock: FakeClock) -> None:
    """Prefill plus queue: it describes the present, while observations are always older."""
    loads = FakeLoads()
    estimates = Estimates(clock, loads=loads)
    decision = decided("a", "b", deployments=engine())
    learned(estimates, "a", ttft_s=0.05)
    assert names(estimates.rank(REQUEST, decision)) == ["a", "b"]
    loads.loads["a"] = EngineLoad(
        waiting=6.0, finished_per_s=2.0, prefill_s=0.5, tpot_s=0.05, sent_since=2
    )
    found = estimates.rank(REQUEST, decision)
    busy = next(one for one in found.expected if one.waiting is not None)
    assert names(found) == ["b", "a"]
    assert (busy.ttft_s, busy.ttft_p95_s, busy.tpot_s, busy.waiting) == (5.0, 6.5, 0.05, 6.0)
    loads.loads["a"] = EngineLoad()
    assert estimates.rank(REQUEST, decision).expected[0].ttft_s == pytest.approx(0.05, rel=0.1)
    del loads.loads["a"]
    assert estimates.rank(REQUEST, decision).expected[0].waiting is None


def test_a_model_that_is_not_in_memory_is_expected_late(clock: FakeClock) -> None:
    """Ollama unloads a model after some minutes; the replica that has it answers first."""
    loads = FakeLoads()
    estimates = Estimates(clock, loads=loads)
    decision = decided("a", "b", deployments=engine() | {"b": {"is_self_hosted": True}})
    loads.loads |= {"a": EngineLoad(is_loaded=False), "b": EngineLoad(is_loaded=True)}
    found = estimates.rank(REQUEST, decision)
    assert names(found) == ["b", "a"]
    late, early = found.expected[1], found.expected[0]
    assert late.ttft_s - early.ttft_s == pytest.approx(LOADING_S)
    assert late.ttft_p95_s - early.ttft_p95_s == pytest.approx(LOADING_S)


def test_hysteresis_is_kept_between_requests(estimates: Estimates, clock: FakeClock) -> None:
    """Of each priority by itself: their bounds differ."""
    decision = decided("a", "b", objective="priority", ttft_p95_s=1.0, priority=Priority.HIGH)
    learned(estimates, "a", ttft_s=1.3)
    assert names(estimates.rank(REQUEST, decision)) == ["b", "a"]
    clock.advance(60)
    learned(estimates, "a", 400, ttft_s=0.9)
    clock.advance(240)
    learned(estimates, "a", 400, ttft_s=0.9)
    assert 0.8 < estimates.rank(REQUEST, decision).expected[-1].ttft_p95_s < 1.0
    assert names(estimates.rank(REQUEST, decision)) == ["b", "a"]
    again = decided("a", "b", objective="priority", ttft_p95_s=1.0, priority=Priority.HIGH)
    assert names(estimates.rank(REQUEST, again)) == ["b", "a"], (
        "another snapshot's decision remembers it too"
    )
    clock.advance(1200)
    assert names(estimates.rank(REQUEST, decision)) == ["a", "b"]


def test_the_route_to_degrade_to_is_asked_late(estimates: Estimates, clock: FakeClock) -> None:
    """Only if none meets the bounds; without an eligible deployment there it changes nothing."""
    asked: list[str] = []
    small = decided("x", name="small")

    def degrade(to: Decision) -> Decision:
        asked.append(to.route.name)
        return to

    own = decided("a", "b", ttft_p95_s=1.0, degrade_to="small", priority=Priority.HIGH)
    assert names(estimates.rank(REQUEST, own, degrade=lambda: degrade(small))) == ["a", "b"]
    assert asked == []
    for name in "ab":
        learned(estimates, name, ttft_s=5.0)
    clock.advance(1)
    late = changed(own)
    found = estimates.rank(REQUEST, late, degrade=lambda: degrade(small))
    assert (names(found), found.degraded, asked) == (["x", "a", "b"], "route:small", ["small"])
    nowhere = changed(small, eligible=())
    assert estimates.rank(REQUEST, late, degrade=lambda: nowhere).degraded is None
    assert estimates.rank(REQUEST, late).degraded is None


def test_a_session_is_the_callers_else_its_keys(estimates: Estimates) -> None:
    """Two sessions of one key may be at two replicas; one session is at one."""
    decision = decided("a", "b", objective="weighted", weights={"a": 1.0, "b": 1.0})

    def first(session: str | None, key_id: str = "k") -> str:
        request: Request = replace(
            REQUEST, session=session, caller=replace(REQUEST.caller, key_id=key_id)
        )
        return names(estimates.rank(request, decision))[0]

    assert {first(f"s{i}") for i in range(40)} == {"a", "b"}
    assert {first("s", f"k{i}") for i in range(40)} == {first("s")}
    assert {first(None, f"k{i}") for i in range(40)} == {"a", "b"}


def test_a_kept_session_is_in_the_record_of_its_decision(estimates: Estimates) -> None:
    """An auditor sees why a dearer deployment took the request; another session has no such
    reason.
    """
    decision = decided("a", "b", objective="cheapest")
    ours, other = replace(REQUEST, session="ours"), replace(REQUEST, session="other")
    cached = TokenUsage(input_tokens=1000, cached_input_tokens=900, output_tokens=5)
    estimates.note_session(ours, ended("b", usage=cached))
    record = estimates.rank(ours, decision).record
    assert (record["ranked"], record["session_kept_at"]) == (["b", "a"], "b")
    assert estimates.rank(other, decision).record == decision.record


def test_attempts_under_way_are_counted(estimates: Estimates) -> None:
    """Bounded load counts this worker's attempts; ended or unknown ones are dropped."""
    estimates.began("a")
    estimates.began("a")
    estimates.began("b")
    estimates.ended("b")
    estimates.ended("b")
    assert estimates.in_flight == {"a": 2}
    estimates.ended("a")
    assert estimates.in_flight == {"a": 1}
    decision = decided(
        "a", "b", objective="priority", deployments={n: {"group": "g"} for n in "ab"}
    )
    home = names(estimates.rank(REQUEST, decision))[0]
    for _ in range(8):
        estimates.began(home)
    assert names(estimates.rank(REQUEST, decision))[0] != home


def test_another_prior_is_taken_over_at_once(estimates: Estimates) -> None:
    """An admin who corrects it does not want to wait."""
    estimates.rank(REQUEST, decided("a", "b"))
    prior = {"a": {"prior": LatencyPrior(ttft_s=3.0, tpot_s=0.5)}}
    assert estimates.rank(REQUEST, decided("a", "b", deployments=prior)).expected[-1].ttft_s == 3.0


def test_an_embedding_expects_no_answer(estimates: Estimates) -> None:
    """The decision is of one endpoint, and so is its view."""
    embedding = factories.request(facts=factories.facts(Operation.EMBEDDINGS))
    assert estimates.rank(embedding, decided("a", "b")).expected[0].output_tokens == 0.0


def test_memory_is_bounded(estimates: Estimates) -> None:
    """Teams, routes and deployments come and go for months; the oldest entries are dropped."""
    for number in range(module.MOST_DEPLOYMENTS + 3):
        estimates.note(ended(f"d{number}", route=f"r{number}"))
    assert len(estimates._seen) == module.MOST_DEPLOYMENTS
    for number in range(module.MOST_PAIRS + 3):
        estimates.note(
            ended("d9", team=f"t{number}", usage=TokenUsage(input_tokens=9, output_tokens=9))
        )
    assert len(estimates._outputs) == module.MOST_PAIRS
    decision = decided("a", "b")
    for _ in range(module.MOST_VIEWS + 3):
        estimates.current_conditions(changed(decision))
    assert len(estimates._views) <= module.MOST_VIEWS


def test_without_a_clock_nothing_grows_old() -> None:
    """Code that only decides, and never learns, needs no clock."""
    assert names(Estimates(FakeClock()).rank(REQUEST, decided("a", "b"))) == ["a", "b"]
