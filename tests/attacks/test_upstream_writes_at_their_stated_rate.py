"""Writes to a provider's cache were settled as plain input if the price lists no rate of them,
though they were held at the provider's stated factor.
"""

from __future__ import annotations

import json
from decimal import Decimal
from itertools import product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.pricing.cache_writes import (
    ANY_LIFETIME,
    FACTORS,
    KIND_OF_LIFETIME,
    longest_kind,
)
from gateway.domain.pricing.pricing import Price, Rate
from gateway.domain.pricing.settlement import Settlement
from gateway.domain.pricing.tokens import TokenKind, TokenUsage, UsageSource
from gateway.domain.request.unpriced import dearest_write_usd_per_mtok
from tests import factories
from tests.factories import settled
from tests.fakes import FakeUpstreamAnswer
from tests.unit.request.test_request_service import body, once

INPUT_USD, OUTPUT_USD = 10, 50
WRITES = (*FACTORS, TokenKind.CACHE_WRITE_12H)
LISTED_USD = dict(zip(WRITES, (11, 12, 13, 14), strict=True))
MTOK = 1_000_000
LIFETIMES = sorted({*KIND_OF_LIFETIME, ANY_LIFETIME} - {"12h"})


def price(*listed: TokenKind) -> Price:
    """Return a price that lists these writes, each above plain input and below its factor."""
    usd = {TokenKind.INPUT: INPUT_USD, TokenKind.OUTPUT: OUTPUT_USD}
    usd |= {kind: LISTED_USD[kind] for kind in listed}
    rates = (Rate(kind=kind, usd_per_mtok=Decimal(rate)) for kind, rate in usd.items())
    return Price(provider="p", model="m", source="policy", rates=tuple(rates))


def written(kind: TokenKind | None) -> TokenUsage:
    """Return a usage of a million written tokens: of one lifetime, or of none that is stated."""
    timed = {} if kind in (None, TokenKind.CACHE_WRITE) else {f"{kind}_tokens": MTOK}
    return TokenUsage(input_tokens=MTOK, cache_write_tokens=MTOK, output_tokens=0, **timed)


def made(usage: TokenUsage, of: Price, *asked: str) -> Settlement:
    """Settle at a paid provider that was asked for these lifetimes."""
    return settled(
        usage,
        price=of,
        held_nusd=10**12,
        asked_writes=longest_kind(asked),
        has_stated_writes=bool(asked),
    )


LISTS = [
    tuple(kind for kind, is_listed in zip(WRITES, chosen, strict=True) if is_listed)
    for chosen in product((False, True), repeat=len(WRITES))
]


@pytest.mark.parametrize("listed", LISTS, ids=lambda kinds: "+".join(kinds) or "none")
@pytest.mark.parametrize("kind", WRITES)
def test_a_write_costs_its_listed_rate_else_the_stated_one(
    kind: TokenKind, listed: tuple[TokenKind, ...]
) -> None:
    """A listed rate is never multiplied, and a kind that nothing states is held."""
    found = made(written(kind), price(*listed), "5m")
    if kind in listed:
        assert (found.cost_nusd, found.source) == (LISTED_USD[kind] * 10**9, UsageSource.PROVIDER)
    elif kind in FACTORS:
        assert found.cost_nusd == FACTORS[kind] * INPUT_USD * 10**9
        assert (found.source, found.is_suspect) == (UsageSource.ESTIMATED, False)
    else:
        assert (found.cost_nusd, found.source) == (None, UsageSource.UNKNOWN)


@given(
    st.sampled_from(LISTS), st.lists(st.sampled_from(LIFETIMES), min_size=1, unique=True), st.data()
)
def test_no_write_that_was_asked_for_costs_more_than_its_hold(
    listed: tuple[TokenKind, ...], asked: list[str], data: st.DataObject
) -> None:
    """Hold and settlement have the rate from one function."""
    of = price(*listed)
    known = [one for one in asked if one != ANY_LIFETIME]
    lifetime = data.draw(st.sampled_from(known)) if known else None
    usage = written(None if lifetime is None else KIND_OF_LIFETIME[lifetime])
    held = max(dearest_write_usd_per_mtok(asked, of), of.dearest(*WRITES, TokenKind.INPUT))
    cost = made(usage, of, *asked).cost_nusd
    assert cost is not None
    assert cost <= held * 10**9


@pytest.mark.parametrize("kind", FACTORS)
def test_a_write_that_was_not_asked_for_stays_plain_input(kind: TokenKind) -> None:
    """So it is held: its provider may write for nothing, as most do."""
    found = made(written(kind), price())
    assert (found.cost_nusd, found.source) == (INPUT_USD * 10**9, UsageSource.PROVIDER)


def test_the_rate_is_that_of_the_tier_and_of_the_context() -> None:
    """The factor is of the input rate that the request would pay."""
    tiered = Price(
        provider="p",
        model="m",
        source="policy",
        rates=(
            Rate(kind=TokenKind.INPUT, usd_per_mtok=Decimal(1)),
            Rate(kind=TokenKind.INPUT, usd_per_mtok=Decimal(2), from_input_tokens=1000),
            Rate(kind=TokenKind.INPUT, usd_per_mtok=Decimal(4), service_tier="priority"),
            Rate(kind=TokenKind.CACHE_WRITE, usd_per_mtok=Decimal(7), service_tier="priority"),
        ),
    )
    standard, priority = tiered.for_tier(None), tiered.for_tier("priority")
    kind = TokenKind.CACHE_WRITE
    assert standard.with_stated_writes.rate(kind, input_tokens=10) == Decimal("1.25")
    assert standard.with_stated_writes.rate(kind, input_tokens=1000) == Decimal("2.50")
    assert priority.with_stated_writes.rate(kind, input_tokens=10) == 7
    assert standard.with_stated_writes.price_id == tiered.price_id


ANSWER = json.dumps(
    {
        "choices": [{"message": {"content": "ok"}, "finish_reason": "stop"}],
        "usage": {
            "prompt_tokens": 1000,
            "completion_tokens": 10,
            "total_tokens": 1010,
            "prompt_tokens_details": {"cache_write_tokens": 800},
        },
    }
).encode()
MARKED = [
    {
        "role": "user",
        "content": [{"type": "text", "text": "x" * 5000, "cache_control": {"type": "ephemeral"}}],
    }
]
PLAIN_NUSD, BEYOND_NUSD = 1000 * 1000 + 10 * 4000, 800 * 250


@pytest.mark.parametrize(
    ("messages", "is_self_hosted", "nusd", "source"),
    [
        (MARKED, False, PLAIN_NUSD + BEYOND_NUSD, UsageSource.ESTIMATED),
        (MARKED, True, PLAIN_NUSD, UsageSource.PROVIDER),
        ([{"role": "user", "content": "x" * 5000}], False, PLAIN_NUSD, UsageSource.PROVIDER),
    ],
    ids=["asked", "own engine", "not asked"],
)
async def test_an_attempt_is_settled_so(
    messages: Any, is_self_hosted: bool, nusd: int, source: UsageSource
) -> None:
    """An engine of one's own bills no writes."""
    on = once(FakeUpstreamAnswer([ANSWER]))
    deployment = factories.deployment(is_self_hosted=is_self_hosted)
    await on.answer(body(messages=messages, max_tokens=50), deployment)
    assert (on.event.cost_nusd, on.event.usage_source) == (nusd, source)
