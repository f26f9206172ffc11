"""A plan: harmful changes first, the effect on past requests, and the one sentence at its end."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from typing import Any

import pytest

from gateway.domain.budgets.budgets import BudgetKind, BudgetPeriod, BudgetRule, BudgetScope
from gateway.domain.policy.policy import Policy, Route
from gateway.domain.pricing.pricing import Price
from gateway.domain.routing.replay import Alike, PastRequest, PastSpeed, PastSpend, Place
from gateway.services.policy.past_prices import PastPrices
from gateway.services.policy.plan import HarmfulChange, PlanContext, plan
from gateway.services.policy.plan_messages import notes, sentence
from gateway.services.policy.replay import Replay, Way, replay
from tests import factories
from tests.unit.ledger.test_replay import NOON_MS, OLD, PLACE, alike, past

NEW = factories.price("2", "7")


@dataclass
class FakePast:
    """The past, in memory."""

    made: Sequence[PastRequest]
    spent: Sequence[PastSpend] = ()
    speed: Mapping[str, PastSpeed] = field(default_factory=dict)
    granted: Mapping[tuple[str, int], int] = field(default_factory=dict)
    since: datetime = datetime(2026, 11, 20, 6, tzinfo=UTC)
    until: datetime = datetime(2026, 11, 22, tzinfo=UTC)

    def requests(self) -> Iterator[Sequence[PastRequest]]:
        yield self.made[:2]
        yield self.made[2:]

    def speeds(self) -> Mapping[str, PastSpeed]:
        return self.speed

    def spent_before(self, first: datetime) -> Iterable[PastSpend]:
        return (
            one for one in self.spent if first.timestamp() <= one.slot_s < self.since.timestamp()
        )

    def grants(self) -> Mapping[tuple[str, int], int]:
        return self.granted


def played(policy: Policy, made: FakePast | Sequence[PastRequest], **prices: Price) -> Replay:
    source = made if isinstance(made, FakePast) else FakePast(made)

    def builtin(
        *, provider: str, model: str, base_url: str, region: str = "", at: datetime
    ) -> Price | None:
        return prices.get(model.replace("-", "_"), NEW)

    past_prices = PastPrices(policy, builtin=builtin, book=None)
    return replay(factories.version(policy), source, prices=past_prices, place=PLACE)


def two(**changes: Any) -> Policy:
    return factories.policy(factories.deployment("two", region="eu-fr"), **changes)


def test_requests_are_summed_by_team_and_route() -> None:
    """Every request is somewhere, once."""
    other = alike(team="search", route="small")
    policy = two()
    found = played(policy, [past(), past(), past(other)])
    assert [(t.team, t.route, t.requests, t.refusals) for t in found.tallies] == [
        ("payments", "assistant", 2, 0),
        ("search", "small", 1, 1),
    ]
    payments, search = found.tallies
    assert payments.moved == {Way("one", "two"): 2}
    assert (payments.cost_before_nusd, payments.cost_after_nusd) == (2_800_000, 2 * 2_700_000)
    assert (search.cost_before_nusd, search.cost_after_nusd) == (1_400_000, 0)
    assert (found.requests, found.cost_before_nusd, found.cost_after_nusd) == (
        3,
        4_200_000,
        5_400_000,
    )
    assert (found.regions_before, found.regions_after) == ({"eu-de": 3}, {"eu-fr": 2})


def test_similar_requests_are_distinguished_by_class() -> None:
    """Decisions are remembered by all they depend on: without the class one answer would stand for
    both.
    """
    us = factories.policy(factories.deployment("us", region="us-east"))
    raised = alike(data_class="confidential", class_source="header")
    (tally,) = played(us, [past(), past(raised), past(), past(raised)]).tallies
    assert (tally.requests, tally.refused.total(), tally.ways[Way("one", "us")].requests) == (
        4,
        2,
        2,
    )


def test_requests_of_one_kind_go_by_their_own_tokens() -> None:
    """If the objective depends on tokens, similar requests part: each way has its own count,
    cost and latency.
    """
    deployments = (factories.deployment("one"), factories.deployment("two", model="m-2"))
    route = Route(name="assistant", deployments=("one", "two"), objective="cheapest")
    document = factories.policy(*deployments, routes={"assistant": route})
    of = alike()
    made = [
        past(of, input_tokens=9000, output_tokens=10),
        past(of, input_tokens=10, output_tokens=900),
        past(of, input_tokens=9001, output_tokens=10),
    ]
    source = FakePast(made, speed={"one": PastSpeed(0.2, 0.01), "two": PastSpeed(None, None)})
    found = played(
        document, source, m_1=factories.price("1", "100"), m_2=factories.price("10", "1")
    )
    (tally,) = found.tallies
    assert {way: moved.requests for way, moved in tally.ways.items()} == {
        Way("one", "one"): 2,
        Way("one", "two"): 1,
    }
    assert (tally.moved, tally.ways[Way("one", "two")].to_other_model) == (
        {Way("one", "two"): 1},
        1,
    )


def test_an_attempt_that_was_followed_is_not_a_request() -> None:
    """A request that was tried twice is one request; the first try's cost is listed separately."""
    found = played(two(), [past(is_followed=True, cost_nusd=5), past()])
    assert (found.requests, found.earlier_attempts, found.earlier_cost_nusd) == (1, 1, 5)
    assert any("1 attempts failed" in note for note in notes(found))


def test_an_unknown_cost_is_in_neither_figure() -> None:
    """A difference of unlike things is no difference."""
    found = played(two(), [past(cost_nusd=None, held_nusd=9), past()])
    (tally,) = found.tallies
    assert (tally.unknown, tally.cost_before_nusd, tally.cost_after_nusd) == (
        1,
        1_400_000,
        2_700_000,
    )
    assert any(note.startswith("1 have no cost") for note in notes(found))


def budgeted(limit_nusd: int) -> Policy:
    rule = BudgetRule(
        rule_id="payments/day",
        scope=BudgetScope.TEAM,
        team="payments",
        owner="payments",
        period=BudgetPeriod.DAY,
        limit_nusd=limit_nusd,
    )
    return two(teams={"payments": factories.team(budgets=(rule,))})


# The holds and costs of two requests there: the second fits as long as the first's cost and its own
# hold do.
HOLD, COST = 2000 * 2000 + 500 * 7000 + 1, 2_700_000  # one more: each side may be rounded up


def test_budgets_are_walked_in_time_and_begin_again() -> None:
    """Blocked requests are counted, cost nothing, and take nothing from those that come after."""
    day_ms = timedelta(days=1) // timedelta(milliseconds=1)
    made = [past(), past(at_ms=NOON_MS + 1), past(at_ms=NOON_MS + 2), past(at_ms=NOON_MS + day_ms)]
    (tally,) = played(budgeted(COST + HOLD), made).tallies
    assert (tally.blocked, tally.cost_after_nusd) == ({"payments/day": 1}, 3 * COST)
    (tally,) = played(budgeted(COST + HOLD - 1), made).tallies
    assert (tally.blocked, tally.cost_after_nusd) == ({"payments/day": 2}, 2 * COST)


def test_earlier_spending_of_the_running_period_counts() -> None:
    """A replay that begins in the middle of a day would else find its budget whole."""
    dawn = int(datetime(2026, 11, 20, 3, tzinfo=UTC).timestamp())
    spent = [PastSpend("payments", None, "k", dawn, HOLD), PastSpend("gone", None, "k", dawn, HOLD)]
    (tally,) = played(budgeted(2 * HOLD - 1), FakePast([past()], spent)).tallies
    assert tally.blocked.total() == 1
    (tally,) = played(budgeted(2 * HOLD), FakePast([past()], spent)).tallies
    assert tally.blocked.total() == 0


def test_an_unknown_cost_takes_its_hold_from_the_budget() -> None:
    """As in the ledger: it counts at its hold until somebody knows better."""
    made = [past(cost_nusd=None, held_nusd=HOLD), past(at_ms=NOON_MS + 1)]
    assert played(budgeted(2 * HOLD - 1), made).tallies[0].blocked.total() == 1
    assert played(budgeted(2 * HOLD), made).tallies[0].blocked.total() == 0


def test_latency_is_weighted_by_traffic() -> None:
    """A median of an unused deployment has no meaning, and is not invented."""
    fast = {"one": PastSpeed(1.0, 0.02), "two": PastSpeed(0.5, 0.01)}
    found = played(two(), FakePast([past(), past()], speed=fast))
    assert found.tallies[0].latency(fast) == (1.0, 0.5, 0.02, 0.01)
    (tally,) = played(two(), FakePast([past()], speed={"one": PastSpeed(1.0, None)})).tallies
    assert tally.latency({"one": PastSpeed(1.0, None)}) == (1.0, None, None, None)


def test_a_price_that_changes_inside_an_hour_is_looked_up_by_the_minute() -> None:
    """Some lists have cheap hours that begin at half past."""
    half_past = datetime(2026, 11, 20, 12, 30, tzinfo=UTC)

    def builtin(
        *, provider: str, model: str, base_url: str, region: str = "", at: datetime
    ) -> Price | None:
        return OLD if at < half_past else NEW

    prices = PastPrices(two(), builtin=builtin, book=None)
    minute_ms = 60_000
    found = [
        prices.prices(prices.at(NOON_MS + minute * minute_ms))["two"]
        for minute in (0, 29, 30, 59, 61)
    ]
    assert found == [OLD, OLD, NEW, NEW, NEW]
    assert prices.at(NOON_MS - 3 * 60 * minute_ms) == prices.at(NOON_MS)


# ---- the sentence

NOW = datetime(2026, 11, 22, 12, tzinfo=UTC)


def sentence_of(policy: Policy, *made: PastRequest, now: datetime = NOW) -> str:
    return sentence(played(policy, made), policy, now=now)


def test_the_sentence_says_cost_refusals_and_places() -> None:
    """It is the one line that everybody reads."""
    legal = past(alike(team="legal"))
    assert sentence_of(two(), past(), legal, legal, legal) == (
        "November would have cost $0.002900 less; 3 requests of team legal would be refused; "
        "nothing leaves the EU."
    )


def test_the_sentence_without_a_difference() -> None:
    """Nothing is made of nothing."""
    same = factories.policy()
    assert sentence(played(same, [past()], m_1=OLD), same, now=NOW) == (
        "November would have cost the same; no request would be refused; nothing leaves the EU."
    )
    assert sentence_of(same) == "No request was made in this time, so there is nothing to compare."


def test_the_sentence_names_new_and_old_places() -> None:
    """Destinations are named even if they leave a union."""
    us = factories.policy(factories.deployment("us", region="us-east"))
    early = past(at_ms=NOON_MS - timedelta(days=40) // timedelta(milliseconds=1))
    assert sentence_of(us, early, past()) == (
        "11 October to 20 November would have cost $0.002600 more; no request would be refused; "
        "some would also go to us-east; nothing would go to eu-de any more."
    )
    there = past(alike(region="us-east", deployment="us", ranked=("us",)))
    assert sentence_of(us, there, now=NOW.replace(year=2027)).startswith("November 2026 would")
    assert sentence_of(us, there).endswith("it all goes to the same regions: us-east.")


def test_the_sentence_names_few_teams_and_counts_many() -> None:
    """A sentence of forty teams would not be read."""
    few = [past(alike(team="legal")), past(alike(team="legal")), past(alike(team="search"))]
    assert "; 2 requests of team legal and 1 of team search would be refused." in sentence_of(
        two(), *few
    )
    many = [past(alike(team=f"t{number}")) for number in range(4)]
    assert "; 4 requests of 4 teams would be refused." in sentence_of(two(), *many)


def test_the_sentence_names_the_requests_that_budgets_stop() -> None:
    """A plan that saves money by stopping work must say so."""
    assert "; 1 would not fit its budget;" in sentence_of(
        budgeted(HOLD), past(), past(at_ms=NOON_MS + 1)
    )


def test_notes_name_the_unknowns() -> None:
    """Models count tokens differently, and refused requests left no trace."""
    policy = factories.policy(factories.deployment("two", model="m-2"))
    found = notes(played(policy, [past(), past()]))
    assert any("2 go to another model" in note for note in found)
    assert any("How fast two answers is not known" in note for note in found)
    assert any("refused request leaves no event" in note for note in found)


# ---- harmful changes


def around(**changes: Any) -> PlanContext:
    values: dict[str, Any] = {
        "live_keys": {},
        "traffic": {},
        "unresolved": {},
        "prices": {"one": OLD, "two": OLD, "us": OLD},
        "place": Place(gateway_region="unknown", day=date(2026, 11, 22)),
    }
    return PlanContext(**values | changes)


def _month(**changes: Any) -> BudgetRule:
    """The hard monthly budget of a team, unless changed."""
    values: dict[str, Any] = {
        "rule_id": "payments/month",
        "scope": BudgetScope.TEAM,
        "team": "payments",
        "owner": "payments",
        "period": BudgetPeriod.MONTH,
        "limit_nusd": 5_000_000_000,
    }
    return BudgetRule(**values | changes)


def hurts(before: Policy | None, after: Policy, **changes: Any) -> tuple[HarmfulChange, ...]:
    made = plan(
        None if before is None else factories.version(before),
        factories.version(after, number=8),
        around=around(**changes),
        replay=None,
        now=NOW,
    )
    return made.hurts


def test_a_removed_team_warns_of_its_live_keys() -> None:
    """Their next request is a 401."""
    before = factories.policy(
        teams={"payments": factories.team(), "legal": factories.team("legal")}
    )
    (hurt,) = hurts(before, factories.policy(), live_keys={"legal": 2, "payments": 1})
    assert (hurt.kind, hurt.name) == ("team", "legal")
    assert "2 live keys" in hurt.message
    assert hurts(before, factories.policy(), live_keys={"payments": 1}) == ()


@pytest.mark.parametrize(
    ("left", "change"),
    [
        ((), "is removed"),
        ((_month(kind=BudgetKind.SOFT),), "becomes soft"),
        ((_month(rule_id="other", kind=BudgetKind.SOFT),), "becomes soft"),
        ((_month(rule_id="payments/day", period=BudgetPeriod.DAY),), "is removed"),
        ((_month(limit_nusd=9_000_000_000),), None),
        ((_month(rule_id="renamed"),), None),
    ],
)
def test_a_hard_budget_that_bounds_nothing_any_more_hurts(
    left: tuple[BudgetRule, ...], change: str | None
) -> None:
    """A file that was cut short still parses; its plan said that no change hurts."""
    before = factories.policy(teams={"payments": factories.team(budgets=(_month(),))})
    after = factories.policy(teams={"payments": factories.team(budgets=left)})
    found = [(hurt.kind, hurt.is_note, hurt.message) for hurt in hurts(before, after)]
    if change is None:
        assert found == []
        return
    message = f"hard budget payments/month {change}: nothing stops the spending at USD 5.00 a month"
    assert found == [("budget", False, message)]
    removed = factories.policy(teams={"legal": factories.team("legal")})
    assert hurts(before, removed) == ()  # its keys are turned away


def test_a_removed_route_warns_if_it_was_used_last_week() -> None:
    """An unused one may go without a remark."""
    more = {
        name: Route(name=name, deployments=("one",)) for name in ("assistant", "small", "unused")
    }
    before = factories.policy(routes=more, teams={"payments": factories.team(routes=tuple(more))})
    (hurt,) = hurts(before, factories.policy(), traffic={("payments", "small"): 3})
    assert (hurt.kind, hurt.name) == ("route", "small")
    assert "3 requests last week" in hurt.message
    kept = factories.policy(routes=more)
    (hurt,) = hurts(before, kept, traffic={("payments", "small"): 1, ("payments", "assistant"): 9})
    assert (hurt.kind, hurt.name) == ("route", "payments/small")


def test_a_route_without_an_eligible_deployment_hurts() -> None:
    """Every request on it will be refused, which the difference does not show."""
    us = factories.policy(
        factories.deployment("us", region="us-east"),
        teams={"payments": factories.team(data_class=max(factories.policy().classes))},
    )
    (hurt,) = hurts(None, us)
    assert (hurt.kind, hurt.name) == ("eligible", "payments/assistant")
    assert "residency" in hurt.message


def test_missing_prices_and_secrets_are_named() -> None:
    """Without a price requests are refused; a secret may exist on the gateways' machines."""
    found = hurts(None, two(), prices={}, unresolved={"two": "env:KEY is not set"})
    assert [(hurt.kind, hurt.is_note) for hurt in found] == [
        ("eligible", False),
        ("price", False),
        ("secret", True),
    ]


def test_a_plan_without_a_replay_says_how_to_get_one() -> None:
    """The sentence is there either way."""
    before, after = factories.version(), factories.version(two(), number=8)
    made = plan(before, after, around=around(), replay=None, now=NOW)
    assert made.version == 7
    assert made.sentence.startswith("3 changes; none of them hurts; --replay 30d shows")
    assert (
        plan(before, before, around=around(), replay=None, now=NOW).sentence
        == "Nothing changes in meaning."
    )
    unpriced = plan(before, after, around=around(prices={}), replay=None, now=NOW)
    assert unpriced.sentence.startswith("3 changes; they hurt in 2 ways; --replay 30d shows")


def test_a_name_of_an_alike_is_never_taken_by_another() -> None:
    """Readers may drop objects: a reused identity must not bring an old decision back."""

    def fresh() -> Iterator[PastRequest]:
        for number in range(200):
            yield past(Alike(**{**_fields(alike()), "team": "payments" if number % 2 else "gone"}))

    found = played(two(), tuple(fresh()))
    assert [(tally.team, tally.requests) for tally in found.tallies] == [
        ("gone", 100),
        ("payments", 100),
    ]


def _fields(of: Alike) -> dict[str, Any]:
    return {name: getattr(of, name) for name in Alike.__dataclass_fields__}
