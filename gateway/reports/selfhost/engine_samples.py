"""Answers the report `engines`: each self-hosted engine's newest sample, with its queue and other
live signals.

A running gateway takes a sample every minute. All figures are the engine's own.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import Text, cast, select

from gateway.errors import BadUsage
from gateway.reports.dimensions import Dimension
from gateway.reports.question import Question
from gateway.reports.report import Column, ColumnKind, Dataset, Report
from gateway.reports.report_kind import ReportKind
from gateway.reports.sources.connection import ReadSnapshot
from gateway.storage.postgres.schema import finance_views

COLUMNS = (
    Column(name="deployment", unit="", kind=ColumnKind.TEXT),
    Column(name="at", unit="UTC", kind=ColumnKind.TIME),
    Column(name="is_up", unit="", kind=ColumnKind.FLAG),
    Column(name="queue", unit="requests", kind=ColumnKind.COUNT),
    Column(name="running", unit="requests", kind=ColumnKind.COUNT),
    Column(name="kv_use", unit="of the KV cache", kind=ColumnKind.SHARE),
    Column(name="prefix_hit_rate", unit="of looked-up tokens", kind=ColumnKind.SHARE),
    Column(name="ttft_p50_s", unit="s", kind=ColumnKind.SECONDS),
    Column(name="ttft_p95_s", unit="s", kind=ColumnKind.SECONDS),
    Column(name="tpot_p50_s", unit="s", kind=ColumnKind.SECONDS),
    Column(name="tpot_p95_s", unit="s", kind=ColumnKind.SECONDS),
    Column(name="pressure", unit="of the capacity", kind=ColumnKind.SHARE),
)
_ROWS = finance_views.engines.c


def engines(snapshot: ReadSnapshot, question: Question) -> Report:
    """Return the report with a row for each engine of the policy, by name; none for demo data.

    Raises `BadUsage` for a filter that an engine does not have.
    """
    foreign = [dimension for dimension, _ in question.where if dimension != Dimension.DEPLOYMENT]
    if foreign:
        raise BadUsage(
            f"Report engines cannot be filtered by {', '.join(foreign)}: an engine belongs to no "
            "single team or request. Filter by deployment."
        )
    rows: list[dict[str, Any]] = []
    if question.dataset is Dataset.REAL:
        wanted = [cast(_ROWS.deployment, Text) == value for _, value in question.where]
        chosen = select(*_ROWS).where(*wanted).order_by(_ROWS.deployment)
        rows = [dict(row) for row in snapshot.rows(chosen)]
    return Report(
        name=REPORT.name,
        title=REPORT.title,
        dataset=question.dataset,
        columns=COLUMNS,
        rows=tuple(tuple(row[column.name] for column in COLUMNS) for row in rows),
        total={},
        complete_until=max((row["at"] for row in rows), default=None),
        notes=NOTES,
    )


NOTES = (
    "The newest sample of each engine: a running gateway takes one every minute. `tollgate engine "
    "status` asks the engines now.",
    "Quantiles and the prefix-hit rate are of the minute before, from the engine's own metrics. An "
    "engine that does not report a figure has none. Callers' times are in report latency.",
    "Pressure is demand by capacity: 100 % is full, and above it requests wait.",
)
REPORT = ReportKind(
    name="engines",
    title="Engines",
    question="How full are our own engines, and how fast do they answer?",
    by=None,
    run=engines,
    usd_alone="it has no money",
)
