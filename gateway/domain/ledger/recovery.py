"""The booking of an attempt whose process ended before it did."""

from __future__ import annotations

from msgspec.structs import replace

from gateway.domain.ledger.usage_event import Outcome, UsageEvent
from gateway.domain.pricing.pricing import Price
from gateway.domain.pricing.settlement import Evidence, settle
from gateway.domain.pricing.tokens import TokenUsage


def recovered(
    intent: UsageEvent, price: Price, running: TokenUsage | None, *, writes_output: bool
) -> UsageEvent:
    """Return the event of an attempt with an intent, perhaps a last progress figure, and no
    settlement.

    `intent` is the event that stands without further records: interrupted, unknown at its hold.
    With a running figure it becomes derived and priced: progress ≤ true ≤ hold. A running figure
    that would cost more than the hold breaks that chain. It is then kept as `reported`, and the
    hold stands, flagged. The same input gives the same event, so that two recoveries of one journal
    write one row.
    """
    assert intent.outcome is Outcome.INTERRUPTED
    assert intent.held_nusd is not None
    if running is None:
        return intent
    found = settle(
        Evidence(running=running, was_served=True, writes_output=writes_output),
        price=price,
        held_nusd=intent.held_nusd,
    )
    if found.cost_nusd is None or found.cost_nusd > intent.held_nusd:
        return replace(intent, reported=running, is_suspect=found.is_suspect)
    return replace(
        intent,
        usage=found.usage,
        usage_source=found.source,
        lines=found.lines,
        cost_nusd=found.cost_nusd,
        held_nusd=None,
    )
