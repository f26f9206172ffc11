"""What an attempt is charged: the decision table of everything that can be known about its usage."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.settlement import Settlement, settle
from gateway.domain.tokens import NOTHING_SERVED, TokenUsage, UsageSource
from tests.factories import price

USAGE = TokenUsage(input_tokens=10, output_tokens=5)


def charged(usage: TokenUsage | None, *, writes_output: bool = True, **known: Any) -> Settlement:
    return settle(usage, writes_output=writes_output, **known)


def test_the_upstreams_last_word_is_charged() -> None:
    """The ordinary case: the provider's own figure, its lines and their sum."""
    found = charged(USAGE, is_final=True, was_served=True, price=price("1", "4"), held_nusd=99)
    assert (found.source, found.cost_nusd, found.held_nusd, found.usage) == (UsageSource.PROVIDER, 30_000, None, USAGE)
    assert sum(line.cost_nusd for line in found.lines) == 30_000
    assert not found.is_suspect


def test_a_running_figure_is_charged_as_derived() -> None:
    """An abandoned stream is charged for what was generated, and the event says how we know."""
    found = charged(USAGE, is_final=False, was_served=True, price=price(), held_nusd=99)
    assert (found.source, found.cost_nusd) == (UsageSource.DERIVED, 30_000)


def test_usage_of_a_refused_attempt_is_charged_all_the_same() -> None:
    """An error that reports tokens did cost them."""
    found = charged(USAGE, is_final=True, was_served=False, price=price(), held_nusd=99)
    assert (found.source, found.cost_nusd) == (UsageSource.PROVIDER, 30_000)


def test_nothing_served_costs_zero_and_says_why() -> None:
    """Zero is a fact here and not a guess: the connection was refused, or the upstream said no."""
    found = charged(None, is_final=False, was_served=False, price=price(), held_nusd=99)
    assert (found.source, found.cost_nusd, found.held_nusd) == (UsageSource.NONE, 0, None)
    assert found.usage == NOTHING_SERVED


def test_unknown_usage_is_held_and_never_zero() -> None:
    """An answer without usage did cost something: the bound stands for it until someone knows."""
    found = charged(None, is_final=False, was_served=True, price=price(), held_nusd=99)
    assert (found.source, found.cost_nusd, found.held_nusd) == (UsageSource.UNKNOWN, None, 99)
    assert found.usage == TokenUsage()
    assert not found.is_suspect


def test_zero_tokens_are_not_unknown() -> None:
    """An upstream that says 0 is believed."""
    zero = TokenUsage(input_tokens=0, output_tokens=0)
    found = charged(zero, is_final=True, was_served=True, price=price(), held_nusd=99)
    assert (found.source, found.cost_nusd, found.usage) == (UsageSource.PROVIDER, 0, zero)


@pytest.mark.parametrize(
    "usage",
    [
        TokenUsage(input_tokens=-1, output_tokens=5),
        TokenUsage(input_tokens=10**11, output_tokens=5),
        TokenUsage(input_tokens=10, cached_input_tokens=11, output_tokens=5),
        TokenUsage(input_tokens=10, cached_input_tokens=6, cache_write_tokens=6, output_tokens=5),
        TokenUsage(input_tokens=10, output_tokens=5, reasoning_tokens=6),
        TokenUsage(output_tokens=5),
        TokenUsage(input_tokens=10),
    ],
)
def test_usage_that_contradicts_itself_is_held_and_flagged(usage: TokenUsage) -> None:
    """A figure that cannot be true is not charged to anybody, and not dropped either."""
    found = charged(usage, is_final=True, was_served=True, price=price(), held_nusd=99)
    assert (found.source, found.cost_nusd, found.held_nusd) == (UsageSource.UNKNOWN, None, 99)
    assert found.is_suspect


def test_embeddings_have_no_output_side() -> None:
    """Their usage says nothing of an output because there is none: that is not unknown."""
    usage = TokenUsage(input_tokens=10)
    found = charged(usage, is_final=True, was_served=True, writes_output=False, price=price("1", None), held_nusd=99)
    assert (found.source, found.cost_nusd, found.usage) == (UsageSource.PROVIDER, 10_000, usage)


def test_tokens_without_a_price_are_held_and_flagged() -> None:
    """An embedding price meets output tokens: held with both figures, not billed at zero."""
    found = charged(USAGE, is_final=True, was_served=True, price=price("1", None), held_nusd=99)
    assert (found.source, found.cost_nusd, found.held_nusd, found.usage) == (UsageSource.UNKNOWN, None, 99, USAGE)
    assert found.is_suspect


maybe = st.none() | st.integers(min_value=-2, max_value=20)


@given(st.builds(TokenUsage, input_tokens=maybe, cached_input_tokens=maybe, cache_write_tokens=maybe,
                 output_tokens=maybe, reasoning_tokens=maybe) | st.none(), st.booleans(), st.booleans())  # fmt: skip
def test_every_attempt_has_either_a_cost_or_a_hold(usage: TokenUsage | None, is_final: bool, was_served: bool) -> None:
    """Unknown is never zero, zero is never unknown: exactly one of the two is there."""
    found = charged(usage, is_final=is_final, was_served=was_served, price=price(), held_nusd=99)
    assert (found.cost_nusd is None) != (found.held_nusd is None)
    assert (found.source is UsageSource.UNKNOWN) == (found.cost_nusd is None)
    assert found.cost_nusd is None or found.cost_nusd == sum(line.cost_nusd for line in found.lines)
