"""Forecasts the sum of coming days from the amounts of past days.

Each coming day is the median of the same weekday in the last four weeks, times the trend. The
median leaves one spike out, and a weekday knows the weekend. The trend is the ratio of the last two
weeks to the two before. It goes on from the middle of the four weeks at two fifths of that pace:
at the full pace one busy week is taken for growth, and the forecast misses by half as much again
(`python -m bench.forecast`, 2026-11-26). Damping: E. Gardner and E. McKenzie, Forecasting Trends in
Time Series, Management Science 31(10), 1985.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from decimal import Decimal
from statistics import median

WEEK = 7
USED_DAYS = 4 * WEEK
LEAST_DAYS = WEEK
HALF = USED_DAYS // 2
DAMPING = Decimal("0.4")
SLOWEST, FASTEST = Decimal("0.7"), Decimal("1.4")
"""Bounds of the trend of two weeks: a new team triples once, and not every two weeks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """Amounts of consecutive days, in USD or tokens, the oldest first; 0 without events."""

    first_day: date
    amounts: tuple[Decimal, ...]

    @property
    def next_day(self) -> date:
        """Return the day after the last one."""
        return self.first_day + timedelta(days=len(self.amounts))

    def until(self, days: int) -> History:
        """Return the history without its last `days` days; nothing is left of a shorter one."""
        kept = max(0, len(self.amounts) - days)
        return History(first_day=self.first_day, amounts=self.amounts[:kept])

    def started(self) -> History:
        """Return the history from its first day with an amount on: before it, nothing was used."""
        silent = next(
            (index for index, amount in enumerate(self.amounts) if amount), len(self.amounts)
        )
        return History(
            first_day=self.first_day + timedelta(days=silent), amounts=self.amounts[silent:]
        )


def expected(history: History, days: int) -> Decimal | None:
    """Return the expected sum of the `days` days after a history; None below a week of it.

    With one to four weeks each day is the mean day so far.
    """
    known = history.started().amounts
    if len(known) < LEAST_DAYS:
        return None
    if len(known) < USED_DAYS:
        return days * sum(known, Decimal(0)) / len(known)
    used = known[-USED_DAYS:]
    trend = _trend(used)
    total = Decimal(0)
    for ahead in range(days):
        same_weekday = used[ahead % WEEK :: WEEK]
        steps = Decimal(ahead + 1 + HALF) / HALF
        total += median(same_weekday) * trend ** (DAMPING * steps)
    return total


def _trend(used: Sequence[Decimal]) -> Decimal:
    """Return the last two weeks as a share of the two before, within bounds."""
    before, after = sum(used[:HALF], Decimal(0)), sum(used[HALF:], Decimal(0))
    if before <= 0:
        return Decimal(1)
    return min(max(after / before, SLOWEST), FASTEST)
