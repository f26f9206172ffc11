"""An attempt whose process died: the use of its last progress figure."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from gateway.domain.ledger.records import recovered
from gateway.domain.ledger.usage_event import Outcome, UsageEvent
from gateway.domain.pricing.tokens import TokenUsage, UsageSource
from tests.factories import price
from tests.storage.factories import event

HELD_NUSD = 100_000
USAGE = TokenUsage(input_tokens=10, output_tokens=5)


def intent(held_nusd: int = HELD_NUSD) -> UsageEvent:
    return event(
        outcome=Outcome.INTERRUPTED,
        usage=TokenUsage(),
        usage_source=UsageSource.UNKNOWN,
        lines=(),
        cost_nusd=None,
        held_nusd=held_nusd,
    )


def test_an_intent_alone_stands_as_it_is() -> None:
    """Without further records: unknown, at its hold."""
    assert recovered(intent(), price(), None, writes_output=True) == intent()


def test_progress_makes_it_derived() -> None:
    """The page cache survives the process: the last recorded usage is charged, and the event
    names its source.
    """
    found = recovered(intent(), price(), USAGE, writes_output=True)
    assert (found.usage, found.usage_source, found.cost_nusd, found.held_nusd) == (
        USAGE,
        UsageSource.DERIVED,
        30_000,
        None,
    )
    assert sum(line.cost_nusd for line in found.lines) == 30_000
    assert (found.outcome, found.is_suspect, found.reported) == (Outcome.INTERRUPTED, False, None)


def test_progress_up_to_the_hold_is_charged() -> None:
    """The hold is the most it can have cost, so exactly that much contradicts nothing."""
    found = recovered(intent(30_000), price(), USAGE, writes_output=True)
    assert (found.cost_nusd, found.held_nusd, found.is_suspect) == (30_000, None, False)


def test_progress_above_the_hold_is_kept_but_not_charged() -> None:
    """progress ≤ true ≤ hold: if the first exceeds the last, one of them is wrong, and a person
    must look.
    """
    found = recovered(intent(29_999), price(), USAGE, writes_output=True)
    assert found == replace(intent(29_999), reported=USAGE, is_suspect=True)


@pytest.mark.parametrize(
    ("running", "is_suspect"),
    [(TokenUsage(input_tokens=10), False), (TokenUsage(input_tokens=-1, output_tokens=1), True)],
)
def test_half_a_figure_or_a_broken_one_leaves_the_hold(
    running: TokenUsage, is_suspect: bool
) -> None:
    """The reported figures are kept beside it."""
    found = recovered(intent(), price(), running, writes_output=True)
    assert found == replace(intent(), reported=running, is_suspect=is_suspect)


def test_embeddings_need_no_output() -> None:
    """Their figure is whole without one."""
    found = recovered(intent(), price("1", None), TokenUsage(input_tokens=10), writes_output=False)
    assert (found.usage_source, found.cost_nusd) == (UsageSource.DERIVED, 10_000)


@given(st.integers(0, 200), st.integers(0, 200), st.integers(0, 10**6))
def test_a_recovered_attempt_never_costs_more_than_its_hold(
    input_tokens: int, output_tokens: int, held: int
) -> None:
    """And two recoveries of one journal write the same row."""
    running = TokenUsage(input_tokens=input_tokens, output_tokens=output_tokens)
    found = recovered(intent(held), price(), running, writes_output=True)
    assert found == recovered(intent(held), price(), running, writes_output=True)
    assert (found.cost_nusd is None) == (found.held_nusd is not None)
    assert found.cost_nusd is None or found.cost_nusd <= held
