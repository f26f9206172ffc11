"""Computes means and quantiles of recent observations, in which older samples count less, in
constant memory, for latency and token figures.

A sample loses half of its weight every minute, and the prior counts as five samples. So the figures
of an unused deployment return to the prior, and it is tried again.
"""

from __future__ import annotations

from bisect import bisect_left
from itertools import accumulate
from math import exp, floor, isfinite, log

HALF_LIFE_S = 60.0
PRIOR_SAMPLES = 5.0

# Buckets are 8 % wide: a quantile is 4 % off, 8 % if it falls together with the prior. 0.1 ms to an
# hour are 226 of them.
_WIDTH = log(1.08)
_LEAST, _MOST = 1e-4, 3600.0
_MOST_HALF_LIVES = 40  # weights grow instead of shrinking, until then


class Mean:
    """A mean. Time is an argument, in seconds of a clock that never goes back."""

    __slots__ = ("_at_s", "_total", "_weight")

    def __init__(self) -> None:
        """Start without any sample."""
        self._weight = self._total = self._at_s = 0.0

    def add(self, value: float, now_s: float, *, weight: float = 1.0) -> None:
        """Add a sample to the mean. NaN and negative values are ignored."""
        if not 0.0 <= value < float("inf"):
            return
        left = self._left(now_s)
        self._weight = self._weight * left + weight
        self._total = self._total * left + weight * value
        self._at_s = now_s

    def weight(self, now_s: float) -> float:
        """Return the number of samples behind the mean, by their remaining weight."""
        return self._weight * self._left(now_s)

    def value(self, now_s: float, *, prior: float, prior_weight: float = PRIOR_SAMPLES) -> float:
        """Return the mean of the samples and a prior, which counts as `prior_weight` samples."""
        left = self._left(now_s)
        return (self._total * left + prior_weight * prior) / (self._weight * left + prior_weight)

    def _left(self, now_s: float) -> float:
        """Return the share of its weight that a sample at the last update still has now; it halves
        with each half-life.
        """
        return float(0.5 ** (max(0.0, now_s - self._at_s) / HALF_LIFE_S))


class Quantiles:
    """The distribution of seconds, in buckets whose width grows with them."""

    __slots__ = ("_buckets", "_since_s")

    def __init__(self) -> None:
        """Start without any sample."""
        self._buckets: dict[int, float] = {}
        self._since_s = 0.0  # the time when a sample weighs 1; later ones weigh more

    def add(self, seconds: float, now_s: float) -> None:
        """Add a sample to the distribution. NaN and negative values are ignored."""
        if not (isfinite(seconds) and seconds >= 0.0):
            return
        # first, because it may scale all others down
        bucket, weight = _bucket(seconds), self._weight_now(now_s)
        self._buckets[bucket] = self._buckets.get(bucket, 0.0) + weight

    def at(self, now_s: float, *, prior_s: float) -> tuple[float, float, float]:
        """Return median, 95th percentile, and the number of samples behind them besides the
        prior's five.
        """
        unit = self._weight_now(now_s)
        seen = sum(self._buckets.values())
        if seen <= unit * 1e-3:
            return prior_s, prior_s, 0.0
        assumed = unit * PRIOR_SAMPLES
        weights = dict(self._buckets)
        prior = _bucket(prior_s)
        weights[prior] = weights.get(prior, 0.0) + assumed
        median, late = _at_shares(weights, 0.5, 0.95, total=seen + assumed)
        # In its own bucket the prior is exact: otherwise rounding would order deployments with
        # declared figures.
        at = {prior: prior_s}
        return at.get(median) or _seconds(median), at.get(late) or _seconds(late), seen / unit

    def _weight_now(self, now_s: float) -> float:
        """Return the weight of a sample that is added now; it doubles with each half-life.

        Weights are scaled down before they are too large for a float.
        """
        half_lives = (now_s - self._since_s) / HALF_LIFE_S
        if half_lives > _MOST_HALF_LIVES:
            left = 0.5**half_lives
            self._buckets = {
                bucket: weight * left
                for bucket, weight in self._buckets.items()
                if weight * left > 1e-6
            }
            self._since_s = now_s
            return 1.0
        return float(2.0**half_lives)


def _bucket(seconds: float) -> int:
    """Return the number of the bucket that counts this many seconds."""
    return floor(log(min(max(seconds, _LEAST), _MOST)) / _WIDTH)


def _seconds(bucket: int) -> float:
    """Return the middle of a bucket in seconds."""
    return exp((bucket + 0.5) * _WIDTH)


def _at_shares(
    weights: dict[int, float], first: float, second: float, *, total: float
) -> tuple[int, int]:
    """Return the buckets in which these shares of the weight are reached."""
    ordered = sorted(weights)
    passed = list(accumulate(weights[bucket] for bucket in ordered))
    last = len(ordered) - 1
    return ordered[min(bisect_left(passed, first * total), last)], ordered[
        min(bisect_left(passed, second * total), last)
    ]
