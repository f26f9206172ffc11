"""A past request under another policy: its deployment, its cost, and the budget that would stop
it.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.budgets.budgets import (
    Account,
    BudgetKind,
    BudgetPeriod,
    BudgetRule,
    BudgetScope,
)
from gateway.domain.operation import Operation
from gateway.domain.policy.policy import DataClass, Deployment, LatencyPrior, Policy, Route
from gateway.domain.pricing.pricing import Price, Rate
from gateway.domain.pricing.tokens import TokenKind
from gateway.domain.routing.replay import (
    Alike,
    BudgetWalk,
    Fate,
    Ordering,
    Pace,
    PastRequest,
    Place,
    Refusal,
    cost_after_nusd,
    fate_of,
    hold_nusd,
    orderer_of,
)
from tests import factories

PLACE = Place(gateway_region="unknown", day=date(2026, 11, 22))
NOON_MS = int(factories.NOW.timestamp() * 1000)
OLD = factories.price("1", "4")
NEW = factories.price("2", "7")
US = factories.deployment("us", region="us-east")


def alike(**changes: Any) -> Alike:
    """Requests of payments on assistant that went to `one`."""
    values: dict[str, Any] = {
        "team": "payments",
        "project": None,
        "key_id": "k",
        "route": "assistant",
        "deployment": "one",
        "model": "m-1",
        "region": "eu-de",
        "data_class": "internal",
        "class_source": "team",
        "operation": Operation.CHAT,
        "service_tier": None,
        "price_id": OLD.price_id,
        "ranked": ("one",),
    }
    return Alike(**values | changes)


def past(of: Alike | None = None, **changes: Any) -> PastRequest:
    """A request that read 1000 tokens and wrote 100 for 1.4 thousandths of a dollar."""
    values: dict[str, Any] = {
        "alike": of or alike(),
        "at_ms": NOON_MS,
        "input_tokens": 1000,
        "cached_input_tokens": 0,
        "cache_write_tokens": 0,
        "output_tokens": 100,
        "reasoning_tokens": 0,
        "detail": None,
        "cost_nusd": 1_400_000,
        "held_nusd": None,
        "input_bound_tokens": 2000,
        "max_output_tokens": 500,
        "choices": 1,
        "is_followed": False,
    }
    return PastRequest(**values | changes)


def fate(of: Alike, policy: Policy, prices: dict[str, Price] | None = None) -> Fate:
    found = dict.fromkeys(policy.deployments, NEW) if prices is None else prices
    return fate_of(of, factories.version(policy), prices=found, place=PLACE)


def rule(limit_nusd: int, **changes: Any) -> BudgetRule:
    values: dict[str, Any] = {
        "rule_id": "payments/day",
        "scope": BudgetScope.TEAM,
        "team": "payments",
        "owner": "payments",
        "period": BudgetPeriod.DAY,
        "limit_nusd": limit_nusd,
    }
    return BudgetRule(**values | changes)


def test_a_request_goes_to_the_first_that_is_eligible_now() -> None:
    """A plan promises the order of the new policy, not of the old one."""
    policy = factories.policy(factories.deployment("two"), factories.deployment("one"))
    assert fate(alike(), policy).destination == "two"


def test_a_deployment_down_in_the_past_is_down_in_the_replay() -> None:
    """Else the same policy again would seem to move every request that had been tried elsewhere
    first.
    """
    policy = factories.policy(factories.deployment("down"), factories.deployment("one"))
    assert fate(alike(ranked=("down", "one")), policy).destination == "one"
    assert fate(alike(ranked=("one", "down")), policy).destination == "down"
    assert fate(alike(ranked=()), policy).destination == "down"


def test_if_all_deployments_were_skipped_the_first_is_used() -> None:
    """A request that failed everywhere is still one request, and goes somewhere."""
    policy = factories.policy(factories.deployment("a"), factories.deployment("b"))
    assert fate(alike(deployment="one", ranked=("a", "b", "one")), policy).destination == "a"


@pytest.mark.parametrize(
    ("of", "policy", "refusal"),
    [
        (alike(team="gone"), factories.policy(), Refusal.ROUTE),
        (alike(route="gone"), factories.policy(), Refusal.ROUTE),
        (alike(), factories.policy(teams={"payments": factories.team(routes=())}), Refusal.ROUTE),
        (
            alike(data_class="confidential", class_source="header"),
            factories.policy(US),
            Refusal.RESIDENCY,
        ),
        (
            alike(),
            factories.policy(
                US, teams={"payments": factories.team(data_class=DataClass.CONFIDENTIAL)}
            ),
            Refusal.RESIDENCY,
        ),
        (
            alike(data_class="restricted", class_source="header"),
            factories.policy(),
            Refusal.CAPABILITY,
        ),
        (alike(data_tags=frozenset({"gone"})), factories.policy(), Refusal.CAPABILITY),
        (
            alike(capabilities=frozenset({"vision"})),
            factories.policy(factories.deployment(capabilities=frozenset({"tools"}))),
            Refusal.CAPABILITY,
        ),
        (alike(features=frozenset({"store"})), factories.policy(), Refusal.RESIDENCY),
        (alike(features=frozenset({"engine_control"})), factories.policy(), Refusal.CAPABILITY),
    ],
)
def test_a_replayed_refusal_has_the_callers_reason(
    of: Alike, policy: Policy, refusal: Refusal
) -> None:
    """A plan counts refusals by their reason, and the reason is the one of the real answer."""
    found = fate(of, policy)
    assert (found.refusal, found.destination) == (refusal, None)


def test_a_deployment_without_a_price_refuses() -> None:
    """Nothing is billed at zero, in a replay neither."""
    assert fate(alike(), factories.policy(), {}).refusal is Refusal.PRICE


def test_a_class_by_the_team_follows_the_team() -> None:
    """The team's class of then says nothing once the policy says another; a header's still does."""
    policy = factories.policy(US)
    assert fate(alike(data_class="confidential", class_source="team"), policy).destination == "us"
    assert fate(alike(data_class="public", class_source="header"), policy).destination == "us"


def test_a_cost_is_that_of_the_new_destination_line_by_line() -> None:
    """The old price would be the plan's most expensive mistake."""
    found = fate(alike(), factories.policy(factories.deployment("two")))
    assert cost_after_nusd(past(), found) == 1000 * 2000 + 100 * 7000
    # 0.3333 and 0.4445 nano-dollars a token.
    thirds = {"two": factories.price("0.0003333", "0.0004445")}
    found = fate(alike(), factories.policy(factories.deployment("two")), thirds)
    assert (
        cost_after_nusd(past(input_tokens=5, output_tokens=3), found)
        == round(5 * 0.3333) + round(3 * 0.4445)
        == 3
    )


def test_the_same_price_at_the_same_place_costs_the_same() -> None:
    """Including charges that a settlement could make and no replay can compute, such as a
    suspect answer.
    """
    found = fate(alike(), factories.policy(), {"one": OLD})
    assert cost_after_nusd(past(cost_nusd=77), found) == 77
    moved = fate(alike(), factories.policy(factories.deployment("two")), {"two": OLD})
    assert cost_after_nusd(past(cost_nusd=77), moved) == 1_400_000


def test_rarer_tokens_are_charged_at_their_own_rate() -> None:
    """Tokens of a kind that the new price does not cover have no cost there that anyone knows."""
    policy = factories.policy(factories.deployment("two"))
    assert cost_after_nusd(past(detail={"audio_input_tokens": 10}), fate(alike(), policy)) is None
    audio = Rate(kind=TokenKind.AUDIO_INPUT, usd_per_mtok=Decimal(50))
    price = Price(provider="p", model="m", source="s", rates=(*NEW.rates, audio))
    found = fate(alike(), policy, {"two": price})
    assert (
        cost_after_nusd(past(detail={"audio_input_tokens": 10}), found)
        == 990 * 2000 + 10 * 50_000 + 100 * 7000
    )


def test_an_unknown_cost_stays_unknown() -> None:
    """It counts as its hold before, so no figure after would be of the same kind."""
    found = fate(alike(), factories.policy(factories.deployment("two")))
    assert cost_after_nusd(past(cost_nusd=None, held_nusd=5), found) is None
    assert cost_after_nusd(past(), Fate(refusal=Refusal.ROUTE)) is None


def test_another_deployment_answers_in_the_tier_that_was_asked_for() -> None:
    """The same one answers in the tier it answered in: a project's own setting may have decided
    that.
    """
    flex = tuple(
        Rate(kind=one.kind, usd_per_mtok=one.usd_per_mtok / 2, service_tier="flex")
        for one in NEW.rates
    )
    price = Price(provider="p", model="m", source="s", rates=(*NEW.rates, *flex))
    asked = alike(service_tier="default", features=frozenset({"service_tier=flex"}))
    there = factories.deployment("two", allows=frozenset({"service_tier"}))
    moved = fate(asked, factories.policy(there), {"two": price})
    assert cost_after_nusd(past(asked), moved) == (1000 * 2000 + 100 * 7000) // 2
    stays = fate(alike(service_tier="flex"), factories.policy(), {"one": price})
    assert cost_after_nusd(past(), stays) == (1000 * 2000 + 100 * 7000) // 2


def test_a_tier_without_a_price_has_no_cost() -> None:
    """It is never charged as standard."""
    found = fate(alike(service_tier="priority"), factories.policy(), {"one": NEW})
    assert (found.destination, found.tier_price, cost_after_nusd(past(), found)) == (
        "one",
        None,
        None,
    )


def test_a_replayed_hold_equals_the_gateways_hold() -> None:
    """A budget asks for the bound, not for the cost: the hold may not fit even if the cost does."""
    found = fate(alike(), factories.policy(factories.deployment("two", max_output_tokens=50)))
    assert hold_nusd(past(), found) >= 2000 * 2000 + 500 * 7000
    capped = hold_nusd(past(max_output_tokens=None), found)
    assert 2000 * 2000 + 50 * 7000 <= capped < hold_nusd(past(), found)
    assert hold_nusd(past(choices=2), found) > hold_nusd(past(), found)


def test_only_hard_budgets_are_asked() -> None:
    """A soft one only counts."""
    soft = rule(10, rule_id="payments/month", period=BudgetPeriod.MONTH, kind=BudgetKind.SOFT)
    team = factories.team(budgets=(rule(10), soft))
    found = fate(alike(), factories.policy(teams={"payments": team}))
    assert [account.account_id for account in found.accounts] == ["payments/day"]


def test_a_budget_blocks_only_the_requests_that_do_not_fit() -> None:
    """The last that fits exactly goes through; the next does not, and costs nothing."""
    account = (Account(account_id="payments/day", rule=rule(100)),)
    walk = BudgetWalk()
    assert walk.blocked_by(account, NOON_MS, hold_nusd=100) is None
    walk.charge(account, NOON_MS, cost_nusd=60)
    assert walk.blocked_by(account, NOON_MS + 1, hold_nusd=40) is None
    assert walk.blocked_by(account, NOON_MS + 1, hold_nusd=41) == account[0]


def test_a_budget_begins_again_with_its_period() -> None:
    """Walked without periods a day's budget would block for ever from its first full day on."""
    berlin = rule(100, time_zone="Europe/Berlin")
    account = (Account(account_id="payments/day", rule=berlin),)
    midnight = int(datetime(2026, 11, 20, 23, tzinfo=UTC).timestamp() * 1000)
    walk = BudgetWalk()
    walk.charge(account, midnight - 1, cost_nusd=100)
    assert walk.blocked_by(account, midnight - 1, hold_nusd=1) == account[0]
    assert walk.blocked_by(account, midnight, hold_nusd=100) is None
    walk.charge(account, midnight, cost_nusd=100)
    assert walk.blocked_by(account, midnight + 1, hold_nusd=1) == account[0]


def test_a_budget_without_an_end_never_begins_again() -> None:
    """`once` is for good."""
    once = rule(100, period=BudgetPeriod.ONCE)
    account = (Account(account_id="payments/once", rule=once),)
    walk = BudgetWalk()
    walk.charge(account, 1, cost_nusd=100)
    assert walk.blocked_by(account, NOON_MS, hold_nusd=1) == account[0]


def test_grants_raise_the_limit_of_their_period_alone() -> None:
    """An admin's grant would exist under the new policy too."""
    account = (Account(account_id="payments/day", rule=rule(100)),)
    day_s = int(datetime(2026, 11, 20, tzinfo=UTC).timestamp())
    walk = BudgetWalk(granted_nusd={("payments/day", day_s): 50})
    assert walk.blocked_by(account, NOON_MS, hold_nusd=150) is None
    assert walk.blocked_by(account, NOON_MS, hold_nusd=151) == account[0]
    tomorrow = NOON_MS + timedelta(days=1) // timedelta(milliseconds=1)
    assert walk.blocked_by(account, tomorrow, hold_nusd=101) == account[0]


def test_two_accounts_are_asked_and_charged_each() -> None:
    """A request fits only if all of its budgets have room."""
    own, shared = (
        rule(100),
        rule(50, rule_id="cost_centre:CC-1/day", scope=BudgetScope.COST_CENTRE, team=None),
    )
    accounts = (
        Account(account_id="cost_centre:CC-1/day", rule=shared),
        Account(account_id="payments/day", rule=own),
    )
    walk = BudgetWalk()
    walk.charge(accounts, NOON_MS, cost_nusd=30)
    assert walk.blocked_by(accounts, NOON_MS, hold_nusd=21) == accounts[0]
    assert walk.blocked_by(accounts[1:], NOON_MS, hold_nusd=70) is None
    assert walk.blocked_by(accounts[1:], NOON_MS, hold_nusd=71) == accounts[1]


CHEAP_PROMPTS, CHEAP_ANSWERS = factories.price("1", "100"), factories.price("10", "1")
PACES = {"one": Pace(0.2, 0.2, 0.01), "two": Pace(3.0, 3.0, 0.01)}


def ordered(
    *deployments: Deployment,
    of: Alike | None = None,
    prices: dict[str, Price] | None = None,
    routes: dict[str, Route] | None = None,
    paces: Mapping[str, Pace] = PACES,
    **route: Any,
) -> Ordering | None:
    """How requests are ordered on a route over these deployments."""
    known = deployments or (factories.deployment("one"), factories.deployment("two"))
    own = tuple(
        one.name
        for one in known
        if not (routes and any(one.name in r.deployments for r in routes.values()))
    )
    asked = Route(**{"name": "assistant", "deployments": own, "objective": "cheapest"} | route)
    policy = factories.policy(*known, routes={"assistant": asked} | (routes or {}))
    found = {one.name: (prices or {}).get(one.name, OLD) for one in known}
    return orderer_of(
        of or alike(), factories.version(policy), prices=found, place=PLACE, paces=paces
    )


def goes(ordering: Ordering | None, request: PastRequest) -> str | None:
    assert ordering is not None, "this route was expected to have an order"
    return ordering.fate(request).destination


def test_each_request_is_ordered_by_its_own_tokens() -> None:
    """A long prompt and a long answer are cheapest at different places, though all else of them is
    alike.
    """
    found = ordered(prices={"one": CHEAP_PROMPTS, "two": CHEAP_ANSWERS})
    assert goes(found, past(input_tokens=5000, output_tokens=10)) == "one"
    assert goes(found, past(input_tokens=100, output_tokens=900)) == "two"
    assert goes(found, past(input_tokens=None, output_tokens=None)) == "two", (
        "as would have been expected then"
    )
    assert goes(found, past(input_tokens=0, output_tokens=0)) == "one"


@given(st.integers(1, 10**6), st.integers(0, 10**5), st.integers(0, 100))
def test_under_an_unchanged_policy_nothing_seems_to_move(
    input_tokens: int, output_tokens: int, cached_tokens: int
) -> None:
    """A plan that moves requests although nothing changed would not be believed."""
    here = ordered(prices={"one": factories.price("0.5", "2"), "two": OLD})
    request = past(
        input_tokens=input_tokens, output_tokens=output_tokens, cached_input_tokens=cached_tokens
    )
    assert goes(here, request) == "one"
    spilled = alike(deployment="two", ranked=("two", "one"), missed=frozenset({"one"}))
    bounded = ordered(of=spilled, prices={"one": factories.price("0.5", "2")}, ttft_p95_s=1.0)
    assert goes(bounded, request) == "two"
    failed_over = alike(deployment="two", ranked=("one", "two"))
    assert (
        goes(ordered(of=failed_over, prices={"one": factories.price("0.5", "2")}), request) == "two"
    )


def test_a_bound_is_held_against_the_latencies_of_the_past() -> None:
    """A plan should show which requests a new bound would move."""
    dear = {"one": factories.price("9", "9")}
    assert goes(ordered(prices=dear), past()) == "two"
    assert goes(ordered(prices=dear, ttft_p95_s=1.0), past()) == "one"
    slow = factories.deployment("one", prior=LatencyPrior(ttft_s=9.0))
    unseen = ordered(
        slow, factories.deployment("two"), prices=dear, ttft_p95_s=1.0, paces={"two": PACES["two"]}
    )
    assert goes(unseen, past()) == "two", "what was never seen is expected as it is declared"


def test_a_request_is_degraded_as_it_would_be() -> None:
    """To the other route, at its price; a request degraded then stays at its deployment."""
    small = {"small": Route(name="small", deployments=("mini",))}
    every = (factories.deployment("two"), factories.deployment("mini"))
    found = ordered(*every, routes=small, ttft_p95_s=1.0, degrade_to="small")
    assert found is not None
    fate = found.fate(past())
    assert (fate.destination, fate.route and fate.route.name) == ("mini", "small")
    fast = {"two": Pace(0.1, 0.1, 0.0)}
    then = alike(deployment="mini", ranked=("mini", "two"), missed=frozenset({"two"}))
    assert (
        goes(
            ordered(*every, of=then, routes=small, ttft_p95_s=1.0, degrade_to="small", paces=fast),
            past(),
        )
        == "mini"
    )
    assert (
        goes(ordered(*every, routes=small, ttft_p95_s=1.0, degrade_to="small", paces=fast), past())
        == "two"
    )
    nowhere = {"small": Route(name="small", deployments=("us",))}
    denied = factories.deployment("us", operations=frozenset({Operation.EMBEDDINGS}))
    assert (
        goes(ordered(every[0], denied, routes=nowhere, ttft_p95_s=1.0, degrade_to="small"), past())
        == "two"
    )


def test_a_request_stays_at_its_replica() -> None:
    """Sessions are not recorded, and replicas are one engine: nothing moved."""
    replicas = [factories.deployment(name, group="qwen") for name in ("one", "two")]
    for name in ("one", "two"):
        assert (
            goes(ordered(*replicas, of=alike(deployment=name), objective="priority"), past())
            == name
        )
    assert goes(ordered(*replicas, of=alike(deployment="gone"), objective="priority"), past()) in (
        "one",
        "two",
    )


@pytest.mark.parametrize(
    ("of", "route"),
    [
        (alike(), {"objective": "priority"}),
        (alike(team="gone"), {}),
        (alike(route="gone"), {}),
        (alike(operation=Operation.EMBEDDINGS), {}),
    ],
)
def test_requests_without_an_order_share_one_decision(of: Alike, route: dict[str, Any]) -> None:
    """Millions of requests share a few hundred decisions if possible."""
    chat_only = frozenset({Operation.CHAT})
    several = [factories.deployment(name, operations=chat_only) for name in ("one", "two")]
    assert ordered(*several, of=of, **route) is None
