"""The percentiles of waiting times: which values a report may show for them."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import ceil, floor
from typing import Self

from tests.reports.oracle.expected import Part

# The counts by size begin at 0; each size but the first ends at 1.3 times its beginning.
EDGES = [0.0005 * 1.3**n for n in range(55)]
MICRO = Fraction(1, 10**6)


@dataclass(frozen=True, slots=True, kw_only=True)
class Between:
    """A figure that may be any of a range; `exact` is the one that no roll-up makes coarser."""

    low: Fraction
    high: Fraction
    exact: Fraction

    @classmethod
    def around(cls, exact: Fraction) -> Self:
        """Return the range of a figure that has some digits."""
        return cls(low=exact, high=exact, exact=exact)

    def admits(self, shown: Fraction, *, is_exact: bool) -> bool:
        """Return True for a figure of the range, or equal to the exact one."""
        low, high = (self.exact, self.exact) if is_exact else (self.low, self.high)
        return low - MICRO <= shown <= high + MICRO


def percentile(parts: Sequence[Part], name: str, share: Fraction) -> Between | None:
    """Return a percentile of a waiting time: its exact value is on the line between two attempts,
    and its range is that of both their sizes. None without a measurement.
    """
    found = sorted(
        part.fact.seconds[name] for part in parts if part.times > 0 and name in part.fact.seconds
    )
    if not found:
        return None
    rank = share * (len(found) - 1)
    below, above = Fraction(found[floor(rank)]), Fraction(found[ceil(rank)])
    return Between(
        low=_edges(below)[0],
        high=_edges(above)[1],
        exact=below + (above - below) * (rank - floor(rank)),
    )


def _edges(seconds: Fraction) -> tuple[Fraction, Fraction]:
    """Return both ends of the size of a time; the last size has its beginning alone."""
    place = bisect_right(EDGES, float(seconds))
    low = Fraction(EDGES[place - 1]) if place else Fraction(0)
    return low, Fraction(EDGES[place]) if place < len(EDGES) else low
