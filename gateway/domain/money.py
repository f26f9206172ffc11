"""Converts exact money between integer nano-dollars (storage) and `Decimal` dollars, and formats
it; never through a float.
"""

from __future__ import annotations

from collections.abc import Sequence
from decimal import ROUND_FLOOR, ROUND_HALF_EVEN, Context, Decimal
from functools import lru_cache

NUSD_PER_USD = 10**9
EXACT = Context(prec=60)  # no amount or rate has more digits; the default of 28 would round it


def nusd_from_usd(amount_usd: Decimal) -> int:
    """Return an amount of dollars in nano-dollars, rounded once, half-even."""
    return int(EXACT.scaleb(amount_usd, 9).to_integral_value(rounding=ROUND_HALF_EVEN))


def usd_from_nusd(amount_nusd: int) -> Decimal:
    """Return an amount of nano-dollars in dollars, with all nine decimals."""
    return EXACT.scaleb(Decimal(amount_nusd), -9)


@lru_cache(maxsize=1024)  # a cost appears in the answer, a header and a log line in turn
def plain_usd(amount_nusd: int) -> str:
    """Return dollars as a plain decimal for JSON and CSV: no exponent, no trailing zeros
    (`0.0001234`).
    """
    whole, rest = divmod(abs(amount_nusd), NUSD_PER_USD)
    sign = "-" if amount_nusd < 0 else ""
    return f"{sign}{whole}.{rest:09d}".rstrip("0").rstrip(".")


def format_usd(amount_usd: Decimal | None) -> str:
    """Return dollars for people: `$1,234.56`; below a cent four significant digits; None is
    `unknown`.

    A non-zero amount never prints as `$0.00`.
    """
    if amount_usd is None:
        return "unknown"
    sign = "-" if amount_usd < 0 else ""
    size = abs(amount_usd)
    if size == 0 or size >= Decimal("0.01"):
        return f"{sign}${size:,.2f}"
    rounded = Context(prec=4, rounding=ROUND_HALF_EVEN).plus(size)
    return f"{sign}${rounded:f}"


def format_unit_cost(unit_cost_usd: Decimal) -> str:
    """Return the cost of one unit for people: four significant digits below a dollar, because a
    hundredth of one is half of `$0.01`.
    """
    size = abs(unit_cost_usd)
    if not Decimal("0.01") <= size < 1:
        return format_usd(unit_cost_usd)
    return f"{'-' if unit_cost_usd < 0 else ''}${size:.{5 if size < Decimal('0.1') else 4}f}"


def format_amount(amount: Decimal | None, currency: str) -> str:
    """Return an amount for people with its currency: `$1,234.56`, or `1,234.56 EUR`."""
    return in_place_of_dollars(format_usd(amount), currency)


def in_place_of_dollars(text: str, currency: str) -> str:
    """Return a text of dollars with another currency: `$0.075` becomes `0.075 EUR`."""
    return (
        text if currency == "USD" or "$" not in text else f"{text.replace('$', '', 1)} {currency}"
    )


def round_parts(parts: Sequence[Decimal], whole: Decimal) -> list[Decimal]:
    """Return exact parts rounded to nine decimals so that they add up to `whole`, which has nine.

    The units that are left after rounding down go to the largest remainders, the first of equal
    ones. Parts that do not add up to the whole are rounded half-even, each by itself.
    """
    scaled = [EXACT.scaleb(part, 9) for part in parts]
    floors = [int(part.to_integral_value(rounding=ROUND_FLOOR)) for part in scaled]
    left = nusd_from_usd(whole) - sum(floors)
    if not 0 <= left <= len(parts):
        return [usd_from_nusd(nusd_from_usd(part)) for part in parts]
    remainders = [EXACT.subtract(part, floor) for part, floor in zip(scaled, floors, strict=True)]
    for place in sorted(range(len(parts)), key=lambda one: -remainders[one])[:left]:
        floors[place] += 1
    return [usd_from_nusd(nano) for nano in floors]
