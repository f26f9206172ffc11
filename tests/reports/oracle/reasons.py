"""The reasons of a change by team and model, for the oracle of `report spend --why`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction

from tests.reports.oracle.expected import Part, Rows, counted, known, total

AMOUNTS = ("previous_usd", "total_usd", "change_usd", "volume_usd", "price_usd", "other_usd")
Reasons = Mapping[str, Fraction | None]
Parts = Sequence[Part]


def reasons(now: Rows, before: Rows) -> Mapping[tuple[str, ...], Reasons]:
    """Return the amounts of each row, in nano-dollars; the row `()` is the total."""
    pairs = [pair for pair in {**now, **before} if pair]
    found = {pair: _row(now.get(pair, ()), before.get(pair, ())) for pair in pairs}
    found[()] = {
        name: sum((row[name] or Fraction(0) for row in found.values()), Fraction(0))
        for name in AMOUNTS
    }
    return found


def _row(now: Parts, before: Parts) -> Reasons:
    previous, amount = total(before), total(now)
    change = (amount or Fraction(0)) - (previous or Fraction(0))
    volume, price = _volume_and_price(now, before)
    return dict(
        zip(
            AMOUNTS, (previous, amount, change, volume, price, change - volume - price), strict=True
        )
    )


def _volume_and_price(now: Parts, before: Parts) -> tuple[Fraction, Fraction]:
    """Return both parts of the change of known costs; 0 if either is unknown."""
    cost, earlier = known(now), known(before)
    if cost is None or earlier is None:
        return Fraction(0), Fraction(0)
    tokens, past = (counted(one, "total_tokens", is_reported=True) for one in (now, before))
    if not tokens or not past:
        return cost - earlier, Fraction(0)
    volume = Fraction(round(earlier * (tokens - past) / past))  # half-even, to the nano-dollar
    return volume, cost - earlier - volume
