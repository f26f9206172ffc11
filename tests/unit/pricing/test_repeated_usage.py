"""Usages that one answer reports several times: the dearer reading is charged, and flagged."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import asdict

from gateway.domain.pricing.pricing import Rate, cost_nusd, plausible_lines
from gateway.domain.pricing.repeated_usage import dearer, is_cheaper
from gateway.domain.pricing.settlement import Settlement
from gateway.domain.pricing.tokens import (
    CALL_KINDS,
    UNREADABLE,
    TokenKind,
    TokenUsage,
    UsageSource,
)
from gateway.wire.observed import Observed
from tests.factories import price, settled

PARTS = (
    "cache_write_tokens",
    "cache_write_30m_tokens",
    "cache_write_1h_tokens",
    "cache_write_12h_tokens",
    "audio_input_tokens",
    "image_input_tokens",
    "reasoning_tokens",
    "audio_output_tokens",
    "image_output_tokens",
)
CALLS = tuple(sorted(f"{kind}_calls" for kind in CALL_KINDS))  # in one order for all workers
EVERY_RATE = replace(
    price(),
    rates=tuple(Rate(kind=kind, usd_per_mtok=Decimal(10_000)) for kind in TokenKind),
)
LARGE = TokenUsage(input_tokens=1000, output_tokens=500)
SMALL = TokenUsage(input_tokens=10, output_tokens=5)


def observed(*usages: TokenUsage) -> Observed:
    """Final usages in the order of an answer."""
    found = Observed()
    for usage in usages:
        found.note_final(usage)
    return found


def settle_of(*usages: TokenUsage) -> Settlement:
    found = observed(*usages)
    return settled(found.final, dearest=found.dearest, impossible=found.impossible, held_nusd=10**9)


@st.composite
def usages(draw: st.DrawFn) -> TokenUsage:
    """A usage that can be true, of text with a prompt's cache."""
    prompt, answer = draw(st.integers(1, 2000)), draw(st.integers(1, 2000))
    cached = draw(st.none() | st.integers(0, prompt))
    reasoning = draw(st.none() | st.integers(0, answer))
    return TokenUsage(
        input_tokens=prompt,
        cached_input_tokens=cached,
        output_tokens=answer,
        reasoning_tokens=reasoning,
    )


@pytest.mark.parametrize("order", [(LARGE, SMALL), (LARGE, SMALL, SMALL)])
def test_a_smaller_figure_after_a_larger_one_is_not_believed(order: tuple[TokenUsage, ...]) -> None:
    found = settle_of(*order)
    assert (found.usage, found.source, found.is_suspect) == (LARGE, UsageSource.PROVIDER, True)
    assert found.reported == SMALL


@pytest.mark.parametrize("order", [(SMALL, LARGE), (LARGE,), (LARGE, LARGE)])
def test_a_growing_or_repeated_figure_is_no_contradiction(order: tuple[TokenUsage, ...]) -> None:
    found = settle_of(*order)
    assert (found.usage, found.is_suspect, found.reported) == (LARGE, False, None)


def test_a_later_figure_may_name_more_parts() -> None:
    """Servers repeat a usage without or with its details."""
    detailed = TokenUsage(input_tokens=1000, cached_input_tokens=900, output_tokens=500)
    assert not settle_of(LARGE, detailed).is_suspect
    assert settle_of(LARGE, detailed).usage == detailed
    assert not settle_of(detailed, LARGE).is_suspect


def test_content_after_a_final_figure_lets_none_be_smaller() -> None:
    """The answer went on, so the last figure counts more than the first."""
    found = observed(LARGE)
    found.note_more()
    found.note_final(TokenUsage(input_tokens=1000, output_tokens=20))
    settlement = settled(found.final, dearest=found.dearest, held_nusd=10**9)
    assert (settlement.usage, settlement.is_suspect) == (LARGE, True)


@given(first=usages(), second=usages())
def test_no_order_costs_less_than_one_of_both(first: TokenUsage, second: TokenUsage) -> None:
    """Nothing tells which figure the provider bills, so the booking is below neither."""
    both = dearer(first, second)
    assert both.is_plausible
    assert both == dearer(second, first)
    for one in (first, second):
        if any(asdict(one)[name] is None for name in ("cached_input_tokens", "reasoning_tokens")):
            continue  # a part that only the other one names
        assert cost_nusd(plausible_lines(both, price())) >= cost_nusd(plausible_lines(one, price()))
        assert not is_cheaper(both, one)


@given(running=usages(), final=usages())
def test_a_final_figure_is_not_charged_below_a_running_one(
    running: TokenUsage, final: TokenUsage
) -> None:
    """A running figure with the larger prompt replaced the final one, with its larger answer."""
    found = settled(final, running=running, held_nusd=10**9)
    for name in ("input_tokens", "output_tokens"):
        assert getattr(found.usage, name) >= max(getattr(final, name), getattr(running, name))
    is_below = is_cheaper_side(final, running)
    assert found.is_suspect is is_below
    assert found.source is (UsageSource.DERIVED if is_below else UsageSource.PROVIDER)


def is_cheaper_side(final: TokenUsage, running: TokenUsage) -> bool:
    """Return True if a count of the final figure is below that of the running one."""
    return any(
        getattr(final, name) is not None and getattr(final, name) < (getattr(running, name) or 0)
        for name in ("input_tokens", "output_tokens", "reasoning_tokens")
    )


@pytest.mark.parametrize("name", [*PARTS, *CALLS])
@pytest.mark.parametrize("as_running", [True, False])
def test_a_part_that_the_last_figure_leaves_out_is_charged(name: str, as_running: bool) -> None:
    """A usage of a stream's end may name fewer parts than the one before it."""
    written = {"cache_write_tokens": 4} if name.startswith("cache_write_") else {}
    early = TokenUsage(**{"input_tokens": 10, "output_tokens": 5, name: 4, **written})
    evidence = {"running": early} if as_running else {"dearest": dearer(early, SMALL)}
    found = settled(SMALL, **evidence, price=EVERY_RATE, held_nusd=10**12)
    assert (found.usage, found.source) == (early, UsageSource.PROVIDER)
    assert (found.reported, found.is_suspect) == (SMALL, False)


def test_parts_that_contradict_each_other_are_held() -> None:
    """90 of 100 tokens cannot be written to a cache and 90 read from it."""
    writes = TokenUsage(input_tokens=100, cache_write_tokens=90, output_tokens=5)
    reads = TokenUsage(input_tokens=100, cached_input_tokens=90, output_tokens=5)
    for found in (settle_of(writes, reads), settled(reads, running=writes, held_nusd=10**9)):
        assert (found.source, found.is_suspect) == (UsageSource.UNKNOWN, True)
        assert found.reported == reads
    assert settle_of(reads, writes).usage == writes, "a discount is not taken over"


@pytest.mark.parametrize(
    "impossible",
    [
        TokenUsage(output_tokens=2000),
        TokenUsage(input_tokens=10, output_tokens=2000, unexplained_tokens=7),
        TokenUsage(unexplained_tokens=UNREADABLE),
        TokenUsage(input_tokens=10, output_tokens=20, reasoning_tokens=30),
    ],
)
@pytest.mark.parametrize("is_last", [True, False])
def test_an_impossible_figure_beside_a_smaller_one_is_kept(
    impossible: TokenUsage, is_last: bool
) -> None:
    found = settle_of(*((SMALL, impossible) if is_last else (impossible, SMALL)))
    assert (found.usage, found.source, found.is_suspect) == (SMALL, UsageSource.PROVIDER, True)
    assert found.reported == impossible


@pytest.mark.parametrize("nothing", [TokenUsage(input_tokens=0, output_tokens=0), TokenUsage()])
def test_zeros_behind_the_figure_are_no_contradiction(nothing: TokenUsage) -> None:
    """Some servers write them in the last event of every stream."""
    seen = Observed(has_content=True)
    for usage in (SMALL, nothing):
        seen.note_final(usage)
    assert (seen.final, seen.impossible) == (SMALL, None)


@given(running=usages(), final=usages(), earlier=usages())
def test_three_figures_are_charged_at_the_dearest_of_each(
    running: TokenUsage, final: TokenUsage, earlier: TokenUsage
) -> None:
    found = settled(final, running=running, dearest=dearer(final, earlier), held_nusd=10**9)
    for name in ("input_tokens", "output_tokens"):
        assert getattr(found.usage, name) >= max(getattr(final, name), getattr(earlier, name)), (
            "a larger one of the final figures"
        )
