"""Tokens × price = cost: rounded once per line, half-even, nothing counted twice, nothing missing
at zero.
"""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal
from fractions import Fraction
from math import ceil

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from gateway.domain.money import NUSD_PER_USD
from gateway.domain.pricing.pricing import (
    MOST_NUSD,
    Line,
    Price,
    Rate,
    UnknownTier,
    cache_saving_nusd,
    cost_nusd,
    hold_nusd,
    lines,
)
from gateway.domain.pricing.tokens import (
    CALL_KINDS,
    INPUT_KINDS,
    OUTPUT_KINDS,
    UNCACHED_KINDS,
    TokenKind,
    TokenUsage,
)
from tests.factories import price

rates = st.integers(0, 10**9).map(lambda micros: Decimal(micros).scaleb(-6))
counts = st.integers(min_value=0, max_value=10**8)
FALLS_BACK = (
    TokenKind.CACHED_INPUT,
    TokenKind.CACHED_AUDIO_INPUT,
    TokenKind.CACHE_WRITE,
    TokenKind.REASONING,
)
MUST_HAVE = sorted(set(TokenKind) - set(FALLS_BACK) - {TokenKind.INPUT, TokenKind.OUTPUT})
SOME_TIERS = ("batch", "flex", "priority")


@st.composite
def parts(draw: st.DrawFn, whole: int, number: int) -> list[int | None]:
    """Counts that together are no more than their whole; any of them may be unreported."""
    left, found = whole, []
    for _ in range(number):
        part = draw(st.none() | st.integers(0, left))
        left -= part or 0
        found.append(part)
    return found


@st.composite
def usages(draw: st.DrawFn) -> TokenUsage:
    """Usage that contradicts nothing; cached tokens and images overlap as they like.

    Half of it is of text alone.
    """
    whole, out = draw(counts), draw(counts)
    if draw(st.booleans()):
        cached, written = draw(parts(whole, 2))
        (reasoning,) = draw(parts(out, 1))
        return TokenUsage(
            input_tokens=whole,
            cached_input_tokens=cached,
            cache_write_tokens=written,
            output_tokens=out,
            reasoning_tokens=reasoning,
        )
    cached, written = draw(parts(whole, 2))
    half_hour, hour, half_day = draw(parts(written or 0, 3))
    audio, image = draw(parts(whole, 2))
    reasoning, spoken, drawn = draw(parts(out, 3))
    calls = st.none() | st.integers(0, 1000)
    return TokenUsage(
        input_tokens=whole,
        cached_input_tokens=cached,
        cache_write_tokens=written,
        cache_write_30m_tokens=half_hour,
        cache_write_1h_tokens=hour,
        cache_write_12h_tokens=half_day,
        audio_input_tokens=audio,
        cached_audio_input_tokens=draw(st.integers(0, min(cached or 0, audio or 0))),
        image_input_tokens=image,
        output_tokens=out,
        reasoning_tokens=reasoning,
        audio_output_tokens=spoken,
        image_output_tokens=drawn,
        web_search_calls=draw(calls),
        file_search_calls=draw(calls),
        code_interpreter_calls=draw(calls),
        image_generation_calls=draw(calls),
        x_search_calls=draw(calls),
        other_model_calls=draw(calls),
    )


@st.composite
def prices(draw: st.DrawFn) -> Price:
    """A price that covers every count, in some service tiers, with or without rates for the parts,
    and a long tier.
    """
    found: list[Rate] = []
    for tier in (None, *draw(st.sets(st.sampled_from(SOME_TIERS)))):
        kinds = [
            TokenKind.INPUT,
            TokenKind.OUTPUT,
            *MUST_HAVE,
            *draw(st.sets(st.sampled_from(FALLS_BACK))),
        ]
        for kind in kinds:
            low, high = sorted((draw(rates), draw(rates)))
            found.append(Rate(kind=kind, usd_per_mtok=low, service_tier=tier))
            if draw(st.booleans()):
                found.append(
                    Rate(kind=kind, usd_per_mtok=high, from_input_tokens=200_001, service_tier=tier)
                )
    return Price(provider="p", model="m", source="test", rates=tuple(draw(st.permutations(found))))


def priced(*rates: tuple[TokenKind, str], source: str = "policy") -> Price:
    """A price of these rates alone."""
    made = tuple(Rate(kind=kind, usd_per_mtok=Decimal(usd)) for kind, usd in rates)
    return Price(provider="openai", model="m", source=source, rates=made)


def by_kind(receipt: tuple[Line, ...]) -> dict[TokenKind, int]:
    return {line.kind: line.tokens for line in receipt}


def test_cached_tokens_with_a_rate_leave_the_input_line() -> None:
    """Cached tokens are part of the input: charging both lines in full would bill them twice."""
    usage = TokenUsage(input_tokens=1000, cached_input_tokens=400, output_tokens=50)
    receipt = lines(usage, price("1", "4", cached="0.25"))
    assert receipt == (
        Line(kind=TokenKind.INPUT, tokens=600, usd_per_mtok=Decimal("1"), cost_nusd=600_000),
        Line(kind=TokenKind.OUTPUT, tokens=50, usd_per_mtok=Decimal("4"), cost_nusd=200_000),
        Line(
            kind=TokenKind.CACHED_INPUT, tokens=400, usd_per_mtok=Decimal("0.25"), cost_nusd=100_000
        ),
    )
    assert cost_nusd(receipt) == 900_000


def test_parts_without_a_rate_cost_the_rate_of_their_whole() -> None:
    """A price list that does not split must still charge every token, once."""
    usage = TokenUsage(
        input_tokens=1000,
        cached_input_tokens=400,
        cache_write_tokens=100,
        output_tokens=50,
        reasoning_tokens=20,
    )
    assert by_kind(lines(usage, price("1", "4"))) == {TokenKind.INPUT: 1000, TokenKind.OUTPUT: 50}


def test_reasoning_with_a_rate_of_its_own_leaves_the_output_line() -> None:
    """Reasoning is part of the output; a rate of its own replaces the output's, it does not add to
    it.
    """
    usage = TokenUsage(input_tokens=1, output_tokens=50, reasoning_tokens=20)
    found = by_kind(lines(usage, price("1", "4", reasoning="8")))
    assert found == {TokenKind.INPUT: 1, TokenKind.OUTPUT: 30, TokenKind.REASONING: 20}


def test_reasoning_keeps_its_rate_beside_calls_of_tools() -> None:
    """A web search must not make the reasoning behind it cheaper: such usage is priced by the
    longer way.
    """
    usage = TokenUsage(input_tokens=1, output_tokens=50, reasoning_tokens=20, web_search_calls=2)
    listed = priced(
        (TokenKind.INPUT, "1"),
        (TokenKind.OUTPUT, "4"),
        (TokenKind.REASONING, "8"),
        (TokenKind.WEB_SEARCH, "10000"),
    )
    receipt = lines(usage, listed)
    assert by_kind(receipt) == {
        TokenKind.INPUT: 1,
        TokenKind.OUTPUT: 30,
        TokenKind.REASONING: 20,
        TokenKind.WEB_SEARCH: 2,
    }
    assert cost_nusd(receipt) == 1000 + 30 * 4000 + 20 * 8000 + 2 * 10_000_000


@pytest.mark.parametrize(
    ("usage", "expected"),
    [
        (
            TokenUsage(input_tokens=100, image_input_tokens=60),
            {TokenKind.INPUT: 40, TokenKind.IMAGE_INPUT: 60},
        ),
        (
            TokenUsage(output_tokens=5, web_search_calls=1),
            {TokenKind.OUTPUT: 5, TokenKind.WEB_SEARCH: 1},
        ),
        (TokenUsage(web_search_calls=1), {TokenKind.WEB_SEARCH: 1}),
    ],
)
def test_a_side_that_is_not_there_has_no_line(
    usage: TokenUsage, expected: dict[TokenKind, int]
) -> None:
    """Image embeddings report no output: their input is priced all the same."""
    listed = priced(
        (TokenKind.INPUT, "1"),
        (TokenKind.OUTPUT, "4"),
        (TokenKind.IMAGE_INPUT, "5"),
        (TokenKind.WEB_SEARCH, "10000"),
    )
    assert by_kind(lines(usage, listed)) == expected


def test_cached_audio_has_a_rate_of_its_own() -> None:
    """Google charges three times as much for cached audio as for cached text."""
    usage = TokenUsage(
        input_tokens=1000, cached_input_tokens=500, audio_input_tokens=400, output_tokens=0
    )
    rates_of_text = ((TokenKind.INPUT, "3"), (TokenKind.OUTPUT, "4"), (TokenKind.AUDIO_INPUT, "10"))
    listed = priced(
        *rates_of_text, (TokenKind.CACHED_INPUT, "0.3"), (TokenKind.CACHED_AUDIO_INPUT, "1")
    )
    spoken = structs.replace(usage, cached_audio_input_tokens=300)
    assert by_kind(lines(spoken, listed)) == {
        TokenKind.INPUT: 400,
        TokenKind.CACHED_INPUT: 200,
        TokenKind.CACHED_AUDIO_INPUT: 300,
        TokenKind.AUDIO_INPUT: 100,
    }
    with pytest.raises(ValueError, match="how many of the cached tokens were audio"):
        lines(usage, listed)
    one_cache = priced(*rates_of_text, (TokenKind.CACHED_INPUT, "0.3"))
    assert by_kind(lines(spoken, one_cache)) == {
        TokenKind.INPUT: 100,
        TokenKind.CACHED_INPUT: 500,
        TokenKind.AUDIO_INPUT: 400,
    }
    too_many = structs.replace(usage, cached_audio_input_tokens=401)
    assert not too_many.is_plausible


def test_cache_writes_with_a_rate_leave_the_input_line() -> None:
    """OpenAI counts written tokens inside the prompt's."""
    usage = TokenUsage(input_tokens=1000, cache_write_tokens=300, output_tokens=0)
    found = by_kind(lines(usage, price("1", "4", cache_write="1.25")))
    assert found == {TokenKind.INPUT: 700, TokenKind.CACHE_WRITE: 300}


@pytest.mark.parametrize(("tokens", "expected"), [(1, 0), (3, 2), (5, 2), (7, 4)])
def test_a_line_is_rounded_half_even(tokens: int, expected: int) -> None:
    """0.0005 USD per million is half a nano-dollar a token: ties go to the even one, so no drift in
    one direction.
    """
    receipt = lines(TokenUsage(input_tokens=tokens, output_tokens=0), price("0.0005"))
    assert cost_nusd(receipt) == expected


def test_the_highest_tier_that_the_input_reaches_prices_every_kind() -> None:
    """Long-context tiers apply to the whole request, its answer included, not to the tokens above
    the bound.
    """
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
    """A receipt lists only charges."""
    assert lines(TokenUsage(), price()) == ()


@given(usages(), prices())
def test_every_token_is_on_exactly_one_line(usage: TokenUsage, some_price: Price) -> None:
    """The lines partition the tokens: nothing twice, nothing lost, nothing negative."""
    found = by_kind(lines(usage, some_price))
    assert all(tokens > 0 for tokens in found.values())
    assert sum(n for kind, n in found.items() if kind in INPUT_KINDS) == usage.input_tokens
    assert sum(n for kind, n in found.items() if kind in OUTPUT_KINDS) == usage.output_tokens
    calls = (usage.web_search_calls, usage.file_search_calls, usage.code_interpreter_calls)
    assert sum(n for kind, n in found.items() if kind in CALL_KINDS) == sum(
        n or 0
        for n in (
            *calls,
            usage.image_generation_calls,
            usage.x_search_calls,
            usage.other_model_calls,
        )
    )


@given(usages(), prices())
def test_the_short_way_for_text_comes_to_the_same(usage: TokenUsage, some_price: Price) -> None:
    """Nearly every answer goes the short way: a call that costs nothing sends the same one the long
    way.
    """
    free = Rate(kind=TokenKind.WEB_SEARCH, usd_per_mtok=Decimal(0))
    rates = (free, *(rate for rate in some_price.rates if rate.kind is not TokenKind.WEB_SEARCH))
    searched = structs.replace(usage, web_search_calls=1)
    long = lines(searched, replace(some_price, rates=rates))
    assert not searched.is_text_alone
    assert [line for line in long if line.kind is not TokenKind.WEB_SEARCH] == [
        line for line in lines(usage, some_price) if line.kind is not TokenKind.WEB_SEARCH
    ]


@given(st.lists(rates | st.decimals(0, 10**6, places=30), min_size=2, max_size=2), counts, counts)
def test_a_hold_is_the_exact_sum_rounded_up_once(usd: list[Decimal], into: int, out: int) -> None:
    """A nano-dollar too few and an answer that uses all of it costs more than its hold."""
    some_price = priced((TokenKind.INPUT, str(usd[0])), (TokenKind.OUTPUT, str(usd[1])))
    exact_nusd = (Fraction(usd[0]) * into + Fraction(usd[1]) * out) * 1000
    held = hold_nusd(some_price, input_bound_tokens=into, output_bound_tokens=out)
    assert held == ceil(exact_nusd) + 1  # each of two lines may be rounded up by half of one


@given(usages(), prices())
def test_each_line_is_the_exact_product_rounded_once(usage: TokenUsage, some_price: Price) -> None:
    """An oracle in rational numbers: Python rounds a Fraction half-even.

    No line is off by more than half a nUSD.
    """
    receipt = lines(usage, some_price)
    for line in receipt:
        exact = line.tokens * Fraction(line.usd_per_mtok) / 1_000_000 * NUSD_PER_USD
        assert line.cost_nusd == round(exact)
        assert abs(line.cost_nusd - exact) <= Fraction(1, 2)
    assert cost_nusd(receipt) == sum(line.cost_nusd for line in receipt)


@given(usages(), prices(), st.sampled_from([None, "default", *SOME_TIERS]))
def test_a_hold_is_never_less_than_the_cost(
    usage: TokenUsage, some_price: Price, tier: str | None
) -> None:
    """The hold keeps the budget: it suffices for any usage within its bounds and any tier of the
    answer.
    """
    assert usage.input_tokens is not None
    assert usage.output_tokens is not None
    calls = (usage.web_search_calls, usage.file_search_calls, usage.code_interpreter_calls)
    held = hold_nusd(
        some_price,
        input_bound_tokens=usage.input_tokens,
        output_bound_tokens=usage.output_tokens,
        tool_calls_bound=sum(
            n or 0
            for n in (
                *calls,
                usage.image_generation_calls,
                usage.x_search_calls,
                usage.other_model_calls,
            )
        ),
    )
    if not some_price.covers_tier(tier or "auto"):
        return
    assert held >= cost_nusd(lines(usage, some_price.for_tier(tier)))


@given(usages(), prices(), st.integers(0, 10**6), st.integers(0, 10**6))
def test_more_tokens_never_cost_less(
    usage: TokenUsage, some_price: Price, more_in: int, more_out: int
) -> None:
    """A meter that runs backwards for somebody is gamed by somebody."""
    more = structs.replace(
        usage,
        input_tokens=(usage.input_tokens or 0) + more_in,
        output_tokens=(usage.output_tokens or 0) + more_out,
    )
    assert cost_nusd(lines(more, some_price)) >= cost_nusd(lines(usage, some_price))


def test_a_hold_of_a_price_without_a_side_takes_the_other() -> None:
    """An embedding price has no output rate: its side of the bound is zero."""
    assert (
        hold_nusd(price("1", None), input_bound_tokens=1000, output_bound_tokens=1000) == 1_000_000
    )


def test_the_price_id_is_the_content() -> None:
    """The same rates have the same id on every replica, in any order and with any number of
    zeros.
    """
    one = price("1.10", "4")
    other = replace(one, rates=tuple(reversed(price("1.1", "4.000").rates)))
    assert one.price_id == other.price_id
    assert one.price_id == "price_3a56b79ef40d1cb7"


@pytest.mark.parametrize(
    "changed",
    [
        price("1.11", "4"),
        price("1.1", "4", cached="1.1"),
        price("1.1", "4", source="genai-prices 0.2.3"),
    ],
)
def test_another_rate_or_source_is_another_price(changed: Price) -> None:
    """A price is never edited: a stored event must keep its meaning."""
    assert changed.price_id != price("1.1", "4").price_id


def test_a_stand_in_has_the_id_of_its_content() -> None:
    """The flag is about how it came to be used; its source says so already."""
    assert replace(price("1"), is_stand_in=True).price_id == price("1").price_id


@pytest.mark.parametrize("kind", MUST_HAVE)
def test_a_kind_that_nothing_falls_back_to_is_never_charged_as_text(kind: TokenKind) -> None:
    """Audio costs ten times as much as text; a twelve-hour cache more than a five-minute one."""
    members = {
        "cache_write_30m": "cache_write_30m_tokens",
        "cache_write_1h": "cache_write_1h_tokens",
        "cache_write_12h": "cache_write_12h_tokens",
        "audio_input": "audio_input_tokens",
        "image_input": "image_input_tokens",
        "audio_output": "audio_output_tokens",
        "image_output": "image_output_tokens",
    }
    member = members.get(kind, f"{kind}_calls")
    usage = TokenUsage(input_tokens=1000, cache_write_tokens=60, output_tokens=100, **{member: 50})
    bare = price("1", "4", cache_write="1.25")
    unit = "calls" if kind in CALL_KINDS else "tokens"
    with pytest.raises(ValueError, match=f"no price for {kind} {unit}$"):
        lines(usage, bare)
    covered = replace(bare, rates=(*bare.rates, Rate(kind=kind, usd_per_mtok=Decimal(64))))
    assert by_kind(lines(usage, covered))[kind] == 50
    assert lines(structs.replace(usage, **{member: 0}), bare) == lines(
        structs.replace(usage, **{member: None}), bare
    )


def test_timed_cache_writes_without_a_rate_cost_the_input_rate() -> None:
    """A price without cache writes charges them as input, which they also are."""
    usage = TokenUsage(
        input_tokens=100, cache_write_tokens=60, cache_write_1h_tokens=50, output_tokens=0
    )
    assert by_kind(lines(usage, price("1", "4"))) == {TokenKind.INPUT: 100}
    listed = priced(
        (TokenKind.INPUT, "1"), (TokenKind.OUTPUT, "1"), (TokenKind.CACHE_WRITE_1H, "2")
    )
    assert by_kind(lines(usage, listed)) == {TokenKind.INPUT: 50, TokenKind.CACHE_WRITE_1H: 50}


def test_each_write_is_charged_by_its_time() -> None:
    """Anthropic takes 1.25 times the input rate for five minutes and twice for an hour."""
    usage = TokenUsage(
        input_tokens=100, cache_write_tokens=60, cache_write_1h_tokens=50, output_tokens=0
    )
    listed = priced(
        (TokenKind.INPUT, "4"), (TokenKind.CACHE_WRITE, "5"), (TokenKind.CACHE_WRITE_1H, "8")
    )
    assert by_kind(lines(usage, listed)) == {
        TokenKind.INPUT: 40,
        TokenKind.CACHE_WRITE: 10,
        TokenKind.CACHE_WRITE_1H: 50,
    }


@pytest.mark.parametrize(
    ("audio", "image", "expected"),
    [
        (0, 0, {TokenKind.INPUT: 400, TokenKind.CACHED_INPUT: 600}),
        (100, 0, {TokenKind.INPUT: 300, TokenKind.AUDIO_INPUT: 100, TokenKind.CACHED_INPUT: 600}),
        (0, 900, {TokenKind.IMAGE_INPUT: 400, TokenKind.CACHED_INPUT: 600}),
        (
            300,
            600,
            {TokenKind.IMAGE_INPUT: 100, TokenKind.AUDIO_INPUT: 300, TokenKind.CACHED_INPUT: 600},
        ),
        (700, 200, {TokenKind.AUDIO_INPUT: 400, TokenKind.CACHED_INPUT: 600}),
    ],
)
def test_cached_tokens_beyond_the_text_are_taken_from_images_and_audio(
    audio: int, image: int, expected: dict[TokenKind, int]
) -> None:
    """A mixed prompt of 1,000 with 600 cached: another gateway makes -400 text tokens of it."""
    usage = TokenUsage(
        input_tokens=1000,
        cached_input_tokens=600,
        audio_input_tokens=audio,
        image_input_tokens=image,
        output_tokens=0,
    )
    listed = priced(
        (TokenKind.INPUT, "1"),
        (TokenKind.CACHED_INPUT, "0.1"),
        (TokenKind.AUDIO_INPUT, "32"),
        (TokenKind.IMAGE_INPUT, "5"),
    )
    assert by_kind(lines(usage, listed)) == expected


@pytest.mark.parametrize(
    "wrong",
    [
        TokenUsage(input_tokens=-1, output_tokens=0),
        TokenUsage(input_tokens=10**11, output_tokens=0),
        TokenUsage(input_tokens=1, cached_input_tokens=-1, output_tokens=0),
        TokenUsage(input_tokens=1, cache_write_tokens=-1, output_tokens=0),
        TokenUsage(input_tokens=1, output_tokens=1, reasoning_tokens=-1),
        TokenUsage(input_tokens=0, output_tokens=10**11),
        TokenUsage(input_tokens=10**11, image_input_tokens=1, output_tokens=0),
        TokenUsage(input_tokens=1, output_tokens=0, web_search_calls=-1),
        TokenUsage(input_tokens=1, output_tokens=0, file_search_calls=-1),
        TokenUsage(input_tokens=1, output_tokens=0, code_interpreter_calls=-1),
        TokenUsage(input_tokens=1, output_tokens=0, image_generation_calls=-1),
        TokenUsage(input_tokens=10, cached_input_tokens=6, cache_write_tokens=5, output_tokens=0),
        TokenUsage(
            input_tokens=10, cache_write_tokens=5, cache_write_30m_tokens=6, output_tokens=0
        ),
        TokenUsage(input_tokens=10, cache_write_tokens=5, cache_write_1h_tokens=6, output_tokens=0),
        TokenUsage(
            input_tokens=10, cache_write_tokens=5, cache_write_12h_tokens=6, output_tokens=0
        ),
        TokenUsage(input_tokens=10, audio_input_tokens=6, image_input_tokens=5, output_tokens=0),
        TokenUsage(input_tokens=0, output_tokens=10, reasoning_tokens=6, audio_output_tokens=5),
        TokenUsage(input_tokens=0, output_tokens=10, reasoning_tokens=6, image_output_tokens=5),
        TokenUsage(cached_input_tokens=1),
    ],
)
def test_counts_that_contradict_each_other_are_not_priced(wrong: TokenUsage) -> None:
    """Half a truth is no bill."""
    assert not wrong.is_plausible
    with pytest.raises(ValueError, match="contradict"):
        lines(wrong, price())


anything = st.none() | st.integers(-2, 4) | st.sampled_from([10**11 - 1, 10**11, -(10**11)])


@given(anything, anything, anything, anything, anything)
def test_the_short_path_also_finds_contradictions(
    into: int | None,
    cached: int | None,
    written: int | None,
    out: int | None,
    reasoning: int | None,
) -> None:
    """Text alone is looked at by a shorter rule; one call of a tool sends the same counts to the
    whole one.
    """
    usage = TokenUsage(
        input_tokens=into,
        cached_input_tokens=cached,
        cache_write_tokens=written,
        output_tokens=out,
        reasoning_tokens=reasoning,
    )
    assert usage.is_plausible == structs.replace(usage, web_search_calls=1).is_plausible


TIERED = replace(
    price("1.25", "10", cached="0.125"),
    rates=(
        *price("1.25", "10", cached="0.125").rates,
        Rate(kind=TokenKind.INPUT, usd_per_mtok=Decimal("2.5"), service_tier="priority"),
        Rate(kind=TokenKind.OUTPUT, usd_per_mtok=Decimal(20), service_tier="priority"),
        Rate(kind=TokenKind.INPUT, usd_per_mtok=Decimal("0.625"), service_tier="flex"),
        Rate(kind=TokenKind.OUTPUT, usd_per_mtok=Decimal(5), service_tier="flex"),
    ),
)


@pytest.mark.parametrize(
    ("tier", "usd"),
    [
        (None, "11.25"),
        ("default", "11.25"),
        ("auto", "11.25"),
        ("standard", "11.25"),
        ("on_demand", "11.25"),
        ("STANDARD", "11.25"),
        ("", "11.25"),
        ("flex", "5.625"),
        ("priority", "22.5"),
        ("Priority", "22.5"),
    ],
)
def test_an_answer_is_charged_by_the_tier_it_came_from(tier: str | None, usd: str) -> None:
    """A list's own calculator ignores the tier in the answer: flex twice too dear, priority at
    half.
    """
    usage = TokenUsage(input_tokens=10**6, output_tokens=10**6)
    found = TIERED.for_tier(tier)
    assert cost_nusd(lines(usage, found)) == int(Decimal(usd) * NUSD_PER_USD)
    assert found.price_id == TIERED.price_id, (
        "the event names the whole price, which is the one that is stored"
    )


def test_the_standard_rates_are_those_of_no_tier() -> None:
    """`/v1/models` shows the whole price: no tier that is listed first may shine through, nor its
    long context.
    """
    long_flex = Rate(
        kind=TokenKind.INPUT, usd_per_mtok=Decimal(9), from_input_tokens=1, service_tier="flex"
    )
    whole = replace(TIERED, rates=(*reversed(TIERED.rates), long_flex))
    for some_price in (whole, whole.for_tier(None)):
        shown = [
            some_price.rate(kind, input_tokens=10**6)
            for kind in (TokenKind.INPUT, TokenKind.OUTPUT)
        ]
        assert shown == [Decimal("1.25"), Decimal(10)]


def test_a_tier_takes_no_rate_of_another() -> None:
    """Cached input without a rate in this tier is input of this tier, not the standard tier's
    cached input.
    """
    usage = TokenUsage(input_tokens=100, cached_input_tokens=100, output_tokens=0)
    (line,) = lines(usage, TIERED.for_tier("priority"))
    assert (line.kind, line.usd_per_mtok) == (TokenKind.INPUT, Decimal("2.5"))


def test_an_unknown_tier_is_never_charged_as_standard() -> None:
    """The price of `scale` is unknown here; its attempt stays unknown at its hold."""
    assert TIERED.service_tiers == ("flex", "priority")
    assert TIERED.covers_tier("flex")
    assert not TIERED.covers_tier("scale")
    with pytest.raises(
        UnknownTier, match=r"no price for tier scale \(there is: standard, flex, priority\)"
    ):
        TIERED.for_tier("scale")
    with pytest.raises(UnknownTier):
        price().for_tier("flex")
    assert price().for_tier("default") == price()


def test_a_price_of_tiers_alone_has_no_standard() -> None:
    """A tier that is not listed is unknown, even the standard tier."""
    only = priced((TokenKind.INPUT, "1"))
    only = replace(only, rates=(replace(only.rates[0], service_tier="flex"),))
    with pytest.raises(ValueError, match="no price for input"):
        lines(TokenUsage(input_tokens=1, output_tokens=0), only.for_tier(None))


def test_the_hold_takes_the_dearest_tier() -> None:
    """`auto` may be answered by the tier of a project's own setting."""
    assert hold_nusd(TIERED, input_bound_tokens=10**6, output_bound_tokens=10**6) == 22_500_000_001
    assert (
        hold_nusd(TIERED.for_tier("flex"), input_bound_tokens=10**6, output_bound_tokens=10**6)
        == 5_625_000_001
    )


def test_a_hold_never_exceeds_bigint() -> None:
    """BIGINT is the ledger's; a hold of ten billion dollars is as good as one of nine."""
    assert (
        hold_nusd(price("1000000"), input_bound_tokens=10**11, output_bound_tokens=0) == MOST_NUSD
    )


def test_a_tier_is_part_of_the_price_id_and_standard_is_not() -> None:
    """Prices from before there were tiers keep their ids; another tier's rate makes another
    price.
    """
    assert TIERED.price_id != price("1.25", "10", cached="0.125").price_id
    moved = replace(
        TIERED,
        rates=tuple(replace(r, service_tier=r.service_tier and "scale") for r in TIERED.rates),
    )
    assert moved.price_id != TIERED.price_id


def test_many_digits_are_rounded_once() -> None:
    """28 digits, the usual context, would round the product before it is rounded to the
    nano-dollar.
    """
    usd_per_mtok = Decimal("999999.001499999999")  # a billionth above the half, in the 29th digit
    (line,) = lines(
        TokenUsage(input_tokens=99_999_999_999, output_tokens=0),
        priced((TokenKind.INPUT, str(usd_per_mtok))),
    )
    assert line.cost_nusd == round(99_999_999_999 * Fraction(usd_per_mtok) * 1000)


def test_the_saving_by_a_cache_is_the_uncached_price_less_the_charges() -> None:
    """Rounded once; cache writes, which cost more than uncached input, make it smaller."""
    receipt = (
        Line(kind=TokenKind.INPUT, tokens=9, usd_per_mtok=Decimal(3), cost_nusd=27_000),
        Line(kind=TokenKind.CACHED_INPUT, tokens=7, usd_per_mtok=Decimal("0.3"), cost_nusd=2_100),
    )
    rates = dict.fromkeys(UNCACHED_KINDS.values(), Decimal(3))
    assert cache_saving_nusd(receipt, usd_per_mtok=rates) == 7 * 3_000 - 2_100
    assert cache_saving_nusd(receipt[:1], usd_per_mtok=rates) == 0


@pytest.mark.parametrize("name", TokenUsage.__struct_fields__)
def test_text_alone_is_known_by_the_order_of_the_fields(name: str) -> None:
    """A field that moves would send rare counts on the usual way, which does not price them."""
    usual = {"input_tokens", "cached_input_tokens", "cache_write_tokens", "output_tokens"}
    usual |= {"reasoning_tokens", "unexplained_tokens"}
    assert TokenUsage(**{name: 1}).is_text_alone is (name in usual)
    assert TokenUsage(**{name: 0}).is_text_alone
