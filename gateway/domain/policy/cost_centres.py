"""Computes the cost centres that pay for a team on a day, with their exact shares."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from fractions import Fraction


@dataclass(frozen=True, slots=True, kw_only=True)
class CostCentreShare:
    """One cost centre's share of a team's cost, above 0 and at most 1, from the UTC day `start` on.

    The shares of one start add up to 1, and a later start replaces them. None is earlier than every
    day.
    """

    name: str
    share: Decimal = Decimal(1)
    start: date | None = None


def shares_on(shares: Sequence[CostCentreShare], day: date) -> dict[str, Fraction]:
    """Return the share of each cost centre on a UTC day, as exact fractions that add up to 1.

    Those with the latest start that is not after the day count; on a day before every start, those
    of the first one, because each event needs a cost centre.
    """
    starts = {_start(one) for one in shares}
    start = max((one for one in starts if one <= day), default=min(starts))
    return {one.name: Fraction(one.share) for one in shares if _start(one) == start}


def largest_on(shares: Sequence[CostCentreShare], day: date) -> str:
    """Return the cost centre with the largest share on a UTC day; of equal ones the first by
    name.
    """
    found = shares_on(shares, day)
    return min(found, key=lambda name: (-found[name], name))


def _start(share: CostCentreShare) -> date:
    """Return the first day of a share."""
    return share.start or date.min
