"""An attempt's charge: the decision table of everything that can be known about its usage."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.pricing.pricing import MOST_NUSD, Rate
from gateway.domain.pricing.settlement import Counted, Settlement, UncountedFee
from gateway.domain.pricing.tokens import NOTHING_SERVED, TokenKind, TokenUsage, UsageSource
from tests.factories import price, settled

HELD_NUSD = 100_000
USAGE = TokenUsage(input_tokens=10, output_tokens=5)  # 30,000 nano-dollars at the factory's price
LESS = TokenUsage(input_tokens=10, output_tokens=3)
INPUT_ONLY = TokenUsage(input_tokens=10, cached_input_tokens=4)
COUNTED = TokenUsage(input_tokens=12, output_tokens=4)
CONTRADICTIONS = [
    TokenUsage(input_tokens=-1, output_tokens=5),
    TokenUsage(input_tokens=10, output_tokens=-1),
    TokenUsage(input_tokens=10**11, output_tokens=5),
    TokenUsage(input_tokens=10, output_tokens=10**12),
    TokenUsage(input_tokens=10, cached_input_tokens=11, output_tokens=5),
    TokenUsage(input_tokens=10, cached_input_tokens=6, cache_write_tokens=6, output_tokens=5),
    TokenUsage(input_tokens=10, output_tokens=5, reasoning_tokens=6),
    TokenUsage(output_tokens=5),
    TokenUsage(input_tokens=10),
]


def charged(final: TokenUsage | None, **known: Any) -> Settlement:
    return settled(final, **{"held_nusd": HELD_NUSD} | known)


def summary(
    found: Settlement,
) -> tuple[UsageSource, int | None, int | None, TokenUsage | None, bool]:
    return found.source, found.cost_nusd, found.held_nusd, found.reported, found.is_suspect


# ---- the upstream's last word


def test_the_upstreams_last_word_is_charged() -> None:
    """The ordinary case: the provider's own figure, its lines and their sum."""
    found = charged(USAGE)
    assert summary(found) == (UsageSource.PROVIDER, 30_000, None, None, False)
    assert (found.usage, sum(line.cost_nusd for line in found.lines)) == (USAGE, 30_000)


def test_a_last_word_after_running_figures_is_charged_once() -> None:
    """The running figure is a part of the final one, not an addition to it."""
    found = charged(USAGE, running=LESS)
    assert (found.usage, found.source, found.cost_nusd) == (USAGE, UsageSource.PROVIDER, 30_000)


def test_usage_of_a_refused_attempt_is_charged_all_the_same() -> None:
    """An error that reports tokens did cost them."""
    assert summary(charged(USAGE, was_served=False)) == (
        UsageSource.PROVIDER,
        30_000,
        None,
        None,
        False,
    )


def test_zero_tokens_are_not_unknown() -> None:
    """An upstream that says 0 is believed, while nothing that was seen speaks against it."""
    zero = TokenUsage(input_tokens=0, output_tokens=0)
    found = charged(zero)
    assert (found.usage, *summary(found)) == (zero, UsageSource.PROVIDER, 0, None, None, False)


def test_nothing_served_costs_zero_and_says_why() -> None:
    """Zero is a fact here and not a guess: the connection was refused, or the upstream refused
    the request.
    """
    found = charged(None, was_served=False)
    assert (found.usage, *summary(found)) == (
        NOTHING_SERVED,
        UsageSource.NONE,
        0,
        None,
        None,
        False,
    )


def test_unknown_usage_is_held_and_never_zero() -> None:
    """An answer without usage did cost something: the bound stands for it until someone knows."""
    found = charged(None)
    assert (found.usage, *summary(found)) == (
        TokenUsage(),
        UsageSource.UNKNOWN,
        None,
        HELD_NUSD,
        None,
        False,
    )


def test_embeddings_have_no_output_side() -> None:
    """Their usage says nothing of an output because there is none: that is not unknown."""
    usage = TokenUsage(input_tokens=10)
    found = charged(usage, writes_output=False, price=price("1", None))
    assert (found.usage, *summary(found)) == (
        usage,
        UsageSource.PROVIDER,
        10_000,
        None,
        None,
        False,
    )


def test_tokens_without_a_price_are_held_and_flagged() -> None:
    """An embedding price meets output tokens: held with its tokens, not billed at zero."""
    found = charged(USAGE, price=price("1", None))
    assert (found.usage, *summary(found)) == (
        USAGE,
        UsageSource.UNKNOWN,
        None,
        HELD_NUSD,
        None,
        True,
    )


def test_a_service_tier_without_a_price_is_held_and_flagged() -> None:
    """Flex costs half and priority twice as much: neither is charged as standard."""
    found = charged(USAGE, service_tier="priority")
    assert (found.usage, *summary(found)) == (
        USAGE,
        UsageSource.UNKNOWN,
        None,
        HELD_NUSD,
        None,
        True,
    )
    assert charged(USAGE, service_tier="default").cost_nusd == 30_000


def test_a_service_tier_with_a_price_is_charged_at_it() -> None:
    """The tier that answered, not the one that was asked for."""
    both = price()
    tiered = replace(
        both,
        rates=(
            *both.rates,
            *(
                replace(rate, service_tier="flex", usd_per_mtok=rate.usd_per_mtok / 2)
                for rate in both.rates
            ),
        ),
    )
    assert (
        charged(USAGE, price=tiered, service_tier="flex").cost_nusd,
        charged(USAGE, price=tiered).cost_nusd,
    ) == (
        15_000,
        30_000,
    )


# ---- above the hold


def test_a_cost_above_the_hold_is_charged_and_flagged_with_both_figures() -> None:
    """The provider will bill it; that the bound was none is for a person to look at."""
    found = charged(USAGE, held_nusd=29_999)
    assert (found.usage, *summary(found)) == (
        USAGE,
        UsageSource.PROVIDER,
        30_000,
        29_999,
        None,
        True,
    )
    assert not charged(USAGE, held_nusd=30_000).is_suspect


def test_a_cost_that_no_ledger_can_hold_is_held() -> None:
    """Tokens that pass as plausible times a dear price must not break the column."""
    usage = TokenUsage(input_tokens=10**11 - 1, output_tokens=0)
    found = charged(usage, price=price("1000000"))
    assert (found.usage, *summary(found)) == (
        usage,
        UsageSource.UNKNOWN,
        None,
        HELD_NUSD,
        None,
        True,
    )
    assert (
        charged(usage, price=price("90000")).cost_nusd == (10**11 - 1) * 90_000 * 1000 < MOST_NUSD
    )


# ---- running figures


def test_a_running_figure_is_charged_as_derived() -> None:
    """An abandoned stream is charged for its generated part, and the event names the source."""
    assert summary(charged(None, running=USAGE)) == (UsageSource.DERIVED, 30_000, None, None, False)


@pytest.mark.parametrize("usage", CONTRADICTIONS)
def test_a_running_figure_that_cannot_be_true_is_held(usage: TokenUsage) -> None:
    """Half a figure is kept but not charged; one that contradicts itself is flagged as well."""
    found = charged(None, running=usage)
    assert summary(found) == (
        UsageSource.UNKNOWN,
        None,
        HELD_NUSD,
        usage,
        usage not in CONTRADICTIONS[-2:],
    )


# ---- figures that cannot be true


@pytest.mark.parametrize("usage", CONTRADICTIONS)
def test_usage_that_contradicts_itself_is_held_and_flagged(usage: TokenUsage) -> None:
    """A figure that cannot be true is not charged to anybody, and not dropped either."""
    found = charged(usage)
    assert (found.usage, *summary(found)) == (
        TokenUsage(),
        UsageSource.UNKNOWN,
        None,
        HELD_NUSD,
        usage,
        True,
    )


@pytest.mark.parametrize("usage", CONTRADICTIONS)
def test_our_own_figure_stands_in_for_one_that_cannot_be_true(usage: TokenUsage) -> None:
    """Both values are kept: the reported one, and the charged one."""
    found = charged(usage, running=USAGE)
    assert (found.usage, *summary(found)) == (USAGE, UsageSource.DERIVED, 30_000, None, usage, True)


@pytest.mark.parametrize(
    "final",
    [
        LESS,
        TokenUsage(input_tokens=9, output_tokens=5),
        TokenUsage(input_tokens=0, output_tokens=0),
    ],
)
def test_a_final_usage_below_the_running_usage_is_not_believed(final: TokenUsage) -> None:
    """Otherwise an upstream that resets its counters would make a long answer cheap."""
    found = charged(final, running=USAGE)
    assert (found.usage, *summary(found)) == (USAGE, UsageSource.DERIVED, 30_000, None, final, True)


def test_a_broken_running_figure_does_not_discredit_the_last_word() -> None:
    """A counter that was wrong on the way may still end right."""
    found = charged(USAGE, running=TokenUsage(input_tokens=10, output_tokens=10**12))
    assert summary(found) == (UsageSource.PROVIDER, 30_000, None, None, False)


@pytest.mark.parametrize("half", [INPUT_ONLY, TokenUsage(output_tokens=3), TokenUsage()])
def test_half_a_running_figure_does_not_discredit_the_last_word(half: TokenUsage) -> None:
    """Some upstreams report the prompt first and the answer at the end; a missing part is
    neither zero nor more.
    """
    assert summary(charged(USAGE, running=half)) == (
        UsageSource.PROVIDER,
        30_000,
        None,
        None,
        False,
    )


def test_a_last_word_without_an_output_side_follows_one_without() -> None:
    """Embeddings: neither figure has an output, and neither is below the other."""
    usage = TokenUsage(input_tokens=10)
    found = charged(usage, running=usage, writes_output=False, price=price("1", None))
    assert summary(found) == (UsageSource.PROVIDER, 10_000, None, None, False)


def test_zero_output_with_content_seen_is_not_believed() -> None:
    """The caller read an answer: it did not cost nothing. LiteLLM billed such streams at zero."""
    zero = TokenUsage(input_tokens=10, output_tokens=0)
    assert summary(charged(zero, least_output_tokens=1)) == (
        UsageSource.UNKNOWN,
        None,
        HELD_NUSD,
        zero,
        True,
    )
    counted = Counted(usage=COUNTED, is_exact=True)
    found = charged(zero, least_output_tokens=1, counted=counted)
    assert found.usage == TokenUsage(input_tokens=10, output_tokens=4)
    assert summary(found) == (UsageSource.DERIVED, 26_000, None, zero, True)


def test_a_prompt_of_nothing_that_was_answered_is_counted() -> None:
    """A server that reports 0 gave all prompts away; its report on the answer stands."""
    free = TokenUsage(input_tokens=0, output_tokens=5, reasoning_tokens=2)
    assert summary(charged(free)) == (UsageSource.UNKNOWN, None, HELD_NUSD, free, True)
    found = charged(free, counted=Counted(usage=COUNTED, is_exact=True))
    assert found.usage == TokenUsage(input_tokens=12, output_tokens=5, reasoning_tokens=2)
    assert summary(found) == (UsageSource.ESTIMATED, 32_000, None, free, True)
    assert summary(charged(free, has_prompt=False)) == (
        UsageSource.PROVIDER,
        20_000,
        None,
        None,
        False,
    )
    filtered = TokenUsage(input_tokens=0, output_tokens=0)
    assert summary(charged(filtered)) == (UsageSource.PROVIDER, 0, None, None, False)


# ---- counted


@pytest.mark.parametrize(
    ("running", "is_exact", "source", "usage"),
    [
        (None, True, UsageSource.ESTIMATED, COUNTED),
        (None, False, UsageSource.ESTIMATED, COUNTED),
        (
            INPUT_ONLY,
            False,
            UsageSource.ESTIMATED,
            TokenUsage(input_tokens=10, cached_input_tokens=4, output_tokens=4),
        ),
        (
            INPUT_ONLY,
            True,
            UsageSource.DERIVED,
            TokenUsage(input_tokens=10, cached_input_tokens=4, output_tokens=4),
        ),
        (TokenUsage(input_tokens=-1), True, UsageSource.ESTIMATED, COUNTED),
        (TokenUsage(output_tokens=3), True, UsageSource.ESTIMATED, COUNTED),
    ],
)
def test_a_count_is_derived_only_if_both_sides_are_exact(
    running: TokenUsage | None, is_exact: bool, source: UsageSource, usage: TokenUsage
) -> None:
    """The output counted by the model's own tokenizer, the input reported by the provider; all
    else is an estimate.
    """
    found = charged(None, running=running, counted=Counted(usage=COUNTED, is_exact=is_exact))
    assert (found.usage, found.source, found.reported) == (usage, source, running)
    assert found.is_suspect == (running is not None and running.input_tokens == -1)


def test_the_upstreams_running_figure_beats_our_count() -> None:
    """It saw the tokens; we saw text."""
    found = charged(None, running=USAGE, counted=Counted(usage=COUNTED, is_exact=True))
    assert (found.usage, found.source) == (USAGE, UsageSource.DERIVED)


def test_half_a_count_is_no_figure() -> None:
    """An output without an input has no price."""
    found = charged(None, counted=Counted(usage=TokenUsage(output_tokens=4), is_exact=True))
    assert summary(found) == (UsageSource.UNKNOWN, None, HELD_NUSD, None, False)


def test_our_own_figure_stops_at_the_bound_that_was_sent() -> None:
    """An upstream that writes beyond it cannot bill that; the excess is flagged."""
    many = TokenUsage(input_tokens=12, output_tokens=400, reasoning_tokens=300)
    counted = Counted(usage=many, is_exact=False)
    found = charged(None, counted=counted, sent_output_tokens=30, least_output_tokens=90)
    assert (found.source, found.is_suspect) == (UsageSource.ESTIMATED, True)
    assert found.usage == TokenUsage(input_tokens=12, output_tokens=30, reasoning_tokens=30)
    without = Counted(usage=TokenUsage(input_tokens=12, output_tokens=400), is_exact=False)
    assert charged(None, counted=without, sent_output_tokens=30).usage.reasoning_tokens is None
    allowed = charged(None, counted=counted, sent_output_tokens=400)
    assert (allowed.usage, allowed.is_suspect) == (many, True)  # above its hold
    assert charged(None, counted=counted, held_nusd=10**9).usage == many


# ---- every combination

maybe = (
    st.none() | st.integers(min_value=-2, max_value=20) | st.sampled_from([10**10, 10**11, 10**30])
)
usages = st.none() | st.builds(
    TokenUsage,
    input_tokens=maybe,
    cached_input_tokens=maybe,
    cache_write_tokens=maybe,
    output_tokens=maybe,
    reasoning_tokens=maybe,
)
few = st.integers(min_value=0, max_value=30)
counts = st.none() | st.builds(
    Counted,
    usage=st.builds(TokenUsage, input_tokens=few, output_tokens=few),
    is_exact=st.booleans(),
)


@given(
    usages, usages, counts, st.booleans(), st.booleans(), st.integers(0, 5), st.integers(0, 200_000)
)
def test_every_attempt_has_a_cost_or_a_hold_and_says_how_we_know(
    final: TokenUsage | None,
    running: TokenUsage | None,
    counted: Counted | None,
    was_served: bool,
    writes_output: bool,
    least: int,
    held_nusd: int,
) -> None:
    """Unknown is never zero, zero is never unknown, nothing above the hold goes unnoticed, no
    figure is lost.
    """
    found = charged(
        final,
        running=running,
        counted=counted,
        was_served=was_served,
        writes_output=writes_output,
        least_output_tokens=least,
        held_nusd=held_nusd,
    )
    assert (found.source is UsageSource.UNKNOWN) == (found.cost_nusd is None)
    if found.cost_nusd is None:
        assert found.held_nusd == held_nusd
    else:
        assert 0 <= found.cost_nusd == sum(line.cost_nusd for line in found.lines)
        assert found.usage.is_plausible
        assert (found.held_nusd is not None) == (found.cost_nusd > held_nusd)
        assert found.is_suspect or found.cost_nusd <= held_nusd
    if found.source is UsageSource.NONE:
        assert (final, running, was_served) == (None, None, False)
    if found.source is UsageSource.PROVIDER:
        assert (found.usage, found.reported) == (final, None)
        assert not writes_output or (
            final and final.output_tokens is not None and final.output_tokens >= least
        )
    if final is not None:
        assert final in (found.usage, found.reported)
        assert found.source is UsageSource.PROVIDER or found.is_suspect


def test_a_count_of_any_length_is_kept_short() -> None:
    """A stored report must fit in its reserved room; such a count is false either way."""
    usage = TokenUsage(input_tokens=10**4000, cached_input_tokens=-(10**4000), output_tokens=7)
    assert usage.bounded == TokenUsage(
        input_tokens=10**18, cached_input_tokens=-(10**18), output_tokens=7
    )
    assert not usage.bounded.is_plausible


# ---- fees that no usage counts

SEARCHES = replace(
    price(), rates=(*price().rates, Rate(kind=TokenKind.WEB_SEARCH, usd_per_mtok=Decimal(10)))
)
UNCOUNTED = UncountedFee(kind=TokenKind.WEB_SEARCH)


@pytest.mark.parametrize("fee", [UNCOUNTED, UncountedFee(kind=None)])
@pytest.mark.parametrize(
    "known",
    [{"final": USAGE}, {"running": USAGE}, {"counted": Counted(usage=USAGE, is_exact=True)}],
)
def test_tokens_beside_an_uncounted_fee_are_held(fee: UncountedFee, known: dict[str, Any]) -> None:
    """Their cost would be too little, whoever counted them."""
    found = settled(**{"final": None} | known, fee=fee, price=SEARCHES, held_nusd=HELD_NUSD)
    assert (found.source, found.cost_nusd, found.held_nusd) == (
        UsageSource.UNKNOWN,
        None,
        HELD_NUSD,
    )
    assert (found.usage, found.is_suspect) == (USAGE, False)


def test_calls_that_the_usage_counts_are_charged() -> None:
    """A figure of the provider settles the fee."""
    counted = msgspec.structs.replace(USAGE, web_search_calls=2)
    assert charged(counted, fee=UNCOUNTED, price=SEARCHES).cost_nusd == 30_000 + 20_000


def test_a_fee_of_each_request_is_charged_once() -> None:
    """The provider states how many calls a request is billed; without a price it is held."""
    fee = UncountedFee(kind=TokenKind.WEB_SEARCH, per_request=1)
    found = charged(USAGE, fee=fee, price=SEARCHES)
    assert (found.cost_nusd, found.usage.web_search_calls) == (30_000 + 10_000, 1)
    assert charged(USAGE, fee=fee).cost_nusd is None


def test_what_was_not_served_has_no_fee() -> None:
    """A refused request is not billed."""
    assert charged(None, was_served=False, fee=UNCOUNTED).cost_nusd == 0


def test_units_of_an_unknown_name_are_held_unless_the_engine_is_ones_own() -> None:
    """An engine's next version may count what nobody bills."""
    usage = TokenUsage(input_tokens=10, output_tokens=5, unknown_units=3)
    found = charged(usage)
    assert summary(found)[:2] == (UsageSource.UNKNOWN, None)
    own = charged(usage, is_self_hosted=True)
    assert (own.usage, own.cost_nusd, own.is_suspect) == (USAGE, 30_000, False)
