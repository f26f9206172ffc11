"""The past for a replay: every attempt in time order, with every input of its decision."""

from __future__ import annotations

from datetime import timedelta
from decimal import Decimal
from itertools import chain

from sqlalchemy import text

from gateway.domain.operation import Operation
from gateway.domain.pricing.tokens import TokenUsage, UsageSource
from gateway.domain.routing.replay import Alike, PastSpend
from gateway.reports.report import Dataset
from gateway.reports.reports import Reports
from gateway.storage.postgres.database import Database
from tests.reports.conftest import Write
from tests.storage.factories import NOON, event

HOUR = timedelta(hours=1)
FEATURES = {
    "max_output_tokens": 300,
    "input_bound_tokens": 2000,
    "capabilities": ["tools"],
    "features": ["store"],
    "class_source": "header",
    "data_tags": ["phi"],
    "choices": 2,
}


def test_an_attempt_is_read_with_all_that_its_decision_depended_on(
    finance: Reports, write: Write
) -> None:
    """A lost input would be missing in the decision."""
    usage = TokenUsage(input_tokens=1000, output_tokens=50, audio_input_tokens=10)
    write(
        event(
            1,
            features=FEATURES,
            decision={"ranked": ["down", "gpt-eu"]},
            service_tier="flex",
            usage=usage,
            usage_detail={"provider_cost_usd": "0.5", "queue_time": 0.5},
        )
    )
    with finance.past_traffic(since=NOON - HOUR, until=NOON + HOUR) as past:
        (request,) = chain.from_iterable(past.requests())
    assert request.alike == Alike(
        team="payments",
        project="checkout",
        key_id="k123456789",
        route="assistant",
        deployment="gpt-eu",
        model="gpt-5.5",
        region="eu",
        data_class="confidential",
        class_source="header",
        operation=Operation.CHAT,
        service_tier="flex",
        price_id="price_0123456789abcdef",
        capabilities=frozenset({"tools"}),
        features=frozenset({"store"}),
        data_tags=frozenset({"phi"}),
        ranked=("down", "gpt-eu"),
    )
    assert request.usage == usage
    assert request.at_ms == int(NOON.timestamp() * 1000)
    assert (
        request.cost_nusd,
        request.input_bound_tokens,
        request.max_output_tokens,
        request.choices,
    ) == (
        600_000,
        2000,
        300,
        2,
    )


def test_attempts_come_in_time_and_the_last_of_a_request_is_known(
    finance: Reports, write: Write
) -> None:
    """Budgets are walked in this order, and a request that was tried twice must not be counted
    twice.
    """
    write(
        event(3, at=NOON + timedelta(seconds=2)),
        event(2, attempt=2, at=NOON + timedelta(seconds=1)),
        event(2, attempt=1, at=NOON + timedelta(seconds=1), cost_nusd=0),
        event(1),
        event(4, at=NOON + HOUR),
        event(5, at=NOON - timedelta(milliseconds=1)),
        event(6, is_demo=True),
    )
    with finance.past_traffic(since=NOON, until=NOON + HOUR) as past:
        found = list(chain.from_iterable(past.requests()))
    assert [(one.at_ms - found[0].at_ms, one.is_followed) for one in found] == [
        (0, False),
        (1000, True),
        (1000, False),
        (2000, False),
    ]
    assert found[0].alike is found[3].alike, "what is alike is read once"
    with finance.past_traffic(since=NOON, until=NOON + HOUR, dataset=Dataset.DEMO) as past:
        assert len(list(chain.from_iterable(past.requests()))) == 1


def test_an_unknown_cost_is_null_and_its_hold_is_shown(finance: Reports, write: Write) -> None:
    """Unknown is never zero."""
    write(
        event(
            1,
            cost_nusd=None,
            held_nusd=77,
            usage=TokenUsage(),
            usage_source=UsageSource.UNKNOWN,
            lines=(),
        )
    )
    with finance.past_traffic(since=NOON - HOUR, until=NOON + HOUR) as past:
        (request,) = chain.from_iterable(past.requests())
    assert (request.cost_nusd, request.held_nusd, request.usage) == (None, 77, TokenUsage())


def test_speeds_are_medians_by_deployment(finance: Reports, write: Write) -> None:
    """An unmeasured time is not zero."""
    write(*(event(number, ttft_s=number / 10, tpot_s=None) for number in (1, 2, 9)))
    with finance.past_traffic(since=NOON - HOUR, until=NOON + HOUR) as past:
        assert past.speeds() == {"gpt-eu": (0.2, None)}


def test_earlier_spending_is_summed_by_quarter_hours(finance: Reports, write: Write) -> None:
    """Every time zone's midnight is at one; unknown costs count at their hold."""
    early = NOON - timedelta(minutes=50)
    write(
        event(1, at=early),
        event(2, at=early + timedelta(seconds=1)),
        event(3, at=NOON - timedelta(minutes=1), cost_nusd=None, held_nusd=5),
        event(4, at=NOON - 2 * HOUR),
        event(5),
    )
    slot = int(NOON.timestamp())
    with finance.past_traffic(since=NOON, until=NOON + HOUR) as past:
        assert list(past.spent_before(NOON - HOUR)) == [
            PastSpend("payments", "checkout", "k123456789", slot - 60 * 60, 1_200_000),
            PastSpend("payments", "checkout", "k123456789", slot - 15 * 60, 5),
        ]


def test_grants_are_known_by_account_and_period(finance: Reports, database: Database) -> None:
    """They raise the limit of their period under any policy."""
    with database.begin() as connection:
        connection.execute(
            text(
                "INSERT INTO tollgate.budget_grants (grant_id, account_id, starts_at, amount_nusd, "
                "reason, author) VALUES (gen_random_uuid(), 'payments/day', :noon, 5, 'r', 'a'), "
                "(gen_random_uuid(), 'payments/day', :noon, 6, 'r', 'a')"
            ),
            {"noon": NOON},
        )
    with finance.past_traffic(since=NOON, until=NOON + HOUR) as past:
        assert past.grants() == {("payments/day", int(NOON.timestamp())): 11}


def test_recent_traffic_is_by_team_and_route(finance: Reports, write: Write) -> None:
    """A plan names the recent users of a removed part."""
    write(
        event(1),
        event(2, route="small"),
        event(3, at=NOON - 3 * HOUR),
        event(4, cost_nusd=int(Decimal(1))),
    )
    assert finance.recent_traffic(NOON - HOUR) == {
        ("payments", "assistant"): 2,
        ("payments", "small"): 1,
    }
