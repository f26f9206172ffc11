"""The dated record of prices, and the built-in list against its own calculator."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pytest
from genai_prices import Usage, calc_price
from genai_prices.data_snapshot import get_snapshot
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import text

from gateway.domain.pricing import MTOK, lines
from gateway.domain.tokens import TokenKind, TokenUsage
from gateway.storage.database import Database
from gateway.storage.prices import PriceStore, builtin_price, price_to_row
from tests.storage.factories import NOON, price

MODELS = [
    ("openai", "gpt-4o", "https://api.openai.com/v1"),
    ("openai", "gpt-4o-mini", "https://eu.api.openai.com/v1"),
    ("openai", "gpt-5", "https://api.openai.com/v1"),
    ("openai", "gpt-5.5", "https://api.openai.com/v1"),
    ("openai", "o3", "https://api.openai.com/v1"),
    ("openai_compatible", "claude-sonnet-4-5", "https://api.anthropic.com/v1"),
    ("openai_compatible", "gemini-2.5-pro", "https://generativelanguage.googleapis.com/v1beta/openai"),
    ("openai_compatible", "deepseek-chat", "https://api.deepseek.com"),
    ("openai_compatible", "llama-3.3-70b-versatile", "https://api.groq.com/openai/v1"),
    ("openai_compatible", "grok-4", "https://api.x.ai/v1"),
]
AT_A_TIER = (0, 1, 128_000, 200_000, 200_001, 272_000, 272_001, 1_000_000)


def _dated(database: Database) -> list[tuple[object, ...]]:
    with database.begin() as connection:
        rows = connection.execute(
            text(
                "SELECT deployment, price_id, policy_version, valid_from FROM tollgate.deployment_prices "
                "ORDER BY deployment, valid_from"
            )
        )
        return [tuple(row) for row in rows]


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.sampled_from(MODELS),
    st.sampled_from(AT_A_TIER) | st.integers(0, 2_000_000),
    st.integers(0, 100),
    st.integers(0, 100_000),
)
def test_the_built_in_list_charges_what_its_own_calculator_does(
    model: tuple[str, str, str], input_tokens: int, cached_percent: int, output_tokens: int
) -> None:
    """Two ways to the same bill, tiers and cache included; ours rounds each line to the nano-dollar."""
    provider, name, url = model
    ours = builtin_price(provider=provider, model=name, base_url=url, at=NOON)
    assert ours is not None
    cached = input_tokens * cached_percent // 100
    usage = TokenUsage(input_tokens=input_tokens, cached_input_tokens=cached, output_tokens=output_tokens)
    exact = sum((line.tokens * line.usd_per_mtok / MTOK for line in lines(usage, ours)), Decimal(0))
    theirs = calc_price(
        Usage(input_tokens=input_tokens, cache_read_tokens=cached, output_tokens=output_tokens),
        model_ref=name,
        provider_id=ours.provider,
        genai_request_timestamp=NOON,
    )
    assert exact == theirs.total_price


def test_a_price_is_that_of_its_day() -> None:
    """o3 cost five times as much until June 2025."""
    before, after = (
        builtin_price(provider="openai", model="o3", base_url="", at=datetime(2025, month, 1, 12, tzinfo=UTC))
        for month in (5, 7)
    )
    assert before is not None
    assert after is not None
    assert before.rate(TokenKind.INPUT, input_tokens=1) == Decimal(10)
    assert after.rate(TokenKind.INPUT, input_tokens=1) == Decimal(2)
    assert before.price_id != after.price_id
    assert after.source.startswith("genai-prices 0")


@pytest.mark.parametrize(
    ("provider", "model", "url"),
    [
        ("openai", "no-such-model", "https://api.openai.com/v1"),
        ("openai", "whisper-1", "https://api.openai.com/v1"),  # by the minute
        ("openai_compatible", "gpt-4o", "https://llm.partner.example/v1"),
        ("openai_compatible", "sonar", "https://api.perplexity.ai"),  # a fee per request beside the tokens
        ("vllm", "qwen3-32b", "http://127.0.0.1:8001/v1"),
        ("vllm", "gpt-4o", "https://api.openai.com/v1"),
    ],
)
def test_what_the_list_cannot_price_is_none_and_never_zero(provider: str, model: str, url: str) -> None:
    """None is refused with 402; a zero would be served for nothing."""
    assert builtin_price(provider=provider, model=model, base_url=url, at=NOON) is None


def test_no_price_of_the_whole_list_is_free_or_without_input() -> None:
    """Whatever the list has in its two thousand entries, nothing of it is billed at zero."""
    found = 0
    for listed in get_snapshot().providers:
        url = listed.api_pattern.replace("\\", "").split("(")[0]
        for model in listed.models:
            made = builtin_price(provider="openai_compatible", model=model.id, base_url=url, at=NOON)
            if made is not None:
                found += 1
                assert made.dearest(*TokenKind) > 0
                assert made.rate(TokenKind.INPUT, input_tokens=0) is not None
    assert found > 500


def test_an_embedding_model_has_a_price_for_input_alone() -> None:
    """It writes nothing; a made-up output price would inflate every hold."""
    made = builtin_price(provider="openai", model="text-embedding-3-small", base_url="", at=NOON)
    assert made is not None
    assert {rate.kind for rate in made.rates} == {TokenKind.INPUT}


def test_a_price_is_dated_once_however_often_it_is_ensured(database: Database) -> None:
    """Every start of every replica asks again."""
    store = PriceStore(database)
    for n in range(3):
        store.ensure({"gpt-eu": price(), "gpt-us": price()}, policy_version=1, at=NOON + timedelta(hours=n))
    assert _dated(database) == [("gpt-eu", price().price_id, 1, NOON), ("gpt-us", price().price_id, 1, NOON)]


def test_a_new_rate_is_a_new_dated_entry(database: Database) -> None:
    """Last quarter must add up next year."""
    store, later = PriceStore(database), NOON + timedelta(days=1)
    store.ensure({"gpt-eu": price("2.50")}, policy_version=1, at=NOON)
    store.ensure({"gpt-eu": price("2.75")}, policy_version=2, at=later)
    store.ensure({"gpt-eu": price("2.50")}, policy_version=3, at=later + timedelta(days=1))
    assert [row[1] for row in _dated(database)] == [price(p).price_id for p in ("2.50", "2.75", "2.50")]


def test_a_replica_that_lags_behind_does_not_turn_the_price_back(database: Database) -> None:
    """During a roll-out both policies are in use; the record follows the newer."""
    store = PriceStore(database)
    store.ensure({"gpt-eu": price("2.75")}, policy_version=2, at=NOON)
    store.ensure({"gpt-eu": price("2.50")}, policy_version=1, at=NOON + timedelta(seconds=1))
    assert [row[1:3] for row in _dated(database)] == [(price("2.75").price_id, 2)]


def test_a_clock_that_runs_behind_still_dates_after_the_last_entry(database: Database) -> None:
    """Else the old price would stay the latest."""
    store = PriceStore(database)
    store.ensure({"gpt-eu": price("2.50")}, policy_version=1, at=NOON)
    store.ensure({"gpt-eu": price("2.75")}, policy_version=2, at=NOON - timedelta(hours=1))
    assert [row[1] for row in _dated(database)] == [price("2.50").price_id, price("2.75").price_id]


def test_replicas_that_ensure_at_the_same_time_date_once(database: Database, database_url: str) -> None:
    """All hear of a new policy in the same moment, and do it with the gateway's role."""
    gateway = Database(database_url, role="tollgate_gateway")
    prices = {f"d{n}": price() for n in range(20)}

    def ensure(n: int) -> None:
        PriceStore(gateway).ensure(prices, policy_version=1, at=NOON + timedelta(milliseconds=n))

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(ensure, range(6)))
    assert len(_dated(database)) == 20
    gateway.close()


def test_a_stored_price_has_plain_decimals(database: Database) -> None:
    """A rate with an exponent is read as another number by half the tools."""
    PriceStore(database).ensure({"gpt-eu": price("1E+1")}, policy_version=1, at=NOON)
    with database.begin() as connection:
        row = connection.execute(text("SELECT price_id, provider, model, source, rates FROM finance.prices")).one()
    stored = price_to_row(price("1E+1"))
    assert tuple(row) == (*list(stored.values())[:4], json.loads(stored["rates"]))
    assert row.rates[0] == {"kind": "input", "usd_per_mtok": "10", "from_input_tokens": 0}
