"""Declares the ledger's records beside the usage event, and computes the event that recovery books
for an interrupted attempt.

The records are the intent before an attempt is sent, the counts of a written batch, and a document
that the tables cannot hold.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Generic, TypeVar
from uuid import UUID

from msgspec import Struct
from msgspec.structs import replace

from gateway.domain.ledger.usage_event import Outcome, UsageEvent
from gateway.domain.pricing.pricing import Price
from gateway.domain.pricing.settlement import Evidence, settle
from gateway.domain.pricing.tokens import TokenUsage

R = TypeVar("R")


class Intent(Struct, frozen=True, kw_only=True, gc=False):
    """The record written before an attempt is sent. If the process dies, recovery books its event.

    `event` has outcome `interrupted`, unknown usage and its hold. With `price`, recovery can
    charge for recorded running usage; `writes_output` is False for embeddings.
    """

    event: UsageEvent
    price: Price
    writes_output: bool


def recovered(
    intent: UsageEvent, price: Price, running: TokenUsage | None, *, writes_output: bool
) -> UsageEvent:
    """Return the event that recovery books for an interrupted attempt, from its intent and its last
    running usage, if any.

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


@dataclass(frozen=True, slots=True, kw_only=True)
class CopiedSlice(Generic[R]):
    """A slice of generated events that is in the ledger as a whole.

    `new` counts those that were not there before: all or none. `kept` is the result of the slice's
    maker beside the events.
    """

    events: int
    new: int
    kept: R


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """Every document of a batch is in exactly one of these counts.

    `known` were there already. `conflicts` were there with other content, for the first time: an
    operator should look. `dead` cannot be booked and became dead letters.
    """

    inserted: int = 0
    known: int = 0
    conflicts: int = 0
    dead: int = 0

    def __add__(self, other: Written) -> Written:
        """Return the counts of two parts of a batch together."""
        return Written(
            inserted=self.inserted + other.inserted,
            known=self.known + other.known,
            conflicts=self.conflicts + other.conflicts,
            dead=self.dead + other.dead,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetter:
    """A rejected record, stored whole. `error` gives the reason without its content."""

    letter_id: UUID
    journal_id: UUID | None
    recorded_at: datetime
    error: str
    document: bytes
