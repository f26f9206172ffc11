"""The headline figures: amount, spender and certainty."""

from __future__ import annotations

from gateway.reports.question import Question
from gateway.reports.report import ColumnKind, Report
from gateway.reports.sources.aggregate import (
    ATTEMPTS,
    SPENT,
    Measure,
    aggregate,
    count,
    money,
    tokens,
)
from gateway.reports.sources.connection import ReadSnapshot

TITLE = "Overview"


def _distinct(name: str, unit: str, sql: str) -> Measure:
    return Measure(
        name=name, unit=unit, kind=ColumnKind.COUNT, sql=f"count(DISTINCT {sql})", needs_events=True
    )


MEASURES = (
    ATTEMPTS,
    _distinct("requests", "requests", "request_id"),
    count("failed_attempts"),
    count("unknown_attempts"),
    count("derived_attempts"),
    *SPENT,
    money("self_hosted_cost_usd", "is_self_hosted"),
    money("external_cost_usd", "NOT is_self_hosted"),
    tokens("input_tokens"),
    tokens("cached_input_tokens"),
    tokens("output_tokens"),
    tokens("reasoning_tokens"),
    _distinct("teams", "teams", "team"),
)


def overview(snapshot: ReadSnapshot, question: Question) -> Report:
    """Return a total only, unless `by` splits it."""
    return aggregate(
        snapshot, question, MEASURES, name="overview", title=TITLE, by=question.by or ()
    )
