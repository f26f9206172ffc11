"""Demo data: realistic, repeatable, and marked as demo."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime, timedelta
from itertools import islice

import pytest

from gateway.domain.ledger.usage_event import Outcome, UsageEvent
from gateway.domain.pricing.pricing import cost_nusd, lines
from gateway.domain.pricing.tokens import TokenKind, UsageSource
from gateway.services.demo_events import demo_events, demo_prices
from gateway.services.demo_teams import DEPLOYMENTS
from gateway.storage.policy.price_list import builtin_price

UNTIL = datetime(2026, 11, 20, 16, 40, tzinfo=UTC)
PRICES = demo_prices(
    {
        name: price
        for name, d in DEPLOYMENTS.items()
        if d.gpu is None
        and (price := builtin_price(provider=d.provider, model=d.model, base_url="", at=UNTIL))
    }
)


@pytest.fixture(scope="module")
def ninety_days() -> list[UsageEvent]:
    """Return the output of `tollgate demo-data`."""
    return list(demo_events(until=UNTIL, seed=7, prices=PRICES))


def test_demo_data_is_marked_and_priced_like_real_data(ninety_days: list[UsageEvent]) -> None:
    """Every line can be redone on its receipt, and nothing can be taken for real."""
    assert 20_000 <= len(ninety_days) <= 30_000
    assert all(one.is_demo for one in ninety_days)
    for one in ninety_days:
        if one.cost_nusd is not None:
            assert one.lines == lines(one.usage, PRICES[one.deployment])
            assert one.cost_nusd == cost_nusd(one.lines)
        else:
            assert (one.usage_source, one.usage.input_tokens) == (UsageSource.UNKNOWN, None)
            assert one.held_nusd


def test_demo_data_covers_every_dashboard_case(ninety_days: list[UsageEvent]) -> None:
    """Teams, both destinations, failures, retries, streams and plain answers, weekends."""
    assert len({one.team for one in ninety_days}) == 5
    assert {one.is_self_hosted for one in ninety_days} == {True, False}
    assert {Outcome.OK, Outcome.UPSTREAM_ERROR, Outcome.CLIENT_GONE} <= {
        one.outcome for one in ninety_days
    }
    assert any(one.attempt == 2 for one in ninety_days)
    assert all((one.ttft_s is None) or one.streamed for one in ninety_days)
    weekdays = Counter(one.occurred_at.weekday() for one in ninety_days)
    assert weekdays[6] * 3 < weekdays[2]
    assert ninety_days == sorted(ninety_days, key=lambda one: (one.request_id, one.attempt))
    assert ninety_days[-1].occurred_at <= UNTIL


def test_demo_data_shows_what_each_provider_reports(ninety_days: list[UsageEvent]) -> None:
    """Cached tokens, writes to the cache by lifetime, and reasoning, each with a line of its own
    price.
    """
    charged: dict[str, set[TokenKind]] = {}
    for one in ninety_days:
        assert one.usage.is_plausible
        charged.setdefault(one.provider, set()).update(line.kind for line in one.lines)
    read = {TokenKind.INPUT, TokenKind.CACHED_INPUT, TokenKind.OUTPUT}
    written = {TokenKind.CACHE_WRITE, TokenKind.CACHE_WRITE_1H}
    assert charged == {
        "vllm": read,
        "openai": read,
        "gemini": read,
        "groq": read,
        "anthropic": read | written,
        "bedrock": read | written,
    }
    assert {one.provider for one in ninety_days if one.usage.reasoning_tokens} == charged.keys()
    assert {one.operation for one in ninety_days} == {"chat", "messages"}


def test_demo_data_made_again_is_the_same(ninety_days: list[UsageEvent]) -> None:
    """Running the command twice inserts nothing twice."""
    again = islice(demo_events(until=UNTIL, seed=7, prices=PRICES), 500)
    assert list(again) == ninety_days[:500]


def test_topping_up_adds_a_day_and_changes_no_other(ninety_days: list[UsageEvent]) -> None:
    """A demo that is topped up every day must not count its days twice."""
    tomorrow = list(demo_events(until=UNTIL + timedelta(days=1), days=2, seed=7, prices=PRICES))
    today = [one for one in ninety_days if one.occurred_at.date() == UNTIL.date()]
    assert tomorrow[: len(today)] == today
    assert {one.occurred_at.date() for one in tomorrow} == {
        UNTIL.date(),
        UNTIL.date() + timedelta(days=1),
    }


@pytest.mark.parametrize("days_later", range(0, 90, 30))
def test_any_ninety_days_hold_an_incident(days_later: int) -> None:
    """Whenever the demo is made, there is something to find in it."""
    until = UNTIL + timedelta(days=days_later)
    failed = Counter(
        one.occurred_at.date()
        for one in demo_events(until=until, seed=7, prices=PRICES)
        if one.outcome is Outcome.UPSTREAM_ERROR
    )
    assert max(failed.values()) > 10
