"""Declares the values for repricing (a stored event's priced parts, its adjustment), and refuses a
month that is not open; computes no price.

`services/policy/price_changes.py` computes them (`tollgate price reprice`).
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date, datetime
from hashlib import sha256
from uuid import UUID

from gateway.domain.pricing.tokens import TokenUsage
from gateway.errors import OperatorError

OPEN = "open"
KIND = "reprice"


@dataclass(frozen=True, slots=True, kw_only=True)
class PricedEvent:
    """The parts of a stored event that matter to its price.

    `adjusted_nusd` is the sum of earlier repricing, in `times` steps.

    `is_corrected`: a person or a redelivery has corrected the cost since; that correction stands.
    `stated_geo` is the place that the answer stated. `has_stated_writes`: its writes to a cache
    were charged by the provider's stated factor, as its price listed no rate of them.
    """

    request_id: UUID
    attempt: int
    occurred_at: datetime
    team: str
    cost_centre: str
    deployment: str
    model: str
    policy_version: int
    service_tier: str | None
    usage: TokenUsage
    price_id: str | None
    cost_nusd: int | None
    adjusted_nusd: int
    times: int
    is_corrected: bool = False
    stated_geo: str | None = None
    has_stated_writes: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Adjustment:
    """A signed correction of one event, in nano-dollars."""

    event: PricedEvent
    amount_nusd: int
    reason: str

    @property
    def adjustment_id(self) -> UUID:
        """Return the id: two runs that see the same state make the same id, so the correction is
        posted once.
        """
        event = self.event
        name = f"{KIND}/{event.request_id}/{event.attempt}/{event.times}"
        return UUID(bytes=sha256(name.encode()).digest()[:16], version=5)


def refuse_unless_open(month: date, state: str) -> None:
    """Raise `OperatorError` for a month that may not change any more."""
    if state != OPEN:
        raise OperatorError(
            f"{month:%Y-%m} is {state}: its figures can no longer change. Nothing was written. "
            "Post corrections in the open month."
        )
