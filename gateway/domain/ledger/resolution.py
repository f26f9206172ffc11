"""Declares the two value types for resolving an attempt of unknown cost: a person's `zero` or
`hold`, and the booked result; books nothing.

`storage.ledger.adjustments` books resolutions.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from enum import StrEnum
from uuid import UUID


class StatedCost(StrEnum):
    """The stated cost of an unknown attempt, if it is not an amount."""

    ZERO = "zero"
    HOLD = "hold"


@dataclass(frozen=True, slots=True, kw_only=True)
class BookedResolution:
    """A booked resolution.

    `amount_usd` is the difference to the attempt's previous cost, `cost_usd` its cost now.
    """

    adjustment_id: UUID
    request_id: UUID
    attempt: int
    cost_usd: Decimal
    held_usd: Decimal | None
    amount_usd: Decimal
    posted_period: date
    author: str
