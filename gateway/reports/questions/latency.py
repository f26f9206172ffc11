"""Declares the report `latency`: callers' waiting times against their routes' bounds, and error
rates.
"""

from __future__ import annotations

from sqlalchemy import ColumnElement, Numeric, and_, cast, func

from gateway.reports.dimensions import Dimension
from gateway.reports.report import ColumnKind
from gateway.reports.report_kind import summary
from gateway.reports.sources.aggregate import ATTEMPTS, Measure
from gateway.reports.sources.facts import fact

_SHARES = {"p50": 0.5, "p95": 0.95, "p99": 0.99}


def _percentiles(name: str, figure: str) -> tuple[Measure, ...]:
    """Return the percentile measures of a latency figure. They are NULL without a measurement:
    Postgres skips NULL in an ordered set.
    """
    return tuple(
        Measure(
            name=f"{name}_{percentile}_s",
            unit="s",
            kind=ColumnKind.SECONDS,
            needs_events=True,
            adds_up=False,
            value=func.percentile_cont(share).within_group(fact(figure)),
        )
        for percentile, share in _SHARES.items()
    )


def _count(name: str, condition: ColumnElement[bool]) -> Measure:
    """Return the measure that counts the attempts for which a condition holds."""
    value = func.count().filter(condition)
    return Measure(
        name=name,
        unit="attempts",
        kind=ColumnKind.COUNT,
        value=value,
        needs_events=True,
        adds_up=False,
    )


def _share(
    name: str,
    part: ColumnElement[bool],
    *,
    of: ColumnElement[bool] | None = None,
    unit: str = "of attempts",
) -> Measure:
    """Return the measure of a share of attempts, or of those for which `of` holds; NULL if there
    are none.
    """
    whole = func.count() if of is None else func.count().filter(of)
    value = cast(func.count().filter(part), Numeric) / func.nullif(whole, 0)
    return Measure(
        name=name,
        unit=unit,
        kind=ColumnKind.SHARE,
        value=value,
        needs_events=True,
        adds_up=False,
    )


_IS_BOUND = and_(fact("ttft_bound_s").is_not(None), fact("ttft_s").is_not(None))
_IS_MISSED = fact("ttft_s") > fact("ttft_bound_s")
_IS_COST_BOUND = and_(fact("cost_bound_usd").is_not(None), fact("cost_usd").is_not(None))
_IS_COST_MISSED = fact("cost_usd") > fact("cost_bound_usd")

MEASURES = (
    ATTEMPTS,
    _share("error_share", fact("is_error")),
    _share("degraded_share", fact("degraded").is_not(None)),
    *_percentiles("ttft", "ttft_s"),
    Measure(
        name="ttft_bound_s",
        unit="s, the tightest in force",
        kind=ColumnKind.SECONDS,
        value=func.min(fact("ttft_bound_s")),
        needs_events=True,
        adds_up=False,
    ),
    _count("ttft_missed", _IS_MISSED),
    _share("ttft_missed_share", _IS_MISSED, of=_IS_BOUND, unit="of measured attempts with a bound"),
    _count("cost_missed", _IS_COST_MISSED),
    _share(
        "cost_missed_share",
        _IS_COST_MISSED,
        of=_IS_COST_BOUND,
        unit="of priced attempts with a bound",
    ),
    *_percentiles("tpot", "tpot_s"),
    *_percentiles("gap", "max_gap_s"),
    *_percentiles("queue", "queue_s"),
    *_percentiles("overhead", "overhead_s"),
    *_percentiles("duration", "duration_s"),
    _count("ttft_measured", fact("ttft_s").is_not(None)),
    _count("ttft_not_measured", fact("ttft_s").is_(None)),
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
        "Percentiles are over the attempts themselves, not over other percentiles. TTFT, TPOT and "
        "gap (the longest silence in an answer) exist only for streams; attempts without a "
        "measurement are left out.",
        "A bound is missed by an attempt that took longer, or cost more, than the bound its route "
        "had when it was sent. An error is every ending except a complete answer, a caller who "
        "left, and a replica that was stopped.",
    ),
)
