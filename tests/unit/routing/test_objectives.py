"""A request's order of the eligible deployments: properties that hold for any predictions."""

from __future__ import annotations

from collections import Counter
from decimal import Decimal
from math import inf, nan
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from msgspec.structs import replace

from gateway.domain.operation import Operation
from gateway.domain.policy.policy import Balance, DataClass, LatencyPrior, Priority, Route
from gateway.domain.pricing.pricing import Price, Rate
from gateway.domain.pricing.tokens import TokenKind
from gateway.domain.request.request import RequestFacts
from gateway.domain.routing.decide import Decision, Ranking, decide
from gateway.domain.routing.objectives import OBJECTIVES, Candidates, assumed, candidates_of, rank
from gateway.domain.routing.predictions import (
    COST,
    KEPT_AGAIN_AT,
    TTFT,
    WINDOW,
    Conditions,
    Prediction,
)
from tests import factories

TODAY = factories.NOW.date()
ASK = factories.facts(body_bytes=4000, output_bound_tokens=None)  # a thousand tokens
SEED = 20261122  # of the sessions that are drawn

positive = st.floats(1e-3, 1e3)
odd = st.sampled_from([0.0, nan, inf, -inf, -1.0, 1e308, 5e-324]) | positive
objectives = st.sampled_from(sorted(OBJECTIVES))


def decided(
    names: str = "abc",
    *,
    prices: dict[str, Price] | None = None,
    team: dict[str, Any] | None = None,
    deployments: dict[str, dict[str, Any]] | None = None,
    **route: Any,
) -> Decision:
    """Return a decision about deployments `a`, `b`, …, all eligible unless one is changed."""
    known = [factories.deployment(name, **(deployments or {}).get(name, {})) for name in names]
    values: dict[str, Any] = {"name": "assistant", "deployments": tuple(names)} | route
    asked = Route(**values)
    owner = factories.team(**(team or {}))
    document = factories.policy(
        *known,
        classes={DataClass.INTERNAL: factories.class_rule("internal", "eu")},
        routes={asked.name: asked},
        teams={owner.name: owner},
    )
    found = {name: factories.price() for name in names} | (prices or {})
    return decide(
        factories.version(document),
        team=owner,
        route=asked,
        data_class=DataClass.INTERNAL,
        facts=ASK,
        prices=found,
        day=TODAY,
    )


def live(*ttft_s: float, **changes: Any) -> Conditions:
    """Return each one's figures by the time to its first token; tokens after it take no time."""
    return Conditions(predictions=[Prediction(s, s, 0.0) for s in ttft_s], **changes)


def names(ranking: Ranking) -> str:
    return "".join(choice.candidate.deployment.name for choice in ranking.choices)


def ranked(
    decision: Decision,
    known: Conditions,
    *,
    facts: RequestFacts = ASK,
    session: str = "s",
    **more: Any,
) -> Ranking:
    return rank(candidates_of(decision), facts, known, session=session, **more)


def cheap(usd: str) -> Price:
    return factories.price(usd, usd)


@st.composite
def worlds(
    draw: st.DrawFn, figures: st.SearchStrategy[float] = positive, **changes: Any
) -> tuple[Decision, Conditions]:
    """Return a decision with some ineligible, groups, windows and bounds, and the figures of its
    eligible ones.
    """
    every = "abcdefgh"[: draw(st.integers(1, 8))]
    group = st.sampled_from([None, None, "g1", "g2"])
    deployments = {
        name: {
            "region": draw(st.sampled_from(["eu-de", "eu-de", "us-east"])),
            "group": draw(group),
            "context_window": draw(st.none() | st.integers(1, 5000)),
        }
        for name in every
    }
    route = {
        "objective": draw(objectives),
        "weights": {name: draw(positive) for name in every},
        "ttft_p95_s": draw(st.none() | positive),
        "max_cost_nusd": draw(st.none() | st.integers(1, 10**9)),
    }
    decision = decided(
        every,
        deployments=deployments,
        prices={name: cheap(f"{draw(st.integers(0, 50))}") for name in every},
        team={"priority": draw(st.sampled_from(list(Priority)))},
        **route | changes,
    )
    assume(decision.eligible)
    predictions = [
        Prediction(*(draw(figures) for _ in range(4)), draw(figures), draw(figures))
        for _ in decision.eligible
    ]
    late = frozenset(draw(st.sets(st.sampled_from(every))))
    in_flight = {name: draw(st.integers(0, 9)) for name in every}
    return decision, Conditions(
        predictions=predictions, output_tokens=draw(figures), late=late, in_flight=in_flight
    )


@given(worlds(odd))
def test_a_ranking_is_a_permutation_of_the_eligible(world: tuple[Decision, Conditions]) -> None:
    """An objective orders; it adds and drops nothing for any prediction, and never admits an
    ineligible one.
    """
    decision, known = world
    found = ranked(decision, known)
    assert sorted(names(found)) == sorted(one.deployment.name for one in decision.eligible)
    assert len(found.expected) == len(found.choices)
    for choice in found.choices:
        assert choice.decision.permit(choice.candidate, attempt=1)
    assert set(found.record["ranked"]) == set(names(found))  # type: ignore[call-overload]


@given(worlds(odd, ttft_p95_s=1e-9, degrade_to="small"), worlds(odd, name="small"))
def test_every_choice_carries_the_decision_that_gives_leave(
    own: tuple[Decision, Conditions], other: tuple[Decision, Conditions]
) -> None:
    """A route that is degraded to has its own rules: no deployment is ever sent to by the leave of
    another decision.
    """
    decision, known = own
    small, known_there = other
    found = ranked(decision, known, degrade=lambda: (candidates_of(small), known_there))
    mine, theirs = ({one.deployment.name for one in every.eligible} for every in (decision, small))
    assert sorted(names(found)) in (sorted(mine), sorted(mine | theirs))
    for choice in found.choices:
        assert choice.decision is (decision if choice.candidate.deployment.name in mine else small)
        assert choice.decision.permit(choice.candidate, attempt=1)


@given(worlds(odd))
def test_deployments_within_the_bounds_come_first(
    world: tuple[Decision, Conditions],
) -> None:
    """The admin sets the bound; the objective only orders within it.

    Unreadable figures fit in no other place.
    """
    found = ranked(*world)
    tiers = [0 if not one.misses else 2 if WINDOW in one.misses else 1 for one in found.expected]
    assert tiers == sorted(tiers)


@given(
    st.lists(st.integers(0, 30), min_size=1, max_size=8),
    st.integers(0, 100_000),
    st.floats(0, 4000),
)
def test_cheapest_is_in_the_order_of_cost(
    usd: list[int], body_bytes: int, output_tokens: float
) -> None:
    """Among those that meet the bounds, none comes before a cheaper one."""
    every = "abcdefgh"[: len(usd)]
    prices = {name: cheap(str(rate)) for name, rate in zip(every, usd, strict=True)}
    decision = decided(every, objective="cheapest", prices=prices, max_cost_nusd=50_000_000)
    found = ranked(
        decision,
        live(*[1.0] * len(usd), output_tokens=output_tokens),
        facts=replace(ASK, body_bytes=body_bytes),
    )
    for misses in (False, True):
        costs = [one.cost_nusd for one in found.expected if bool(one.misses) == misses]
        assert costs == sorted(costs)


@pytest.mark.parametrize(("objective", "first"), [("cheapest", "b"), ("priority", "a")])
def test_a_session_stays_where_its_prompt_is_cached(objective: str, first: str) -> None:
    """Within the bounds of the route; a listed order is the admin's own."""
    prices = {"a": cheap("1"), "b": cheap("2")}
    decision = decided("ab", objective=objective, prices=prices)
    assert names(ranked(decision, live(1.0, 1.0), kept_at="b"))[0] == first
    assert names(ranked(decision, live(1.0, 1.0), kept_at="gone"))[0] == "a"
    bounded = decided("ab", objective=objective, prices=prices, max_cost_nusd=1)
    assert len(ranked(bounded, live(1.0, 1.0), kept_at="b").choices) == 2


@given(st.lists(st.integers(1, 30), min_size=2, max_size=8), st.data())
def test_a_cheaper_deployment_never_moves_back(usd: list[int], data: st.DataObject) -> None:
    """A discount that costs a provider its place would be an odd thing to negotiate."""
    every = "abcdefgh"[: len(usd)]
    place = data.draw(st.integers(0, len(usd) - 1))
    lower = data.draw(st.integers(0, usd[place]))
    orders = []
    for rates in (usd, [*usd[:place], lower, *usd[place + 1 :]]):
        prices = {name: cheap(str(rate)) for name, rate in zip(every, rates, strict=True)}
        orders.append(
            names(
                ranked(decided(every, objective="cheapest", prices=prices), live(*[1.0] * len(usd)))
            )
        )
    assert orders[1].index(every[place]) <= orders[0].index(every[place])


@given(
    st.lists(st.tuples(positive, positive), min_size=1, max_size=8),
    st.sampled_from([2.0, 0.5, 1024.0]),
)
def test_orders_do_not_depend_on_the_unit(
    figures: list[tuple[float, float]], factor: float
) -> None:
    """Dollars or cents, seconds or milliseconds: ratios decide."""
    every = "abcdefgh"[: len(figures)]
    for objective in ("cheapest", "fastest", "balanced"):
        orders = []
        for scale in (1.0, factor):
            prices = {
                name: cheap(f"{Decimal(str(cost * scale)):f}")
                for name, (cost, _) in zip(every, figures, strict=True)
            }
            decision = decided(every, objective=objective, prices=prices)
            orders.append(names(ranked(decision, live(*[ttft_s * scale for _, ttft_s in figures]))))
        assert orders[0] == orders[1]


@pytest.mark.parametrize("objective", ["priority", "cheapest", "fastest", "balanced"])
def test_ties_stay_as_listed(objective: str) -> None:
    """Equal ones in the order that the admin wrote, today and tomorrow."""
    assert names(ranked(decided("cab", objective=objective), live(1.0, 1.0, 1.0))) == "cab"


@pytest.mark.parametrize("objective", ["cheapest", "fastest", "balanced"])
@given(st.lists(st.sampled_from([nan, inf, -1.0, -inf]), min_size=3, max_size=3), st.integers(0, 2))
def test_nan_comes_last_and_does_not_shuffle_the_others(
    objective: str, odd_ones: list[float], place: int
) -> None:
    """Sorting by NaN gives an order that depends on its position: the others must not be
    affected.
    """
    predictions = [Prediction(odd_one, odd_one, odd_one, 0.0, odd_one) for odd_one in odd_ones]
    good = [Prediction(0.2, 0.2, 0.0), Prediction(0.1, 0.1, 0.0, 0.0, 0.2)]
    known = Conditions(predictions=[*predictions[:place], good[0], *predictions[place:], good[1]])
    assert names(ranked(decided("abcde", objective=objective), known))[:2] == "e" + "abcd"[place]


def test_fastest_counts_the_whole_answer() -> None:
    """A quick first token is worthless if the rest crawls; for a short answer it counts."""
    known = Conditions(
        predictions=[Prediction(0.1, 0.1, 0.05), Prediction(0.5, 0.5, 0.01)], output_tokens=100.0
    )
    decision = decided("ab", objective="fastest")
    assert names(ranked(decision, known)) == "ba"
    assert names(ranked(decision, known, facts=replace(ASK, output_bound_tokens=2))) == "ab"


def test_an_answer_is_expected_no_longer_than_its_maximum() -> None:
    """And as often as choices are asked for."""
    asked = replace(ASK, output_bound_tokens=50, choices=3)
    assert [one.output_tokens for one in ranked(decided("a"), live(1.0), facts=asked).expected] == [
        150.0
    ]
    assert [one.output_tokens for one in ranked(decided("a"), live(1.0)).expected] == [256.0]


def test_an_embedding_writes_nothing() -> None:
    """Its cost is only its prompt's cost."""
    candidates = candidates_of(decided("a"), Operation.EMBEDDINGS)
    (one,) = rank(candidates, ASK, live(1.0), session="s").expected
    assert (one.output_tokens, one.cost_nusd) == (0.0, 1_000_000.0)


def test_balanced_weighs_cost_against_time() -> None:
    """Twice as dear and half as fast are as far from the best; weights say which matters."""
    prices = {"a": cheap("1"), "b": cheap("3")}

    def order(**balance: float) -> str:
        decision = decided("ab", objective="balanced", prices=prices, balance=Balance(**balance))
        return names(ranked(decision, live(4.0, 1.0)))

    assert order() == "ba"
    assert order(cost=0.7, latency=0.3) == "ab"
    assert order(cost=1.0, latency=0.0) == "ab"
    assert order(cost=0.0, latency=1.0) == "ba"


def test_a_free_deployment_is_best_only_in_cost() -> None:
    """A multiple of nothing is no number: the free one must not make all others equally dear."""
    prices = {"a": cheap("0"), "b": cheap("1"), "c": cheap("9")}
    decision = decided("abc", objective="balanced", prices=prices)
    assert names(ranked(decision, live(100.0, 1.0, 1.0))) == "bca"
    assert (
        names(
            ranked(
                decided("ab", objective="balanced", prices={"a": cheap("0"), "b": cheap("0")}),
                live(2.0, 1.0),
            )
        )
        == "ba"
    )


def test_a_session_is_drawn_the_same_each_time_and_sessions_in_proportion() -> None:
    """A canary that flickers tells nothing: a caller stays, and the shares are those written.

    Seed: see SEED.
    """
    weights = {"a": 70.0, "b": 20.0, "c": 10.0}
    candidates = candidates_of(decided("abc", objective="weighted", weights=weights))
    sessions = [f"{SEED}-{i}" for i in range(4000)]
    firsts = Counter()
    for session in sessions:
        first = names(rank(candidates, ASK, live(1.0, 1.0, 1.0), session=session))
        assert names(rank(candidates, ASK, live(9.0, 2.0, 3.0), session=session)) == first
        firsts[first[0]] += 1
    expected = {name: weight / 100 * len(sessions) for name, weight in weights.items()}
    chi_square = sum((firsts[name] - many) ** 2 / many for name, many in expected.items())
    # One in a thousand fair draws is further off, two degrees.
    assert chi_square < 13.8, f"seed {SEED}: {firsts}"


def test_a_removed_deployment_moves_only_its_own_sessions() -> None:
    """A deployment that residency takes away must not reshuffle everybody's caches."""
    weights = {"a": 1.0, "b": 1.0, "c": 1.0}
    all_of_them = candidates_of(decided("abc", objective="weighted", weights=weights))
    without = candidates_of(decided("ab", objective="weighted", weights=weights))
    for number in range(300):
        before = names(rank(all_of_them, ASK, live(1.0, 1.0, 1.0), session=str(number)))
        after = names(rank(without, ASK, live(1.0, 1.0), session=str(number)))
        assert after == before.replace("c", "")


def test_without_a_weight_it_is_never_drawn() -> None:
    """A route's document names all weights; another one's deployments have none here."""
    candidates = candidates_of(decided("ab", objective="weighted", weights={"b": 1.0}))
    assert {names(rank(candidates, ASK, live(1.0, 1.0), session=str(i))) for i in range(50)} == {
        "ba"
    }


@pytest.mark.parametrize(
    ("priority", "order", "degraded"),
    [(Priority.HIGH, "ab", None), (Priority.NORMAL, "ab", None), (Priority.LOW, "ba", "spill")],
)
def test_low_leaves_first(priority: Priority, order: str, degraded: str | None) -> None:
    """A bound of one second is half a second for those who can wait: the place is kept for the
    others.
    """
    decision = decided("ab", ttft_p95_s=1.0, team={"priority": priority})
    found = ranked(decision, live(0.9, 0.1))
    assert (names(found), found.degraded) == (order, degraded)


@given(st.lists(st.floats(KEPT_AGAIN_AT, 1.0), min_size=2, max_size=30), st.booleans())
def test_between_the_two_bounds_nothing_changes(ttfts_s: list[float], was_late: bool) -> None:
    """A place that gets faster because it was spared must not be taken for better the moment
    after.
    """
    decision = decided("ab", ttft_p95_s=1.0, team={"priority": Priority.HIGH})
    late = frozenset("a") if was_late else frozenset[str]()
    for ttft_s in ttfts_s:
        found = ranked(decision, live(ttft_s, 0.1, late=late))
        assert names(found) == ("ba" if was_late and ttft_s > KEPT_AGAIN_AT else "ab")
        assume(ttft_s > KEPT_AGAIN_AT)
        assert found.late == late
        late = found.late


def test_a_deployment_returns_at_four_fifths_of_its_bound() -> None:
    """It comes back, and from then on counts in full again."""
    decision = decided("ab", ttft_p95_s=1.0, team={"priority": Priority.HIGH})
    late: frozenset[str] = frozenset()
    seen = []
    for ttft_s in (0.9, 1.1, 0.9, 0.81, 0.8, 0.9):
        found = ranked(decision, live(ttft_s, 0.1, late=late))
        late = found.late
        seen.append(names(found)[0])
    assert seen == ["a", "b", "b", "b", "a", "a"]


def test_a_cost_bound_has_no_memory() -> None:
    """The next request has another size: the cost of a large one does not apply to it."""
    decision = decided("a", max_cost_nusd=2_100_000)
    found = ranked(decision, live(1.0, output_tokens=0.0), facts=replace(ASK, body_bytes=10_000))
    assert (found.expected[0].misses, found.late, found.degraded) == ((COST,), frozenset(), None)
    assert (
        ranked(decision, live(1.0, output_tokens=0.0), facts=replace(ASK, body_bytes=8_300))
        .expected[0]
        .misses
        == ()
    )


def test_a_spill_is_recorded_for_the_deployment_that_takes_over() -> None:
    """The caller who gets the preferred one after all was not degraded."""
    found = ranked(decided("ab", ttft_p95_s=1.0), live(5.0, 0.1))
    taken, preferred = found.choices
    assert (found.degraded, found.preferred) == ("spill", "a")
    assert (found.degraded_at(taken), found.degraded_at(preferred)) == ("spill", None)
    assert found.record["degraded"] == {"kind": "spill", "from": "a", "missed": ["a"]}
    assert found.record["bounds"] == {"ttft_p95_s": 1.0}


def test_if_all_miss_their_bounds_the_objective_orders_them() -> None:
    """Not refused, and not called degraded: no other deployment took over."""
    found = ranked(decided("ab", objective="fastest", ttft_p95_s=1.0), live(5.0, 4.0))
    assert (names(found), found.degraded, found.late) == ("ba", None, frozenset("ab"))
    assert found.degraded_at(found.choices[0]) is None


def degrading(own: Decision, other: Decision, ttft_s: float) -> Ranking:
    there: tuple[Candidates, Conditions] = (
        candidates_of(other),
        live(*[1.0] * len(other.eligible)),
    )
    return rank(
        candidates_of(own),
        ASK,
        live(*[ttft_s] * len(own.eligible)),
        session="s",
        degrade=lambda: there,
    )


def test_it_degrades_only_if_no_deployment_keeps_the_bounds() -> None:
    """The smaller model is the last resort, and it goes in front of those that would be too
    late.
    """
    own = decided("ab", ttft_p95_s=1.0, degrade_to="small")
    small = decided("bx", name="small")
    assert names(degrading(own, small, 0.1)) == "ab"
    found = degrading(own, small, 5.0)
    assert (names(found), found.degraded) == ("xab", "route:small")
    other, first, _ = found.choices
    assert (found.degraded_at(other), found.degraded_at(first)) == ("route:small", None)
    candidates: Any = found.record["candidates"]
    assert [(one["deployment"], one.get("route")) for one in candidates] == [
        ("a", None),
        ("b", None),
        ("x", "small"),
    ]


def test_a_route_that_has_nothing_to_add_is_not_degraded_to() -> None:
    """All of its deployments were there already, or none may be used."""
    own = decided("ab", ttft_p95_s=1.0, degrade_to="small")
    assert degrading(own, decided("ba", name="small"), 5.0).degraded is None
    nowhere = rank(candidates_of(own), ASK, live(5.0, 5.0), session="s", degrade=lambda: None)
    unasked = rank(candidates_of(own), ASK, live(5.0, 5.0), session="s")
    assert (names(nowhere), nowhere.degraded, unasked.degraded) == ("ab", None, None)


def test_a_too_small_window_comes_last_and_is_no_spill() -> None:
    """A request too long for the first window goes to the larger one, as intended."""
    decision = decided(
        "abc",
        deployments={"a": {"context_window": 1200}, "b": {"context_window": 1300}},
        ttft_p95_s=9.0,
    )
    found = ranked(decision, live(1.0, 1.0, 1.0), facts=replace(ASK, output_bound_tokens=250))
    assert (names(found), found.degraded) == ("bca", None)
    none_fits = decided("a", deployments={"a": {"context_window": 1200}})
    assert names(ranked(none_fits, live(1.0))) == "a"


def test_a_session_stays_at_its_replica() -> None:
    """The prefix cache is warm there; the group keeps the objective's place."""
    deployments = {name: {"group": "qwen"} for name in "acd"}
    decision = decided("abcd", objective="fastest", deployments=deployments)
    known = live(0.1, 0.2, 0.3, 0.4)
    orders = {
        session: names(ranked(decision, known, session=session)) for session in map(str, range(60))
    }
    assert {order[1] for order in orders.values()} == {"b"}
    assert {order[0] for order in orders.values()} == set("acd")
    assert orders == {
        session: names(ranked(decision, known, session=session)) for session in orders
    }


def test_a_full_replica_gives_its_session_to_another() -> None:
    """Bounded load: a warm cache is not worth a queue."""
    decision = decided("ab", deployments={name: {"group": "qwen"} for name in "ab"})
    (home,) = {names(ranked(decision, live(1.0, 1.0), session="x"))[0]}
    found = ranked(decision, live(1.0, 1.0, in_flight={home: 10}), session="x")
    assert names(found)[0] != home


def test_a_replica_that_takes_over_is_no_spill() -> None:
    """It is the same engine: no request went to another one."""
    decision = decided("ab", deployments={name: {"group": "qwen"} for name in "ab"}, ttft_p95_s=1.0)
    found = ranked(decision, live(5.0, 0.1))
    assert (names(found), found.degraded, found.late) == ("ba", None, frozenset("a"))


def test_the_dearer_rates_of_a_long_prompt_count() -> None:
    """Providers charge more for all of a prompt beyond some length: the order turns there."""
    stepped = Price(
        provider="p",
        model="m",
        source="s",
        rates=(
            Rate(kind=TokenKind.INPUT, usd_per_mtok=Decimal(1)),
            Rate(kind=TokenKind.INPUT, usd_per_mtok=Decimal(9), from_input_tokens=2000),
        ),
    )
    decision = decided(
        "ab", objective="cheapest", prices={"a": stepped, "b": factories.price("2", "0")}
    )
    known = live(1.0, 1.0, output_tokens=0.0)
    assert names(ranked(decision, known)) == "ab"
    assert names(ranked(decision, known, facts=replace(ASK, body_bytes=8000))) == "ba"


def test_cached_tokens_are_ranked_at_the_cached_rate() -> None:
    """A place that has most of the prompt already may be the cheapest although its plain rate is
    higher.
    """
    decision = decided(
        "ab",
        objective="cheapest",
        prices={"a": factories.price("1", "0"), "b": factories.price("2", "0", cached="0.1")},
    )
    predictions = [Prediction(), Prediction(cached_share=0.8)]
    found = ranked(decision, Conditions(predictions=predictions, output_tokens=0.0))
    assert (names(found), [round(one.cost_nusd) for one in found.expected]) == (
        "ba",
        [480_000, 1_000_000],
    )


def test_a_latency_that_is_no_number_keeps_no_bound() -> None:
    """Its delay is unknown: that is not the same as early enough."""
    found = ranked(decided("ab", ttft_p95_s=1.0), live(nan, 0.1))
    assert (names(found), found.degraded) == ("ba", "spill")


def test_the_listed_order_has_the_listed_record() -> None:
    """Nothing is added to events of requests that went as listed."""
    decision = decided("ab", objective="cheapest")
    assert ranked(decision, live(1.0, 1.0)).record is decision.record


def test_a_changed_order_is_recorded_with_its_predictions() -> None:
    """The reason for a request's deployment must be readable a year later."""
    decision = decided("ab", objective="cheapest", prices={"a": factories.price("2", "8")})
    record = ranked(decision, live(0.5, 0.25)).record
    assert record["ranked"] == ["b", "a"]
    assert record["expected"] == [
        {
            "cost_nusd": 2_024_000,
            "input_tokens": 1000,
            "output_tokens": 256,
            "ttft_s": 0.25,
            "ttft_p95_s": 0.25,
            "tpot_s": 0.0,
            "samples": 0,
        },
        {
            "cost_nusd": 4_048_000,
            "input_tokens": 1000,
            "output_tokens": 256,
            "ttft_s": 0.5,
            "ttft_p95_s": 0.5,
            "tpot_s": 0.0,
            "samples": 0,
        },
    ]


def test_declared_figures_are_the_prior() -> None:
    """Before anything was seen."""
    decision = decided("ab", deployments={"a": {"prior": LatencyPrior(ttft_s=0.3, tpot_s=0.01)}})
    assert [
        (one.ttft_s, one.ttft_p95_s, one.tpot_s)
        for one in assumed(candidates_of(decision)).predictions
    ] == [
        (0.3, 0.3, 0.01),
        (0.5, 0.5, 0.02),
    ]


@pytest.mark.parametrize(
    ("changes", "is_ordered"),
    [
        ({}, False),
        ({"objective": "cheapest"}, True),
        ({"names": "a", "objective": "cheapest"}, False),
        ({"names": "a", "ttft_p95_s": 1.0}, True),
        ({"names": "a", "max_cost_nusd": 1}, True),
        ({"deployments": {"a": {"group": "g"}, "b": {"group": "g"}}}, True),
        ({"deployments": {"a": {"group": "g"}, "b": {"group": "h"}}}, False),
    ],
)
def test_only_routes_that_need_an_order_pay_for_it(
    changes: dict[str, Any], is_ordered: bool
) -> None:
    """`priority` without bounds and replicas costs nothing."""
    assert decided(**changes).is_ordered == is_ordered


def test_ttft_is_named_as_events_name_it() -> None:
    """Reports look for it."""
    assert ranked(decided("a", ttft_p95_s=1.0), live(5.0)).expected[0].misses == (TTFT,)
