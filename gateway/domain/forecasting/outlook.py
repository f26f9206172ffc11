"""Carries a daily series on for many months: the present level times its weekly growth.

The growth is the median of the slopes between pairs of weeks on a logarithmic scale (Theil and
Sen), which one odd week does not turn; a week counts by its median day, which one odd day does not
turn. Pairs are at least half of the history apart: neighbours
differ by noise. Their 10 and 90 % quantiles give the range: an extrapolation, not a promise.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from decimal import Decimal
from itertools import combinations
from math import exp, log
from statistics import median, quantiles

from gateway.domain.calendar_months import next_month
from gateway.domain.forecasting.daily import WEEK, History

LEAST_WEEKS = 8
LEVEL_WEEKS = 4
MOST_GROWTH = 0.05
"""Of a week, on the logarithmic scale: a factor of 13 in a year."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MonthAhead:
    """One coming month: its expected sum and the range of growth."""

    month: date
    expected: Decimal
    low: Decimal
    high: Decimal


@dataclass(frozen=True, slots=True, kw_only=True)
class Growth:
    """Growth of a week, as a share: the median, and the 10 and 90 % quantiles of the slopes."""

    low: float
    middle: float
    high: float


def growth_of(history: History) -> Growth | None:
    """Return the weekly growth; None below eight weeks with an amount."""
    weeks = [day for week in _weeks(history.started()) if (day := float(median(week))) > 0]
    if len(weeks) < LEAST_WEEKS:
        return None
    logs = [log(day) for day in weeks]
    slopes = sorted(
        (logs[later] - logs[earlier]) / (later - earlier)
        for earlier, later in combinations(range(len(logs)), 2)
        if later - earlier >= len(logs) // 2
    )
    tenths = quantiles(slopes, n=10)
    return Growth(
        low=_bounded(tenths[0]), middle=_bounded(median(slopes)), high=_bounded(tenths[8])
    )


def outlook(history: History, months: int) -> list[MonthAhead]:
    """Return the coming months from the next whole one on; empty without enough history."""
    growth = growth_of(history)
    if growth is None:
        return []
    level = median([float(sum(week, Decimal(0))) for week in _weeks(history)[-LEVEL_WEEKS:]]) / WEEK
    middle_of_level = history.next_day - timedelta(days=LEVEL_WEEKS * WEEK // 2)
    found = []
    month = next_month(history.next_day)
    for _ in range(months):
        after = next_month(month)
        days = (after - month).days
        weeks_ahead = ((month - middle_of_level).days + days / 2) / WEEK
        low, middle, high = (
            _rounded(days * level * exp(pace * weeks_ahead))
            for pace in (growth.low, growth.middle, growth.high)
        )
        found.append(MonthAhead(month=month, expected=middle, low=low, high=high))
        month = after
    return found


def _weeks(history: History) -> Sequence[Sequence[Decimal]]:
    """Return the days of whole weeks that end with the history's last day, the oldest first."""
    amounts = history.amounts[len(history.amounts) % WEEK :]
    return [amounts[begin : begin + WEEK] for begin in range(0, len(amounts), WEEK)]


def _bounded(pace: float) -> float:
    """Return a growth within the bounds of a forecast of many months."""
    return min(max(pace, -MOST_GROWTH), MOST_GROWTH)


def _rounded(amount: float) -> Decimal:
    """Return an estimate with the digits that one can mean: whole millionths."""
    return Decimal(f"{amount:.6f}")
