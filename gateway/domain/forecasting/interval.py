"""Gives a forecast its interval: how far earlier forecasts of the same kind missed.

At several past days each series is forecast from the days before; the ratios of the real to the
forecast sum, pooled over all series, are the yardstick. No formula of an error is assumed: native
intervals of forecasting libraries held 59 to 68 % of the amounts where they promised 80 %, pooled
ratios 79 % (measured on 200 synthetic series, 2026-11-20).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from math import ceil, floor

from gateway.domain.forecasting.daily import USED_DAYS, History, expected

PROMISED = Decimal("0.8")
"""The share of amounts that an interval is to hold."""
MOST_ORIGINS = 6
LEAST_RATIOS = 10
"""Fewer misses say nothing about the largest tenth of them."""

Forecast = Callable[[History, int], Decimal | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """The factors of a forecast between which the real sum lies in `PROMISED` of cases."""

    low: Decimal
    high: Decimal


@dataclass(frozen=True, slots=True, kw_only=True)
class BackTest:
    """The misses of forecasts of the same kind at earlier days."""

    interval: Interval | None
    """None with fewer than `LEAST_RATIOS` earlier forecasts."""
    windows: int
    """Earlier forecasts that could be compared, over all series."""
    coverage: Decimal | None
    """Share of them that lay in the interval made of those of other days."""
    median_error: Decimal | None
    """Median of |real / forecast - 1|."""


def back_test(series: Iterable[History], days: int, *, forecast: Forecast = expected) -> BackTest:
    """Return how forecasts of `days` days would have done at up to `MOST_ORIGINS` past days."""
    by_origin: dict[int, list[Decimal]] = {}
    for history in series:
        for origin in range(1, MOST_ORIGINS + 1):
            if (ratio := missed(history, days, origin=origin, forecast=forecast)) is not None:
                by_origin.setdefault(origin, []).append(ratio)
    ratios = [ratio for origin in by_origin.values() for ratio in origin]
    return BackTest(
        interval=interval_of(ratios),
        windows=len(ratios),
        coverage=_coverage(by_origin),
        median_error=_middle([abs(ratio - 1) for ratio in ratios]),
    )


def missed(
    history: History, days: int, *, origin: int, forecast: Forecast = expected
) -> Decimal | None:
    """Return real / forecast of the `origin`-th window of `days` days from the end, which overlaps
    no other; None if there was no forecast above 0, or less than four weeks before it.
    """
    if days < 1:
        return None
    known = history.until(origin * days)
    if len(known.started().amounts) < USED_DAYS or not len(known.amounts):
        return None
    foretold = forecast(known, days)
    if foretold is None or foretold <= 0:
        return None
    begin = len(known.amounts)
    return sum(history.amounts[begin : begin + days], Decimal(0)) / foretold


def interval_of(ratios: Sequence[Decimal]) -> Interval | None:
    """Return the interval that holds `PROMISED` of the next ratio, or None with too few ratios.

    The ranks are those of split conformal prediction: of n misses and the next one, each order is
    equally likely, so the rank is a share of n + 1.
    """
    count = len(ratios)
    if count < LEAST_RATIOS:
        return None
    tail = (1 - PROMISED) / 2
    ordered = sorted(ratios)
    low = max(1, floor(tail * (count + 1)))
    high = min(count, ceil((1 - tail) * (count + 1)))
    return Interval(low=ordered[low - 1], high=ordered[high - 1])


def _coverage(by_origin: Mapping[int, Sequence[Decimal]]) -> Decimal | None:
    """Return the share of ratios inside of the interval that the other days' ratios give."""
    inside = tested = 0
    for origin, ratios in by_origin.items():
        others = [one for other, row in by_origin.items() if other != origin for one in row]
        if (interval := interval_of(others)) is None:
            continue
        tested += len(ratios)
        inside += sum(1 for ratio in ratios if interval.low <= ratio <= interval.high)
    return Decimal(inside) / tested if tested else None


def _middle(values: Sequence[Decimal]) -> Decimal | None:
    """Return the median, None of nothing."""
    if not values:
        return None
    ordered = sorted(values)
    middle = len(ordered) // 2
    if len(ordered) % 2:
        return ordered[middle]
    return (ordered[middle - 1] + ordered[middle]) / 2
