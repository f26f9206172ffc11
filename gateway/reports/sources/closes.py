"""Reads the closes of a month, for reports that must not change after one."""

from __future__ import annotations

from datetime import datetime

from gateway.reports.question import Question
from gateway.reports.report import Dataset
from gateway.reports.sources.connection import ReadSnapshot

CLOSES = """
SELECT version, closed_at, reopened_at IS NULL AS is_closed FROM finance.month_closes
WHERE month = :month ORDER BY version
"""


def closed_at(snapshot: ReadSnapshot, question: Question) -> datetime | None:
    """Return the moment at which the question's month was closed, by the close in force; None if it
    is about no closed month of real data.
    """
    if question.closed_at is not None:
        return question.closed_at
    if question.month is None or question.days is not None or question.dataset is not Dataset.REAL:
        return None
    closes = snapshot.rows(CLOSES, month=question.month)
    moments = [row["closed_at"] for row in closes if row["is_closed"]]
    return moments[-1] if moments else None
