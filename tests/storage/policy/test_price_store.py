"""The dated record of prices, and the built-in list compared with its own calculator."""

from __future__ import annotations

import json
import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime, time, timedelta
from decimal import Decimal

import pytest
from genai_prices import Usage, calc_price
from genai_prices.data_snapshot import get_snapshot
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import text
from sqlalchemy.exc import IntegrityError

from gateway.domain.money import usd_from_nusd
from gateway.domain.policy.api_keys import KeyRecord
from gateway.domain.policy.price_book import (
    EVER,
    DailyWindow,
    Dated,
    ModelKey,
    NewEntry,
    PriceOrigin,
)
from gateway.domain.pricing.pricing import MTOK, Price, Rate, UnknownTier, cost_nusd, lines
from gateway.domain.pricing.tokens import TokenKind, TokenUsage
from gateway.errors import DatabaseUnavailable
from gateway.services.policy.apply import apply_policy
from gateway.services.snapshot.source import StoredSnapshots
from gateway.storage.deployments.ejections import EjectionStore
from gateway.storage.policy.policies import PolicyStore
from gateway.storage.policy.price_list import all_keys, builtin_price, listed_price, schedule
from gateway.storage.policy.prices import (
    PriceStore,
    price_to_row,
    rate_from_row,
)
from gateway.storage.postgres.database import Database
from gateway.wire.parsed_policy import parse
from tests.factories import calibration, deployment, imported
from tests.fakes import FakeClock
from tests.policy.documents import changed
from tests.storage.factories import NOON, price

MODELS = [
    ("openai", "gpt-4o", "https://api.openai.com/v1"),
    ("openai", "gpt-4o-mini", "https://eu.api.openai.com/v1"),
    ("openai", "gpt-5", "https://api.openai.com/v1"),
    ("openai", "gpt-5.5", "https://api.openai.com/v1"),
    ("openai", "o3", "https://api.openai.com/v1"),
    ("openai_compatible", "claude-sonnet-4-5", "https://api.anthropic.com/v1"),
    (
        "openai_compatible",
        "gemini-2.5-pro",
        "https://generativelanguage.googleapis.com/v1beta/openai",
    ),
    ("openai_compatible", "deepseek-chat", "https://api.deepseek.com"),
    ("openai_compatible", "llama-3.3-70b-versatile", "https://api.groq.com/openai/v1"),
    ("openai_compatible", "grok-4", "https://api.x.ai/v1"),
]
AT_A_TIER = (0, 1, 128_000, 200_000, 200_001, 272_000, 272_001, 1_000_000)


def _dated(database: Database) -> list[tuple[object, ...]]:
    with database.begin() as connection:
        rows = connection.execute(
            text(
                "SELECT deployment, price_id, policy_version, valid_from FROM "
                "tollgate.deployment_prices ORDER BY deployment, valid_from"
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
def test_the_built_in_list_charges_like_its_own_calculator(
    model: tuple[str, str, str], input_tokens: int, cached_percent: int, output_tokens: int
) -> None:
    """Both calculations must give the same bill, including tiers and cache; ours rounds each
    line to the nano-dollar.
    """
    provider, name, url = model
    ours = builtin_price(provider=provider, model=name, base_url=url, at=NOON)
    assert ours is not None
    cached = input_tokens * cached_percent // 100
    usage = TokenUsage(
        input_tokens=input_tokens, cached_input_tokens=cached, output_tokens=output_tokens
    )
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
        builtin_price(
            provider="openai", model="o3", base_url="", at=datetime(2025, month, 1, 12, tzinfo=UTC)
        )
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
        ("openai", "whisper-1", "https://api.openai.com/v1"),  # charged by the minute
        ("openai_compatible", "gpt-4o", "https://llm.partner.example/v1"),
        (
            "openai_compatible",
            "sonar",
            "https://api.perplexity.ai",
        ),  # a fee per request in addition to the tokens
        (
            "openai_compatible",
            "sonar-deep-research",
            "https://api.perplexity.ai",
        ),  # also charges citations and searches
        (
            "openai_compatible",
            "voxtral-small-24b-2507",
            "https://api.mistral.ai/v1",
        ),  # also charges audio by the hour
        (  # drawn images cost twelve times as much as text, and the answer does not separate them
            "openai_compatible",
            "gemini-2.5-flash-image",
            "https://generativelanguage.googleapis.com/v1beta/openai",
        ),
        ("vllm", "qwen3-32b", "http://127.0.0.1:8001/v1"),
        ("vllm", "gpt-4o", "https://api.openai.com/v1"),
    ],
)
def test_an_unpriced_model_has_no_price_and_never_zero(provider: str, model: str, url: str) -> None:
    """A missing price is refused with 402; a zero price would serve the model for free."""
    assert builtin_price(provider=provider, model=model, base_url=url, at=NOON) is None


def test_no_price_of_the_whole_list_is_free_or_without_input() -> None:
    """For any of the list's two thousand entries, nothing is billed at zero."""
    found = 0
    for listed in get_snapshot().providers:
        url = re.sub(r"[\\[\]]", "", listed.api_pattern).split("(")[0]
        for model in listed.models:
            made = builtin_price(
                provider="openai_compatible", model=model.id, base_url=url, at=NOON
            )
            if made is not None:
                found += 1
                assert made.dearest(*TokenKind) > 0
                assert made.rate(TokenKind.INPUT, input_tokens=0) is not None
    assert found > 500


def test_an_embedding_model_has_a_price_for_input_alone() -> None:
    """It generates no output; an invented output price would inflate every hold."""
    made = builtin_price(provider="openai", model="text-embedding-3-small", base_url="", at=NOON)
    assert made is not None
    assert {rate.kind for rate in made.rates if rate.service_tier is None} == {TokenKind.INPUT}


LONG_AGO = datetime(2025, 12, 1, 12, tzinfo=UTC)
GPT_5 = {"provider": "openai", "model": "gpt-5", "base_url": ""}
A_MILLION_EACH = TokenUsage(input_tokens=10**6, output_tokens=10**6)


def _cost_usd(price: Price | None, usage: TokenUsage, tier: str | None = None) -> Decimal:
    assert price is not None
    return usd_from_nusd(cost_nusd(lines(usage, price.for_tier(tier))))


@pytest.mark.parametrize(
    ("provider", "model", "url", "usage", "usd"),
    [
        ("openai", "gpt-4o", "", TokenUsage(input_tokens=1000, output_tokens=1000), "0.0125"),
        (
            "openai",
            "gpt-4o",
            "",
            TokenUsage(input_tokens=1000, cached_input_tokens=600, output_tokens=1000),
            "0.01175",
        ),
        (
            "openai_compatible",
            "claude-sonnet-4-5",
            "https://api.anthropic.com/v1",
            TokenUsage(input_tokens=300_000, output_tokens=1000),
            "1.8225",
        ),
        (
            "openai_compatible",
            "claude-sonnet-4-5",
            "https://api.anthropic.com/v1",
            TokenUsage(input_tokens=150_000, output_tokens=1000),
            "0.465",
        ),
        (
            "openai_compatible",
            "gemini-2.5-pro",
            "https://generativelanguage.googleapis.com/v1beta/openai",
            TokenUsage(input_tokens=250_000, output_tokens=1000),
            "0.64",
        ),
        (  # of 1,000: 700 read, 200 written for five minutes and 100 for an hour
            "openai_compatible",
            "claude-opus-4-6",
            "https://api.anthropic.com/v1",
            TokenUsage(
                input_tokens=1000,
                cached_input_tokens=700,
                cache_write_tokens=300,
                cache_write_1h_tokens=100,
                output_tokens=0,
            ),
            "0.0026",
        ),
    ],
)
def test_published_prices_come_out_to_the_nano_dollar(
    provider: str, model: str, url: str, usage: TokenUsage, usd: str
) -> None:
    """The expected amounts were calculated by hand from the providers' price pages."""
    price = builtin_price(provider=provider, model=model, base_url=url, region="global", at=NOON)
    assert _cost_usd(price, usage) == Decimal(usd)


@pytest.mark.parametrize(
    ("tier", "usd"),
    [
        (None, "11.25"),
        ("default", "11.25"),
        ("flex", "5.625"),
        ("priority", "22.5"),
        ("fast", "22.5"),
        ("batch", "5.625"),
    ],
)
def test_each_service_tier_has_its_listed_price(tier: str | None, usd: str) -> None:
    """Without the tier, the list's own calculator charges flex as standard: twice the price."""
    assert _cost_usd(builtin_price(**GPT_5, at=NOON), A_MILLION_EACH, tier) == Decimal(usd)


@pytest.mark.parametrize("tier", ["flex", "priority", "batch", "scale"])
def test_a_tier_before_its_start_is_unknown_and_not_standard(tier: str) -> None:
    """The list's tiers begin on 12 October 2026; for earlier days it silently returns the
    standard price.
    """
    before = builtin_price(**GPT_5, at=LONG_AGO)
    assert before is not None
    assert _cost_usd(before, A_MILLION_EACH) == Decimal("11.25")
    with pytest.raises(UnknownTier):
        before.for_tier(tier)


def test_a_tier_that_the_list_does_not_know_is_unknown() -> None:
    """For `scale` the list returns the standard price."""
    made = builtin_price(**GPT_5, at=NOON)
    assert made is not None
    assert made.service_tiers == ("batch", "fast", "flex", "priority")
    with pytest.raises(UnknownTier):
        made.for_tier("scale")


def test_a_price_that_depends_on_the_hour_is_dated_by_it() -> None:
    """DeepSeek's nights cost half. The book stores the time windows, and both calculations agree
    at every half hour of a day.
    """
    key = ModelKey("deepseek", "deepseek-chat")
    entries = schedule(key)
    assert [one.daily is None for one in entries] == [True, False]
    book = imported(key, entries)
    for half_hours in range(48):
        at = NOON + timedelta(minutes=30 * half_hours)
        now = builtin_price(
            provider="openai_compatible",
            model=key.model,
            base_url="https://api.deepseek.com",
            at=at,
        )
        assert book.listed(key, at) == now


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(all_keys()), st.datetimes(datetime(2024, 1, 1), datetime(2027, 6, 1)))
def test_an_imported_schedule_agrees_with_the_list_at_any_moment(
    key: ModelKey, at: datetime
) -> None:
    """The test draws from all two thousand models, every start date and every time window."""
    moment = at.replace(tzinfo=UTC)
    begun = [dated for dated in schedule(key) if dated.valid_from <= moment]
    ours, theirs = imported(key, begun).listed(key, moment), listed_price(key, moment)
    if len({dated.daily for dated in schedule(key)}) > 1:
        # The list applies today's windows to dates long ago; our windows begin with their price.
        return
    assert ours == theirs


def test_images_cost_the_input_rate_and_audio_its_own_or_no_rate() -> None:
    """Images are charged as prompt tokens. Audio at the text rate would cost a tenth of its
    price.
    """
    image_price = builtin_price(provider="openai", model="gpt-4o", base_url="", at=NOON)
    assert image_price is not None
    assert image_price.rate(TokenKind.IMAGE_INPUT, input_tokens=0) == image_price.rate(
        TokenKind.INPUT, input_tokens=0
    )
    assert image_price.rate(TokenKind.AUDIO_INPUT, input_tokens=0) is None
    audio_price = builtin_price(provider="openai", model="gpt-realtime", base_url="", at=NOON)
    assert audio_price is not None
    assert audio_price.rate(TokenKind.AUDIO_INPUT, input_tokens=0) == Decimal(32)
    assert audio_price.rate(TokenKind.IMAGE_INPUT, input_tokens=0) is None, (
        "cached images cost something else there"
    )


def test_calls_of_tools_are_priced_by_the_call() -> None:
    """Ten dollars per thousand searches are one cent per search."""
    made = builtin_price(**GPT_5, at=NOON)
    usage = TokenUsage(input_tokens=0, output_tokens=0, web_search_calls=3, file_search_calls=2)
    assert _cost_usd(made, usage) == Decimal("0.035")


def test_openai_s_shortest_cache_is_the_listed_one_and_the_long_one_has_no_price() -> None:
    """OpenAI reports cache writes of 30 minutes and 12 hours, but the list has one rate."""
    made = builtin_price(provider="openai", model="gpt-5.6-luna", base_url="", at=NOON)
    assert made is not None
    rate = made.rate(TokenKind.CACHE_WRITE, input_tokens=0)
    assert rate is not None
    assert made.rate(TokenKind.CACHE_WRITE_30M, input_tokens=0) == rate
    assert made.rate(TokenKind.CACHE_WRITE_12H, input_tokens=0) is None


def test_a_price_is_dated_once_however_often_it_is_ensured(database: Database) -> None:
    """Every replica ensures the price at every start."""
    store = PriceStore(database)
    for n in range(3):
        store.record_in_force(
            {"gpt-eu": price(), "gpt-us": price()}, policy_version=1, at=NOON + timedelta(hours=n)
        )
    assert _dated(database) == [
        ("gpt-eu", price().price_id, 1, NOON),
        ("gpt-us", price().price_id, 1, NOON),
    ]


def test_a_new_rate_is_a_new_dated_entry(database: Database) -> None:
    """Last quarter's bill must add up next year."""
    store, later = PriceStore(database), NOON + timedelta(days=1)
    store.record_in_force({"gpt-eu": price("2.50")}, policy_version=1, at=NOON)
    store.record_in_force({"gpt-eu": price("2.75")}, policy_version=2, at=later)
    store.record_in_force({"gpt-eu": price("2.50")}, policy_version=3, at=later + timedelta(days=1))
    assert [row[1] for row in _dated(database)] == [
        price(p).price_id for p in ("2.50", "2.75", "2.50")
    ]


def test_a_replica_that_lags_behind_does_not_turn_the_price_back(database: Database) -> None:
    """During a rollout both policies are in use; the record follows the newer one."""
    store = PriceStore(database)
    store.record_in_force({"gpt-eu": price("2.75")}, policy_version=2, at=NOON)
    store.record_in_force(
        {"gpt-eu": price("2.50")}, policy_version=1, at=NOON + timedelta(seconds=1)
    )
    assert [row[1:3] for row in _dated(database)] == [(price("2.75").price_id, 2)]


def test_a_clock_that_runs_behind_still_dates_after_the_last_entry(database: Database) -> None:
    """Otherwise the old price would remain the latest."""
    store = PriceStore(database)
    store.record_in_force({"gpt-eu": price("2.50")}, policy_version=1, at=NOON)
    store.record_in_force({"gpt-eu": price("2.75")}, policy_version=2, at=NOON - timedelta(hours=1))
    assert [row[1] for row in _dated(database)] == [price("2.50").price_id, price("2.75").price_id]


def test_replicas_that_ensure_at_the_same_time_date_once(
    database: Database, database_url: str
) -> None:
    """All replicas learn of a new policy at the same moment and write in the gateway's role."""
    gateway = Database(database_url, role="tollgate_gateway")
    prices = {f"d{n}": price() for n in range(20)}

    def ensure(n: int) -> None:
        PriceStore(gateway).record_in_force(
            prices, policy_version=1, at=NOON + timedelta(milliseconds=n)
        )

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(ensure, range(6)))
    assert len(_dated(database)) == 20
    gateway.close()


def test_a_stored_price_has_plain_decimals(database: Database) -> None:
    """Half of all tools misread a rate with an exponent."""
    PriceStore(database).record_in_force({"gpt-eu": price("1E+1")}, policy_version=1, at=NOON)
    with database.begin() as connection:
        row = connection.execute(
            text("SELECT price_id, provider, model, source, rates FROM finance.prices")
        ).one()
    stored = price_to_row(price("1E+1"))
    assert tuple(row) == (*list(stored.values())[:4], json.loads(stored["rates"]))
    assert row.rates[0] == {"kind": "input", "usd_per_mtok": "10", "from_input_tokens": 0}


GPT_EU = deployment(
    "gpt-eu",
    provider="openai",
    base_url="https://eu.api.openai.com/v1",
    model="gpt-5.5",
    region="eu",
)
KEY = ModelKey("openai", "gpt-5.5")


def override(price_or_none: Price | None, *, at: datetime = NOON, **names: str) -> NewEntry:
    dated = Dated(valid_from=at, price=price_or_none)
    return NewEntry(
        origin=PriceOrigin.OVERRIDE,
        dated=dated,
        source="" if price_or_none else "withdrawn",
        **names,
    )


def test_a_price_comes_back_as_it_went_in(database: Database) -> None:
    """Every kind, tier and digit is stored, and the id is the same."""
    rates = tuple(
        Rate(
            kind=kind,
            usd_per_mtok=Decimal("0.123456789012"),
            from_input_tokens=n,
            service_tier=tier,
        )
        for n, kind in enumerate(TokenKind)
        for tier in (None, "flex")
    )
    stored = replace(price(), rates=rates, source="contract")
    store, night = PriceStore(database), DailyWindow(time(16, 30), time(0, 30))
    store.add([override(stored, deployment="gpt-eu")], author="ada", reason="why")
    nights = Dated(valid_from=NOON, price=None, daily=night)
    store.add(
        [NewEntry(origin=PriceOrigin.OVERRIDE, dated=nights, model="x", source="s")],
        author="eve",
        reason="no more",
    )
    first, second = store.entries([]).entries
    assert first.dated == Dated(valid_from=NOON, price=stored)
    assert first.dated.price is not None
    assert first.dated.price.price_id == stored.price_id
    assert (first.author, first.reason, first.source, first.deployment) == (
        "ada",
        "why",
        "contract",
        "gpt-eu",
    )
    assert (second.dated.price, second.dated.daily, second.source, second.model) == (
        None,
        night,
        "s",
        "x",
    )
    assert rate_from_row(json.loads(price_to_row(stored)["rates"])[1]) == rates[1]


@pytest.mark.parametrize("cached", [Decimal("0.0000123"), None])
def test_a_calibration_comes_back_as_it_went_in(database: Database, cached: Decimal | None) -> None:
    """Unknown is never zero, and no digit is lost."""
    measured = calibration(cached_input_tok_per_s=cached)
    entry = NewEntry(
        origin=PriceOrigin.CALIBRATED,
        deployment="own",
        dated=Dated(valid_from=NOON, price=price()),
        calibration=measured,
    )
    store, own = PriceStore(database), deployment("own")
    store.add([entry], author="ada", reason="vLLM 0.33")
    assert store.book([own]).calibrated(own, at=NOON) == measured
    assert store.book([own]).override(own, at=NOON) is None


@pytest.mark.parametrize("names", [{"deployment": "own"}, {"model": "m-1"}])
def test_a_calibrated_price_without_its_measurement_is_refused(
    database: Database, names: dict[str, str]
) -> None:
    """It would price requests by nothing."""
    measured = None if "deployment" in names else calibration()
    entry = NewEntry(
        origin=PriceOrigin.CALIBRATED,
        dated=Dated(valid_from=NOON, price=price()),
        calibration=measured,
        **names,
    )
    with pytest.raises(IntegrityError, match="a_calibration_is_of_a_deployment"):
        PriceStore(database).add([entry], author="ada", reason="why")


@pytest.mark.parametrize("table", ["price_entries", "prices", "deployment_prices"])
@pytest.mark.parametrize(
    "change", ["UPDATE {} SET price_id = price_id", "DELETE FROM {}", "TRUNCATE {} CASCADE"]
)
def test_a_price_is_never_edited(
    database: Database, database_url: str, table: str, change: str
) -> None:
    """Last quarter's bill must add up next year, so not even the tables' owner may edit a price."""
    PriceStore(database).add([override(price(), model="x")], author="ada", reason="why")
    PriceStore(database).record_in_force({"gpt-eu": price()}, policy_version=1, at=NOON)
    with (
        pytest.raises(IntegrityError, match="a price is never changed"),
        database.begin() as connection,
    ):
        connection.execute(text(change.format(f"tollgate.{table}")))
    gateway = Database(database_url, role="tollgate_gateway")
    with pytest.raises(DatabaseUnavailable, match="may not do this"), gateway.begin() as connection:
        connection.execute(text(change.format(f"tollgate.{table}")))
    gateway.close()


def test_the_gateway_reads_the_book_and_cannot_write_it(
    database: Database, database_url: str
) -> None:
    """Only an administrator sets prices; an attacker who takes over a gateway cannot lower them."""
    PriceStore(database).add([override(price(), deployment="gpt-eu")], author="ada", reason="why")
    gateway = Database(database_url, role="tollgate_gateway")
    book = PriceStore(gateway).book([GPT_EU])
    assert book.override(GPT_EU, at=NOON) == replace(price(), source="policy")
    with pytest.raises(DatabaseUnavailable, match="may not do this"):
        PriceStore(gateway).add(
            [override(price(), deployment="gpt-eu")], author="eve", reason="cheap"
        )
    gateway.close()


@pytest.mark.parametrize(
    "row",
    [
        "('list', NULL, 'm', NULL, NULL, NULL)",
        "('list', 'p', 'm', 'd', NULL, NULL)",
        "('override', NULL, NULL, NULL, NULL, NULL)",
        "('override', NULL, 'm', 'd', NULL, NULL)",
        "('override', 'p', NULL, 'd', NULL, NULL)",
        "('other', 'p', 'm', NULL, NULL, NULL)",
        "('override', NULL, 'm', NULL, '08:00', NULL)",
    ],
)
def test_an_entry_that_prices_nothing_is_refused(database: Database, row: str) -> None:
    """Such an entry could never be edited away."""
    with pytest.raises(IntegrityError), database.begin() as connection:
        connection.execute(
            text(
                "INSERT INTO tollgate.price_entries (origin, provider, model, deployment, "
                "daily_since, daily_until, valid_from, source, author, reason) SELECT v.o, v.p, "
                f"v.m, v.d, v.s::time, v.u::time, now(), 's', 'a', 'r' FROM (VALUES {row}) AS v "
                "(o, p, m, d, s, u)"
            )
        )


def test_the_book_is_read_again_only_when_an_entry_came(database: Database) -> None:
    """Each gateway checks the book every two seconds."""
    store = PriceStore(database)
    empty = store.book([GPT_EU])
    assert store.book([GPT_EU]) is empty
    PriceStore(database).add([override(price(), deployment="gpt-eu")], author="ada", reason="why")
    full = store.book([GPT_EU])
    assert full.override(GPT_EU, at=NOON) is not None
    assert store.book([GPT_EU]) is full
    assert store.book([]) is not full


def test_a_first_use_pins_the_list_and_a_second_does_not(database: Database) -> None:
    """After the first use, a replica with a newer list charges the same as the others."""
    store = PriceStore(database)
    own = deployment(
        "own",
        is_self_hosted=True,
        provider="openai_compatible",
        base_url="https://api.openai.com/v1",
    )
    assert not store.book([GPT_EU]).has_listed(GPT_EU)
    made = store.import_list_prices(
        [GPT_EU, own, deployment("partner")], author="ada", reason="policy version 1"
    )
    assert made == len(schedule(KEY)) > 1
    assert store.import_list_prices([GPT_EU], author="ada", reason="policy version 2") == 0
    book = store.book([GPT_EU])
    assert book.has_listed(GPT_EU)
    bundled = builtin_price(provider="openai", model="gpt-5.5", base_url=GPT_EU.base_url, at=NOON)
    assert book.listed(GPT_EU, at=NOON) == bundled
    assert not book.has_listed(deployment("partner"))
    assert book.listed(deployment("partner"), at=NOON) is None
    assert {entry.dated.valid_from for entry in book.book.list_entries(KEY)} >= {EVER}


def test_policies_applied_at_the_same_time_pin_once(database: Database, database_url: str) -> None:
    """Two administrators may apply policies at once, but only one list may be pinned."""

    def pin(_: int) -> int:
        mine = Database(database_url)
        try:
            return PriceStore(mine).import_list_prices([GPT_EU], author="ada", reason="why")
        finally:
            mine.close()

    with ThreadPoolExecutor(4) as pool:
        assert sorted(pool.map(pin, range(4)))[:3] == [0, 0, 0]


def test_two_that_store_the_same_prices_in_different_orders_both_do(
    database: Database, database_url: str
) -> None:
    """An apply and the gateways that load it do so at the same moment: one was told of a deadlock,
    though its policy was in force.
    """
    for round_ in range(10):
        prices = {
            f"d{n:03}": replace(price(), model=f"m{round_}-{n}", source=f"s{n}") for n in range(60)
        }
        other = Database(database_url)
        by_id = sorted(prices.values(), key=lambda one: one.price_id)
        entries = [
            NewEntry(
                origin=PriceOrigin.LIST,
                provider=one.provider,
                model=one.model,
                dated=Dated(valid_from=NOON, price=one),
            )
            for one in reversed(by_id)
        ]
        with ThreadPoolExecutor(2) as pool:
            both = (
                pool.submit(
                    PriceStore(database).record_in_force, prices, policy_version=1, at=NOON
                ),
                pool.submit(PriceStore(other).add, entries, author="a", reason="r"),
            )
            assert [one.result() for one in both] == [None, len(entries)]
        other.close()


def test_a_new_entry_notifies_the_replicas(database: Database) -> None:
    """Replicas listen for notifications, so a new price applies at once instead of after the
    next poll.
    """
    with database.connect() as listening:
        listening.autocommit = True
        listening.execute("LISTEN tollgate_changes")
        PriceStore(database).add(
            [override(price(), deployment="gpt-eu")], author="ada", reason="why"
        )
        assert [
            notification.payload for notification in listening.notifies(timeout=5, stop_after=1)
        ] == ["price_entries"]


def test_the_history_lists_the_newest_price_first(database: Database) -> None:
    """The history of prices that a deployment was charged by, from any source."""
    store = PriceStore(database)
    store.record_in_force({"gpt-eu": price("2.50")}, policy_version=1, at=NOON)
    store.record_in_force({"gpt-eu": price("2.75")}, policy_version=2, at=NOON + timedelta(days=1))
    assert [one.policy_version for one in store.in_force("gpt-eu", limit=5)] == [2, 1]
    assert [one.price_id for one in store.in_force("gpt-eu", limit=1)] == [price("2.75").price_id]


class NoKeys:
    """A key source without keys; prices do not depend on keys."""

    def live(self) -> list[KeyRecord]:
        return []


class Silence:
    """A feed of changes that never notifies: code that depends on it would wait forever."""

    def wait(self, timeout_s: float) -> bool:
        return False


def test_a_future_price_takes_effect_at_its_moment_on_every_replica(
    database: Database, database_url: str
) -> None:
    """The clock alone makes the price current: no notification, no restart, no newer policy. Its
    start is recorded once.
    """
    document = changed(
        "  - {name: partner-chat, deployments: [partner], objective: priority}\n", ""
    )
    document = changed("routes: [assistant, partner-chat]", "routes: [assistant]", text=document)
    clock = FakeClock()
    store = PriceStore(database)
    apply_policy(
        parse(document),
        policies=PolicyStore(database),
        prices=store,
        builtin=builtin_price,
        author="ada",
        message="",
        now=clock.now(),
    )
    gateways = [Database(database_url, role="tollgate_gateway") for _ in range(2)]
    replicas = [
        StoredSnapshots(
            policies=PolicyStore(one),
            keys=NoKeys(),
            ejections=EjectionStore(one),
            prices=PriceStore(one),
            wait_for_change=Silence().wait,
            peppers={},
            builtin=builtin_price,
            clock=clock,
        )
        for one in gateways
    ]
    snapshots = [replica.load(None) for replica in replicas]
    starts = clock.now() + timedelta(seconds=10)
    contract = replace(price("4"), source="contract")
    store.add([override(contract, at=starts, deployment="gpt-eu")], author="ada", reason="why")
    seen = []
    for _ in range(3):
        clock.advance(5)
        snapshots = [
            replica.load(before) for replica, before in zip(replicas, snapshots, strict=True)
        ]
        seen.append([one.prices["gpt-eu"].source for one in snapshots if one is not None])
    assert [[source.split(" ")[0] for source in sources] for sources in seen] == [
        ["genai-prices", "genai-prices"],
        ["contract", "contract"],
        ["contract", "contract"],
    ]
    assert [(row[1], row[3]) for row in _dated(database) if row[0] == "gpt-eu"][1:] == [
        (contract.price_id, starts)
    ]
    for one in gateways:
        one.close()
