"""Compares two engines by ratios with 95 % confidence intervals, from rounds that alternate.

Rounds, not requests, are resampled: requests of one round share the machine's state of that
moment and are not independent. Both engines' halves of a round are drawn together, so a drift of
the machine cancels out. The interval is the percentile bootstrap (B. Efron and R. Tibshirani, "An
Introduction to the Bootstrap", 1993, chapter 13) over clusters; for ratios of benchmarks see T.
Kalibera and R. Jones, "Rigorous benchmarking in reasonable time", ISMM 2013.
"""

import random
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from engine.bench.figures import quantile, throughput_tok_per_s
from engine.load.measured import LoadRun, MeasuredRequest

RESAMPLES = 2000
LOW, HIGH = 0.025, 0.975
FEWEST_ROUNDS = 3
"""With fewer rounds there is no interval."""

Statistic = Callable[[Sequence[LoadRun]], float | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ratio:
    """The second engine's figure divided by the first one's, with its interval."""

    metric: str
    ratio: float | None
    low: float | None
    high: float | None


def median_of(value: Callable[[MeasuredRequest], float | None]) -> Statistic:
    """Return the statistic that is the median over all answered requests of some rounds."""

    def statistic(runs: Sequence[LoadRun]) -> float | None:
        """Return the median; None without values."""
        values = [value(one) for run in runs for one in run.answered]
        known = [one for one in values if one is not None]
        return statistics.median(known) if known else None

    return statistic


STATISTICS: dict[str, Statistic] = {
    "ttft_s": median_of(lambda one: one.ttft_s),
    "tpot_s": median_of(lambda one: one.tpot_s),
    "e2e_s": median_of(lambda one: one.e2e_s),
    "throughput_tok_per_s": throughput_tok_per_s,
}


def ratios(first: Sequence[LoadRun], second: Sequence[LoadRun], *, seed: int = 0) -> list[Ratio]:
    """Return second / first for each metric; the n-th rounds of both belong together."""
    return [
        _ratio(metric, statistic, first, second, seed=seed)
        for metric, statistic in STATISTICS.items()
    ]


def _ratio(
    metric: str,
    statistic: Statistic,
    first: Sequence[LoadRun],
    second: Sequence[LoadRun],
    *,
    seed: int,
) -> Ratio:
    """Return one ratio with its interval."""

    def of(rounds: Sequence[int]) -> float | None:
        """Return the ratio over some rounds; None if one side has no value."""
        above, below = (statistic([runs[index] for index in rounds]) for runs in (second, first))
        return above / below if above is not None and below else None

    count = len(first)
    whole = of(range(count))
    if whole is None or count < FEWEST_ROUNDS:
        return Ratio(metric=metric, ratio=whole, low=None, high=None)
    rng = random.Random(seed)  # noqa: S311 - resampling, no secret
    drawn = (of(rng.choices(range(count), k=count)) for _ in range(RESAMPLES))
    found = sorted(ratio for ratio in drawn if ratio is not None)
    return Ratio(metric=metric, ratio=whole, low=quantile(found, LOW), high=quantile(found, HIGH))
