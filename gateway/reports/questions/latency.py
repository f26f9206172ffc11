"""Declares the report `latency`: callers' waiting times against their routes' bounds, and error
rates.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from sqlalchemy import ColumnElement, Double, Numeric, cast, func, literal_column

from gateway.reports.dimensions import Dimension
from gateway.reports.report import ColumnKind
from gateway.reports.report_kind import summary
from gateway.reports.sources.aggregate import ATTEMPTS, Measure, count_sum, total_or_zero
from gateway.reports.sources.facts import TIMES, FigureGroup, fact

_SHARES = {"p50": 0.5, "p95": 0.95, "p99": 0.99}
SIZES = 56  # of the counts by size in the roll-ups


def _percentiles(name: str) -> tuple[Measure, ...]:
    """Return the percentile measures of a waiting time. They are NULL without a measurement:
    Postgres skips NULL in an ordered set.
    """
    # Spelled out: as elements of SQLAlchemy they take longer to compose than to compute.
    each = ", ".join(f"coalesce(sum({name}_buckets[{n}]), 0)" for n in range(1, SIZES + 1))
    counts: ColumnElement[Any] = literal_column(f"ARRAY[{each}]::bigint[]")
    return tuple(
        Measure(
            name=f"{name}_{percentile}_s",
            unit="s",
            kind=ColumnKind.SECONDS,
            needs=FigureGroup.TIMES,
            adds_up=False,
            value=func.finance.time_quantile(counts, share, type_=Double),
            of_events=func.percentile_cont(share).within_group(fact(TIMES[name])),
        )
        for percentile, share in _SHARES.items()
    )


def _count(name: str) -> Measure:
    """Return the measure of a count of attempts."""
    return replace(count_sum(name), needs=FigureGroup.TIMES)


def _share(name: str, part: str, *, of: str, unit: str = "of attempts") -> Measure:
    """Return the measure of a share of attempts; NULL if there are none."""
    value = cast(func.sum(fact(part)), Numeric) / func.nullif(func.sum(fact(of)), 0)
    return Measure(
        name=name,
        unit=unit,
        kind=ColumnKind.SHARE,
        value=func.round(value, 6),
        needs=FigureGroup.TIMES,
        is_ratio=True,
    )


MEASURES = (
    ATTEMPTS,
    _share("error_share", "error_attempts", of="attempts"),
    _share("degraded_share", "degraded_attempts", of="attempts"),
    *_percentiles("ttft"),
    Measure(
        name="ttft_bound_s",
        unit="s, the tightest in force",
        kind=ColumnKind.SECONDS,
        value=func.min(fact("ttft_bound_s")),
        needs=FigureGroup.TIMES,
        adds_up=False,
    ),
    _count("ttft_missed"),
    _share(
        "ttft_missed_share",
        "ttft_missed",
        of="ttft_bound_attempts",
        unit="of measured attempts with a bound",
    ),
    _count("cost_missed"),
    _share(
        "cost_missed_share",
        "cost_missed",
        of="cost_bound_attempts",
        unit="of priced attempts with a bound",
    ),
    *_percentiles("tpot"),
    *_percentiles("gap"),
    *_percentiles("queue"),
    *_percentiles("overhead"),
    *_percentiles("duration"),
    _count("ttft_measured"),
    Measure(
        name="ttft_not_measured",
        unit="attempts",
        kind=ColumnKind.COUNT,
        value=total_or_zero("attempts") - total_or_zero("ttft_measured"),
        needs=FigureGroup.TIMES,
    ),
)
REPORT = summary(
    name="latency",
    title="Latency",
    question="How long did callers wait, against what their routes promise, and how often did it "
    "go wrong?",
    by=(Dimension.ROUTE, Dimension.DEPLOYMENT),
    measures=MEASURES,
    sorted_by=ATTEMPTS,
    notes=(
        "Percentiles are over the attempts themselves, not over other percentiles. They are read "
        "from counts by size, where each size ends at 1.3 times its beginning; split or filtered "
        "by end user or tag they are exact. TTFT, TPOT and gap (the longest silence in an "
        "answer) exist only for streams; attempts without a measurement are left out.",
        "A bound is missed by an attempt that took longer, or cost more, than the bound its route "
        "had when it was sent. An error is every ending except a complete answer, a caller who "
        "left, and a replica that was stopped.",
    ),
)
