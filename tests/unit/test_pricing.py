"""Tokens × price = cost: rounded once per line, half-even, nothing counted twice, nothing missing at zero."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.money import NUSD_PER_USD
from gateway.domain.pricing import Line, Price, Rate, cost_nusd, hold_nusd, lines
from gateway.domain.tokens import TokenKind, TokenUsage
from tests.factories import price

rates = st.decimals(min_value=0, max_value=1000, places=6)
counts = st.integers(min_value=0, max_value=10**8)


@st.composite
def usages(draw: st.DrawFn) -> TokenUsage:
    """Usage that contradicts nothing."""
    whole, out = draw(counts), draw(counts)
    cached = draw(st.none() | st.integers(0, whole))
    written = draw(st.none() | st.integers(0, whole - (cached or 0)))
    return TokenUsage(
        input_tokens=whole, cached_input_tokens=cached, cache_write_tokens=written, output_tokens=out,
        reasoning_tokens=draw(st.none() | st.integers(0, out)),
    )  # fmt: skip


@st.composite
def prices(draw: st.DrawFn) -> Price:
    """A price with or without rates for the parts."""
    optional = {kind: draw(st.none() | rates) for kind in ("cached", "cache_write", "reasoning")}
    texts = {kind: None if rate is None else str(rate) for kind, rate in optional.items()}
    return price(str(draw(rates)), str(draw(rates)), **texts)


def by_kind(receipt: tuple[Line, ...]) -> dict[TokenKind, int]:
    return {line.kind: line.tokens for line in receipt}


def test_cached_tokens_with_a_rate_leave_the_input_line() -> None:
    """Cached tokens are part of the input: charging both lines in full would bill them twice."""
    usage = TokenUsage(input_tokens=1000, cached_input_tokens=400, output_tokens=50)
    receipt = lines(usage, price("1", "4", cached="0.25"))
    assert receipt == (
        Line(kind=TokenKind.INPUT, tokens=600, usd_per_mtok=Decimal("1"), cost_nusd=600_000),
        Line(kind=TokenKind.OUTPUT, tokens=50, usd_per_mtok=Decimal("4"), cost_nusd=200_000),
        Line(kind=TokenKind.CACHED_INPUT, tokens=400, usd_per_mtok=Decimal("0.25"), cost_nusd=100_000),
    )
    assert cost_nusd(receipt) == 900_000


def test_parts_without_a_rate_cost_what_their_whole_costs() -> None:
    """A price list that does not split must still charge every token, once."""
    usage = TokenUsage(
        input_tokens=1000, cached_input_tokens=400, cache_write_tokens=100, output_tokens=50, reasoning_tokens=20
    )
    assert by_kind(lines(usage, price("1", "4"))) == {TokenKind.INPUT: 1000, TokenKind.OUTPUT: 50}


def test_reasoning_with_a_rate_of_its_own_leaves_the_output_line() -> None:
    """Reasoning is part of the output; a rate of its own replaces the output's, it does not add to it."""
    usage = TokenUsage(input_tokens=1, output_tokens=50, reasoning_tokens=20)
    found = by_kind(lines(usage, price("1", "4", reasoning="8")))
    assert found == {TokenKind.INPUT: 1, TokenKind.OUTPUT: 30, TokenKind.REASONING: 20}


def test_cache_writes_with_a_rate_leave_the_input_line() -> None:
    """OpenAI counts written tokens inside the prompt's."""
    usage = TokenUsage(input_tokens=1000, cache_write_tokens=300, output_tokens=0)
    found = by_kind(lines(usage, price("1", "4", cache_write="1.25")))
    assert found == {TokenKind.INPUT: 700, TokenKind.CACHE_WRITE: 300}


@pytest.mark.parametrize(("tokens", "expected"), [(1, 0), (3, 2), (5, 2), (7, 4)])
def test_a_line_is_rounded_half_even(tokens: int, expected: int) -> None:
    """0.0005 USD per million is half a nano-dollar a token: ties go to the even one, so no drift in one direction."""
    receipt = lines(TokenUsage(input_tokens=tokens, output_tokens=0), price("0.0005"))
    assert cost_nusd(receipt) == expected


def test_the_highest_tier_that_the_input_reaches_prices_every_kind() -> None:
    """Long-context tiers apply to the whole request, its answer included, not to the tokens above the bound."""
    tiered = replace(
        price("1", "4"),
        rates=(
            *price("1", "4").rates,
            Rate(kind=TokenKind.INPUT, usd_per_mtok=Decimal(2), from_input_tokens=200_000),
            Rate(kind=TokenKind.OUTPUT, usd_per_mtok=Decimal(6), from_input_tokens=200_000),
        ),
    )
    below = lines(TokenUsage(input_tokens=199_999, output_tokens=10), tiered)
    above = lines(TokenUsage(input_tokens=200_000, output_tokens=10), tiered)
    assert [line.usd_per_mtok for line in below] == [1, 4]
    assert [line.usd_per_mtok for line in above] == [2, 6]


def test_a_missing_rate_raises() -> None:
    """Tokens of a kind without a price are never billed at zero."""
    embeddings_only = price("1", None)
    with pytest.raises(ValueError, match="no price for output"):
        lines(TokenUsage(input_tokens=5, output_tokens=1), embeddings_only)
    assert cost_nusd(lines(TokenUsage(input_tokens=5, output_tokens=0), embeddings_only)) == 5000


def test_nothing_used_has_no_lines() -> None:
    """A receipt lists what was charged and nothing else."""
    assert lines(TokenUsage(), price()) == ()


@given(usages(), prices())
def test_every_token_is_on_exactly_one_line(usage: TokenUsage, some_price: Price) -> None:
    """The lines partition the tokens: nothing twice, nothing lost, nothing negative."""
    found = by_kind(lines(usage, some_price))
    assert all(tokens > 0 for tokens in found.values())
    sides = {TokenKind.OUTPUT, TokenKind.REASONING}
    assert sum(n for kind, n in found.items() if kind not in sides) == usage.input_tokens
    assert sum(n for kind, n in found.items() if kind in sides) == usage.output_tokens


@given(usages(), prices())
def test_each_line_is_the_exact_product_rounded_once(usage: TokenUsage, some_price: Price) -> None:
    """An oracle in rational numbers: Python rounds a Fraction half-even."""
    for line in lines(usage, some_price):
        exact = line.tokens * Fraction(line.usd_per_mtok) / 1_000_000 * NUSD_PER_USD
        assert line.cost_nusd == round(exact)


@given(usages(), prices())
def test_a_hold_is_never_less_than_the_cost(usage: TokenUsage, some_price: Price) -> None:
    """A budget is kept by the hold: a bound that is too small would let it be overrun."""
    assert usage.input_tokens is not None
    assert usage.output_tokens is not None
    held = hold_nusd(some_price, input_bound_tokens=usage.input_tokens, output_bound_tokens=usage.output_tokens)
    # Each of five lines may have been rounded up by half a nano-dollar.
    assert held + 2 >= cost_nusd(lines(usage, some_price))


def test_a_hold_of_a_price_without_a_side_takes_the_other() -> None:
    """An embedding price has no output rate: its side of the bound is zero."""
    assert hold_nusd(price("1", None), input_bound_tokens=1000, output_bound_tokens=1000) == 1_000_000


def test_the_price_id_is_the_content() -> None:
    """The same rates have the same id on every replica, whatever their order or number of zeros."""
    one = price("1.10", "4")
    other = replace(one, rates=tuple(reversed(price("1.1", "4.000").rates)))
    assert one.price_id == other.price_id
    assert one.price_id == "price_3a56b79ef40d1cb7"


@pytest.mark.parametrize(
    "changed",
    [price("1.11", "4"), price("1.1", "4", cached="1.1"), price("1.1", "4", source="genai-prices 0.2.3")],
)
def test_another_rate_or_source_is_another_price(changed: Price) -> None:
    """A price is never edited: what an event stored must still say what it meant."""
    assert changed.price_id != price("1.1", "4").price_id
