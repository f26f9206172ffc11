"""Reads the dated rates of display currencies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal

from gateway.reports.sources.connection import ReadSnapshot

_LISTED = """
SELECT currency, first_day, next_day, usd_per_unit, source, author, created_at
FROM finance.currency_rates ORDER BY currency, first_day
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class CurrencyRate:
    """The dollars that one unit of a currency is worth from `first_day` up to, not including,
    `next_day`; None: until further notice.
    """

    currency: str
    first_day: date
    next_day: date | None
    usd_per_unit: Decimal
    source: str
    author: str
    created_at: datetime


def currency_rates(snapshot: ReadSnapshot) -> Sequence[CurrencyRate]:
    """Return the rates that count, by currency and day."""
    return [CurrencyRate(**row) for row in snapshot.rows(_LISTED)]
