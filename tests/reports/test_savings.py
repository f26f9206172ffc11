"""The report `savings`: its totals equal the sums of the receipts, and unknown stays unknown."""

from __future__ import annotations

from collections import defaultdict
from decimal import Decimal
from random import Random
from uuid import UUID

import pytest
from msgspec.structs import replace

from gateway.domain.ledger.usage_event import UsageEvent
from gateway.domain.money import EXACT
from gateway.domain.pricing.pricing import (
    Line,
    Price,
    Rate,
    UnknownTier,
    cost_nusd,
    lines,
)
from gateway.domain.pricing.tokens import TokenKind, TokenUsage, UsageSource
from gateway.reports.dimensions import Dimension
from gateway.reports.question import ask
from gateway.reports.reports import Reports
from gateway.storage.policy.prices import PriceStore
from gateway.storage.postgres.database import Database
from tests.reports.conftest import Write
from tests.reports.random_events import parts_of, random_event
from tests.storage.factories import event

CACHE_KINDS = (
    TokenKind.CACHED_INPUT,
    TokenKind.CACHE_WRITE,
    TokenKind.CACHE_WRITE_1H,
)
TIERS = (None, "standard", "Flex", "priority")
SPLITS = (Dimension.TEAM, Dimension.MODEL, Dimension.DAY, Dimension.TAG, Dimension.REGION)


def rates() -> tuple[Rate, ...]:
    """Return rates like Anthropic's: a read costs a tenth of plain input, a write 1.25 times."""
    return (
        Rate(kind=TokenKind.INPUT, usd_per_mtok=Decimal("2.5")),
        Rate(kind=TokenKind.CACHED_INPUT, usd_per_mtok=Decimal("0.25")),
        Rate(kind=TokenKind.CACHE_WRITE, usd_per_mtok=Decimal("3.125")),
        Rate(kind=TokenKind.OUTPUT, usd_per_mtok=Decimal(10)),
    )


def priced(number: int, usage: TokenUsage, price: Price, **changes: object) -> UsageEvent:
    """Return the event of a usage, charged by a price."""
    receipt = lines(usage, price)
    return event(
        number,
        usage=usage,
        lines=receipt,
        cost_nusd=cost_nusd(receipt),
        price_id=price.price_id,
        **changes,
    )


def test_a_saving_is_the_uncached_price_less_the_cost(
    finance: Reports, write: Write, database: Database
) -> None:
    """1,000 reads save 2.25 USD a million; 400 writes cost 0.625 USD a million more than input."""
    price = Price(provider="openai", model="m", source="policy", rates=rates())
    PriceStore(database).store_event_prices([price])
    usage = TokenUsage(
        input_tokens=2000, cached_input_tokens=1000, cache_write_tokens=400, output_tokens=10
    )
    write(priced(1, usage, price))

    report = finance.run("savings", ask())

    total = report.total
    assert total["cache_saving_usd"] == Decimal("0.002250000") - Decimal("0.000250000")
    assert total["cached_share"] == Decimal("0.5")
    uncached = TokenUsage(input_tokens=2000, cached_input_tokens=0, output_tokens=10)
    assert total["cost_usd"] + total["cache_saving_usd"] == Decimal(  # type: ignore[operator]
        cost_nusd(lines(uncached, price))
    ).scaleb(-9)


def test_writes_that_nothing_reads_are_a_negative_saving(
    finance: Reports, write: Write, database: Database
) -> None:
    """A cache that is only written costs more than none: finance must see that, not 0."""
    price = Price(provider="anthropic", model="m", source="policy", rates=rates())
    PriceStore(database).store_event_prices([price])
    usage = TokenUsage(
        input_tokens=1000, cached_input_tokens=0, cache_write_tokens=1000, output_tokens=1
    )
    write(priced(1, usage, price))

    assert finance.run("savings", ask()).total["cache_saving_usd"] == Decimal("-0.000625")


def test_a_prompt_cached_as_a_whole_takes_the_rate_of_its_stored_price(
    finance: Reports, write: Write, database: Database
) -> None:
    """Its receipt has no line of plain input: without the price its saving would be unknown."""
    known = Price(provider="openai", model="m", source="policy", rates=rates())
    lost = Price(provider="openai", model="m", source="nowhere", rates=rates())
    PriceStore(database).store_event_prices([known])
    usage = TokenUsage(
        input_tokens=1000, cached_input_tokens=1000, cache_write_tokens=0, output_tokens=1
    )
    write(priced(1, usage, known, model="known"), priced(2, usage, lost, model="lost"))

    report = finance.run("savings", ask())

    assert {
        row["model"]: (row["cache_saving_usd"], row["unknown_saving_attempts"])
        for row in report.records()
    } == {"known": (Decimal("0.00225"), 0), "lost": (None, 1)}
    assert report.total["cache_saving_usd"] == Decimal("0.00225")


def test_an_unreported_cache_is_unknown_and_a_reported_0_is_0(
    finance: Reports, write: Write
) -> None:
    """A provider that reports no cached tokens did not say that it cached none."""
    silent = TokenUsage(input_tokens=400, output_tokens=50)
    none = TokenUsage(input_tokens=400, cached_input_tokens=0, output_tokens=50)
    write(event(1, model="silent", usage=silent), event(2, model="none", usage=none))

    report = finance.run("savings", ask())

    assert {
        row["model"]: (row["cache_saving_usd"], row["cached_share"]) for row in report.records()
    } == {"silent": (None, None), "none": (Decimal(0), Decimal(0))}
    assert report.total["cached_share"] == Decimal(0)
    assert report.total["unknown_saving_attempts"] == 1
    assert any("unknown_saving_attempts counts" in note for note in report.notes)


def test_cached_audio_is_compared_with_uncached_audio(
    finance: Reports, write: Write, database: Database
) -> None:
    """Gemini's audio costs three times its text: against the rate of text its cache would seem to
    save nothing.
    """
    price = Price(
        provider="gemini",
        model="m",
        source="policy",
        rates=(
            *rates(),
            Rate(kind=TokenKind.AUDIO_INPUT, usd_per_mtok=Decimal("7.5")),
            Rate(kind=TokenKind.CACHED_AUDIO_INPUT, usd_per_mtok=Decimal("0.75")),
        ),
    )
    PriceStore(database).store_event_prices([price])
    usages = {
        "text and audio": TokenUsage(
            input_tokens=3000,
            cached_input_tokens=1500,
            audio_input_tokens=2000,
            cached_audio_input_tokens=1000,
            output_tokens=10,
        ),
        "all of it cached": TokenUsage(
            input_tokens=1000,
            cached_input_tokens=1000,
            audio_input_tokens=1000,
            cached_audio_input_tokens=1000,
            output_tokens=10,
        ),
    }
    events = [
        priced(number, usage, price, model=model)
        for number, (model, usage) in enumerate(usages.items(), 1)
    ]
    write(*events)

    report = finance.run("savings", ask())

    audio, text = Decimal("0.00675"), Decimal("0.001125")  # of 1,000 and of 500 tokens
    assert {row["model"]: row["cache_saving_usd"] for row in report.records()} == {
        "text and audio": audio + text,
        "all of it cached": audio,
    }
    assert [saving(finance, one.request_id) for one in events] == [audio + text, audio]


@pytest.mark.parametrize(("tokens", "nusd"), [(1, 62), (3, 188), (5, 312)])
def test_halves_are_rounded_as_a_charge_is(
    finance: Reports, write: Write, tokens: int, nusd: int
) -> None:
    """Postgres rounds 62.5 to 63, a charge to 62: the report would differ from the receipts."""
    plain = Line(kind=TokenKind.INPUT, tokens=1, usd_per_mtok=Decimal("0.0625"), cost_nusd=62)
    cached = Line(kind=TokenKind.CACHED_INPUT, tokens=tokens, usd_per_mtok=Decimal(0), cost_nusd=0)
    usage = TokenUsage(input_tokens=tokens + 1, cached_input_tokens=tokens, output_tokens=0)
    write(event(1, usage=usage, lines=(plain, cached), cost_nusd=62))

    total = finance.run("savings", ask()).total

    assert total["cache_saving_usd"] == EXACT.scaleb(Decimal(nusd), -9)


def test_the_total_saving_is_the_sum_of_the_receipts(
    finance: Reports, write: Write, database: Database, rng: Random
) -> None:
    """Finance adds up receipts and reads the report: both must say the same, in every split."""
    book = [random_price(number, rng) for number in range(6)]
    PriceStore(database).store_event_prices(book[:5])  # one is missing in the price book
    events = [cached_event(number, rng, book) for number in range(300)]
    write(*events)

    savings = {one.request_id: saving(finance, one.request_id) for one in events}

    known = [amount for amount in savings.values() if amount is not None]
    assert len({amount > 0 for amount in known if amount}) == 2, "both signs must occur"
    total = finance.run("savings", ask()).total
    assert total["cache_saving_usd"] == sum(known)
    assert total["unknown_saving_attempts"] == len(events) - len(known) > 0
    for split in SPLITS:
        expected: dict[object, Decimal] = defaultdict(Decimal)
        for one in events:
            for value, times in parts_of(one, split):
                expected[value] += times * (savings[one.request_id] or 0)
        report = finance.run("savings", ask(by=[split.value]))
        rows = {row[split.value]: row["cache_saving_usd"] or 0 for row in report.records()}
        assert rows == expected, split
        assert sum(Decimal(str(amount)) for amount in rows.values()) == sum(known)


def saving(finance: Reports, request_id: UUID) -> Decimal | None:
    """Return the saving in a request's receipt."""
    receipt = finance.receipt(request_id)
    assert receipt is not None
    (attempt,) = receipt.attempts
    return attempt.cache_saving_usd


def random_price(number: int, rng: Random) -> Price:
    """Return a price with tiers, a step for long prompts, and cache rates below and above input."""
    found = []
    for tier in (None, "flex"):
        for start in (0, 4_000):
            plain = Decimal(rng.randrange(1, 10**5)).scaleb(-4)
            found.append((TokenKind.INPUT, plain, start, tier))
            found.append((TokenKind.OUTPUT, 4 * plain, start, tier))
            for kind in CACHE_KINDS if number else ():  # the first price lists no cached input
                rate = plain * Decimal(rng.randrange(1, 30)).scaleb(-1)
                found.append((kind, rate, start, tier))
    return Price(
        provider="openai",
        model=f"m-{number}",
        source="policy",
        rates=tuple(
            Rate(kind=kind, usd_per_mtok=rate, from_input_tokens=start, service_tier=tier)
            for kind, rate, start, tier in found
        ),
    )


def cached_event(number: int, rng: Random, book: list[Price]) -> UsageEvent:
    """Return a random event with cached tokens: one in four has its whole prompt cached."""
    one, price = random_event(number, rng), rng.choice(book)
    whole = rng.randrange(8_000)
    written = rng.choice([0, rng.randrange(whole + 1)])
    usage = TokenUsage(
        input_tokens=whole,
        cached_input_tokens=rng.choice([None, 0, rng.randrange(whole - written + 1), whole]),
        cache_write_tokens=written,
        cache_write_1h_tokens=rng.choice([None, written // 2]),
        output_tokens=rng.randrange(500),
    )
    if (usage.cached_input_tokens or 0) + written > whole:
        usage = TokenUsage(input_tokens=whole, cached_input_tokens=whole, output_tokens=7)
    tier = rng.choice(TIERS)
    if one.usage_source is UsageSource.UNKNOWN:
        return one
    try:
        receipt = lines(usage, price.for_tier(tier))
    except (UnknownTier, ValueError):
        receipt = ()
    changes = {
        "usage": usage,
        "service_tier": tier,
        "price_id": price.price_id,
        "lines": receipt,
        "cost_nusd": cost_nusd(receipt) if receipt else None,
        "held_nusd": None if receipt else 5,
        "usage_source": one.usage_source if receipt else UsageSource.UNKNOWN,
    }
    return replace(one, **changes)
