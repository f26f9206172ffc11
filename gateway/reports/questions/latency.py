"""Callers' waiting times against their routes' bounds, and error rates."""

from __future__ import annotations

from dataclasses import replace

from gateway.reports.dimensions import Dimension
from gateway.reports.question import Question
from gateway.reports.report import ColumnKind, Report
from gateway.reports.sources.aggregate import ATTEMPTS, Measure, aggregate
from gateway.reports.sources.connection import ReadSnapshot

TITLE = "Latency"
DEFAULT_BY = (Dimension.ROUTE, Dimension.DEPLOYMENT)
_SHARES = {"p50": 0.5, "p95": 0.95, "p99": 0.99}


def _percentiles(name: str, column: str) -> tuple[Measure, ...]:
    """Return percentile measures. They are NULL without a measurement: Postgres skips NULL in an
    ordered set.
    """
    return tuple(
        Measure(
            name=f"{name}_{percentile}_s",
            unit="s",
            kind=ColumnKind.SECONDS,
            needs_events=True,
            sql=f"percentile_cont({share}) WITHIN GROUP (ORDER BY {column})",
        )
        for percentile, share in _SHARES.items()
    )


def _count(name: str, condition: str) -> Measure:
    sql = f"count(*) FILTER (WHERE {condition})"
    return Measure(name=name, unit="attempts", kind=ColumnKind.COUNT, sql=sql, needs_events=True)


def _share(name: str, part: str, *, of: str) -> Measure:
    """Return a share. It is NULL if the whole is empty."""
    sql = (
        f"CAST(count(*) FILTER (WHERE {part}) AS numeric) / nullif(count(*) FILTER (WHERE {of}), 0)"
    )
    return Measure(
        name=name, unit=f"of {_OF[of]}", kind=ColumnKind.SHARE, sql=sql, needs_events=True
    )


_IS_BOUND = "ttft_bound_s IS NOT NULL AND ttft_s IS NOT NULL"
_IS_MISSED = "ttft_s > ttft_bound_s"
_IS_COST_BOUND = "cost_bound_usd IS NOT NULL AND cost_usd IS NOT NULL"
_IS_COST_MISSED = "cost_usd > cost_bound_usd"
_OF = {
    "true": "attempts",
    _IS_BOUND: "measured attempts with a bound",
    _IS_COST_BOUND: "priced attempts with a bound",
}

MEASURES = (
    ATTEMPTS,
    _share("error_share", "is_error", of="true"),
    _share("degraded_share", "degraded IS NOT NULL", of="true"),
    *_percentiles("ttft", "ttft_s"),
    Measure(
        name="ttft_bound_s",
        unit="s, the tightest in force",
        kind=ColumnKind.SECONDS,
        sql="min(ttft_bound_s)",
        needs_events=True,
    ),
    _count("ttft_missed", _IS_MISSED),
    _share("ttft_missed_share", _IS_MISSED, of=_IS_BOUND),
    _count("cost_missed", _IS_COST_MISSED),
    _share("cost_missed_share", _IS_COST_MISSED, of=_IS_COST_BOUND),
    *_percentiles("tpot", "tpot_s"),
    *_percentiles("gap", "max_gap_s"),
    *_percentiles("queue", "queue_s"),
    *_percentiles("overhead", "overhead_s"),
    *_percentiles("duration", "duration_s"),
    _count("ttft_measured", "ttft_s IS NOT NULL"),
    _count("ttft_not_measured", "ttft_s IS NULL"),
)
NOTES = (
    "Percentiles are over the attempts themselves, not over other percentiles. TTFT, TPOT and gap "
    "(the longest silence in an answer) exist only for streams; attempts without a measurement are "
    "left out.",
    "A bound is missed by an attempt that took longer, or cost more, than the bound its route had "
    "when it was sent. An error is every ending except a complete answer, a caller who left, and a "
    "replica that was stopped.",
)


def latency(snapshot: ReadSnapshot, question: Question) -> Report:
    """Return TTFT, TPOT, gaps, waits and overhead against the bounds in force, measured at the
    gateway.
    """
    by = DEFAULT_BY if question.by is None else question.by
    order = "by_day, attempts DESC" if Dimension.DAY in by else "attempts DESC"
    report = aggregate(
        snapshot, question, MEASURES, name="latency", title=TITLE, by=by, order=order
    )
    return replace(report, notes=(*report.notes, *NOTES)) if report.total["attempts"] else report
