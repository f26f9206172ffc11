"""Declares one charge of an export in FOCUS, before it is written in that standard's columns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from enum import StrEnum


class LineKind(StrEnum):
    """The kind of a row. Usage and adjustments add up to `total_usd` of the reports."""

    USAGE = "usage"
    ADJUSTMENT = "adjustment"
    EMPTY = "empty"  # GPU time without any attempt in flight
    UNDERFILLED = "underfilled"  # GPU time that the attempts in flight left unused
    VARIANCE = "variance"  # an imported bill less its GPU hours at the declared rate


@dataclass(frozen=True, slots=True, kw_only=True)
class Charge:
    """A charge of one day.

    `amount_usd` is exact. `count` is of tokens, calls or GPU hours, None for a charge without a
    quantity; `usd_per_million` is its rate, None without one. `allocated_share` is the part of the
    day's GPU bill of its deployment, None without a known bill.
    """

    line_kind: LineKind
    day: date
    posted_period: date
    amount_usd: Decimal
    team: str | None = None
    project: str | None = None
    cost_centre: str | None = None
    tags: Mapping[str, str] | None = None
    deployment: str | None = None
    provider: str | None = None
    model: str | None = None
    region: str | None = None
    is_self_hosted: bool = False
    data_class: str | None = None
    token_kind: str | None = None
    count: Decimal | None = None
    usd_per_million: Decimal | None = None
    price_id: str | None = None
    service_tier: str | None = None
    usage_source: str | None = None
    attempts: int | None = None
    adjustment_id: str | None = None
    adjustment_kind: str | None = None
    reason: str | None = None
    request_id: str | None = None
    booked_at: datetime | None = None
    allocated_share: Decimal | None = None
