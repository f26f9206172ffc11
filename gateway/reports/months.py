"""Which months are there, what did they cost, and can they still change?"""

from __future__ import annotations

from gateway.reports.aggregate import ATTEMPTS, COST, HELD
from gateway.reports.connection import Snapshot
from gateway.reports.notes import SURENESS, notes_on, read_freshness
from gateway.reports.question import Question
from gateway.reports.report import Column, Kind, Report

TITLE = "Months"
MEASURES = (ATTEMPTS, COST, HELD)
COLUMNS = (
    Column(name="month", unit="UTC", kind=Kind.DAY),
    Column(name="state", unit="", kind=Kind.TEXT),
    *(measure.column for measure in MEASURES),
)


def months(snapshot: Snapshot, question: Question) -> Report:
    """Months with events, newest first, by posted period; `month` is its first day."""
    condition, values = question.condition()
    figures = ", ".join(f"{measure.sql} AS {measure.name}" for measure in MEASURES)
    chosen = f"FROM {question.dataset.events} AS event"
    rows = snapshot.rows(
        f"SELECT event.posted_period AS month, coalesce(period.state, 'open') AS state, {figures} {chosen} "
        f"LEFT JOIN finance.periods AS period ON period.month = event.posted_period "
        f"WHERE {condition} GROUP BY 1, 2 ORDER BY 1 DESC",
        **values,
    )
    total = snapshot.row(f"SELECT {figures}, {SURENESS} {chosen} WHERE {condition}", **values)
    fresh = read_freshness(snapshot, question)
    return Report(
        name="months",
        title=TITLE,
        dataset=question.dataset,
        columns=COLUMNS,
        rows=tuple(tuple(row[column.name] for column in COLUMNS) for row in rows),
        total={measure.name: total[measure.name] for measure in MEASURES},
        complete_until=fresh.complete_until,
        notes=notes_on(question, total, fresh),
    )
