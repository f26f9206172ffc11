"""How long did callers wait for the first token, and between tokens?"""

from __future__ import annotations

from gateway.reports.aggregate import ATTEMPTS, Measure, aggregate
from gateway.reports.connection import Snapshot
from gateway.reports.dimensions import Dimension
from gateway.reports.question import Question
from gateway.reports.report import Kind, Report

TITLE = "Latency"
DEFAULT_BY = (Dimension.ROUTE, Dimension.DEPLOYMENT)


def _percentile(name: str, column: str, share: float) -> Measure:
    """NULL where nothing was measured: Postgres leaves NULLs out of an ordered set."""
    sql = f"percentile_cont({share}) WITHIN GROUP (ORDER BY {column})"
    return Measure(name=name, unit="s", kind=Kind.SECONDS, sql=sql, needs_events=True)


def _count(name: str, condition: str) -> Measure:
    sql = f"count(*) FILTER (WHERE {condition})"
    return Measure(name=name, unit="attempts", kind=Kind.COUNT, sql=sql, needs_events=True)


MEASURES = (
    ATTEMPTS,
    _percentile("ttft_p50_s", "ttft_s", 0.5),
    _percentile("ttft_p95_s", "ttft_s", 0.95),
    _percentile("tpot_p50_s", "tpot_s", 0.5),
    _percentile("tpot_p95_s", "tpot_s", 0.95),
    _percentile("duration_p50_s", "duration_s", 0.5),
    _percentile("duration_p95_s", "duration_s", 0.95),
    _count("ttft_measured", "ttft_s IS NOT NULL"),
    _count("ttft_not_measured", "ttft_s IS NULL"),
)


def latency(snapshot: Snapshot, question: Question) -> Report:
    """TTFT, TPOT and duration, measured at the gateway. Plain answers and failures show no TTFT: they are counted."""
    by = DEFAULT_BY if question.by is None else question.by
    order = "by_day, attempts DESC" if Dimension.DAY in by else "attempts DESC"
    return aggregate(snapshot, question, MEASURES, name="latency", title=TITLE, by=by, order=order)
