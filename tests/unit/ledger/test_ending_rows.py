"""Every ending has its row: settled as the table says, and shown in docs/reference/outcomes.md."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.domain.ledger.records import recovered
from gateway.domain.ledger.usage_event import Outcome
from gateway.domain.pricing.tokens import TokenUsage, UsageSource
from tests.endings import ENDINGS, HELD_NUSD, Ending
from tests.factories import price, settled
from tests.storage.factories import event

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "outcomes.md"
NAMES = [ending.name for ending in ENDINGS]


@pytest.mark.parametrize("ending", ENDINGS, ids=NAMES)
def test_every_ending_has_its_row(ending: Ending) -> None:
    """One function settles them all: how sure the figure is, whether the upstream's is kept,
    whether it is flagged.
    """
    if ending.outcome is Outcome.INTERRUPTED:
        settle_recovered(ending)
        return
    found = settled(**{"held_nusd": HELD_NUSD} | dict(ending.known))
    assert (found.source, found.reported is not None, found.is_suspect) == (
        ending.source,
        ending.keeps_reported,
        ending.is_suspect,
    )
    assert (found.cost_nusd is None) == (ending.source is UsageSource.UNKNOWN)
    if "least_output_tokens" in ending.known and found.cost_nusd is not None:
        assert found.cost_nusd > 0


def settle_recovered(ending: Ending) -> None:
    intent = event(
        outcome=Outcome.INTERRUPTED,
        usage=TokenUsage(),
        usage_source=UsageSource.UNKNOWN,
        lines=(),
        cost_nusd=None,
        held_nusd=HELD_NUSD,
    )
    found = recovered(intent, price(), ending.known.get("running"), writes_output=True)
    assert (found.usage_source, found.reported is not None, found.is_suspect) == (
        ending.source,
        ending.keeps_reported,
        ending.is_suspect,
    )
    assert found.outcome is ending.outcome


def test_every_outcome_and_every_source_ends_somewhere() -> None:
    """A new outcome needs a row."""
    assert {ending.outcome for ending in ENDINGS} == set(Outcome)
    assert {ending.source for ending in ENDINGS} == set(UsageSource)
    assert len(set(NAMES)) == len(NAMES)


def test_the_page_shows_the_table() -> None:
    """The auditor's page equals the tested table, row by row and in order."""
    shown = [line for line in PAGE.read_text().splitlines() if line.startswith("| ")]
    start = shown.index("| ending | outcome | the caller got | booked | usage source | marks |")
    assert shown[start + 2 : start + 2 + len(ENDINGS)] == [ending.as_row() for ending in ENDINGS]


def test_unknown_is_never_priced_and_zero_is_never_a_guess() -> None:
    """The two rules that the whole page rests on."""
    for ending in ENDINGS:
        if ending.source is UsageSource.NONE:
            assert ending.known.get("was_served") is False
        if ending.source is UsageSource.UNKNOWN:
            assert ending.booked.startswith("Its hold")
