"""Declares a dated rate of a display currency; the ledger stays in USD."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import date
from decimal import Decimal

from gateway.errors import BadUsage

# ISO 4217 has three letters; which of them exist is not ours to know.
_CODE = re.compile(r"[A-Z]{3}")
MOST_DIGITS = 30
LEAST, MOST = Decimal("1e-12"), Decimal("1e12")  # beyond these a rate is a slip of the keyboard


@dataclass(frozen=True, slots=True, kw_only=True)
class NewRate:
    """The dollars that one unit of a currency is worth from a UTC day on."""

    currency: str
    first_day: date
    usd_per_unit: Decimal
    source: str


def currency_code(text: str) -> str:
    """Return the ISO 4217 code of a currency, in upper case. Raises `BadUsage`."""
    code = text.strip().upper()
    if not _CODE.fullmatch(code):
        raise BadUsage(f"'{text}' is not a currency. Write its ISO 4217 code, for example EUR.")
    return code


def new_rate(*, currency: str, first_day: date, usd_per_unit: Decimal, source: str) -> NewRate:
    """Return a valid rate. Raises `BadUsage` with the wrong part."""
    code = currency_code(currency)
    if code == "USD":
        raise BadUsage("The ledger is in USD, so USD has no rate. Nothing was added.")
    if not (usd_per_unit.is_finite() and usd_per_unit > 0):
        raise BadUsage(
            "--usd-per-unit is more than 0: the dollars that 1 EUR is worth, say 1.0850."
        )
    if not LEAST <= usd_per_unit <= MOST:
        raise BadUsage(f"--usd-per-unit is from {LEAST:f} to {MOST:f}. Nothing was added.")
    if len(usd_per_unit.as_tuple().digits) > MOST_DIGITS:
        raise BadUsage(f"--usd-per-unit has at most {MOST_DIGITS} digits. Nothing was added.")
    if not source.strip():
        raise BadUsage("--source names the origin of the rate, such as 'ECB reference 2026-11-02'.")
    return NewRate(
        currency=code, first_day=first_day, usd_per_unit=usd_per_unit, source=source.strip()
    )
