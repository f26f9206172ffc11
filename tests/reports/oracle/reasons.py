"""The reasons of a change by any split, for the oracle of `report spend --why`."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from fractions import Fraction

from tests.reports.oracle.expected import Part, Rows, known, total

AMOUNTS = ("previous_usd", "total_usd", "change_usd", "volume_usd", "price_usd", "other_usd")
Reasons = Mapping[str, Fraction | None]
Parts = Sequence[Part]


def reasons(now: Rows, before: Rows, *, places: int) -> Mapping[tuple[str, ...], Reasons]:
    """Return the amounts of each row, in nano-dollars; the row `()` is the total.

    The given rows are cells, with a team and a model each: a row has the names in the first
    `places`, and its volume and price are the sums of its cells.
    """
    cells = [cell for cell in {**now, **before} if cell]
    rows = defaultdict(list)
    for cell in cells:
        rows[cell[:places]].append(cell)
    found = {
        names: _row(
            [(now.get(cell, ()), before.get(cell, ())) for cell in of_row],
        )
        for names, of_row in rows.items()
    }
    found[()] = {
        name: sum((row[name] or Fraction(0) for row in found.values()), Fraction(0))
        for name in AMOUNTS
    }
    return found


def _row(cells: Sequence[tuple[Parts, Parts]]) -> Reasons:
    amount = total([part for now, _ in cells for part in now])
    previous = total([part for _, before in cells for part in before])
    change = (amount or Fraction(0)) - (previous or Fraction(0))
    parts = [_volume_and_price(now, before) for now, before in cells]
    volume, price = (sum(one, Fraction(0)) for one in zip(*parts, strict=True))
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
    tokens, past = (_tokens(one) for one in (now, before))
    if not tokens or not past:
        return cost - earlier, Fraction(0)
    volume = Fraction(round(earlier * (tokens - past) / past))  # half-even, to the nano-dollar
    return volume, cost - earlier - volume


def _tokens(parts: Parts) -> Fraction:
    """Return the tokens of the parts, shared as their money is."""
    return sum(
        (part.fact.counts.get("total_tokens", 0) * part.money for part in parts), Fraction(0)
    )
