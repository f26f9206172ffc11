"""The months, their cost, and whether they can still change."""

from __future__ import annotations

from gateway.reports.question import Question
from gateway.reports.report import Column, ColumnKind, Report
from gateway.reports.sources.aggregate import (
    ATTEMPTS,
    SPENT,
    cells,
    figures_of,
    source_of,
    total_of,
)
from gateway.reports.sources.connection import ReadSnapshot
from gateway.reports.sources.facts import facts
from gateway.reports.sources.notes import SURENESS, notes_on, read_freshness

TITLE = "Months"
MEASURES = (ATTEMPTS, *SPENT)
COLUMNS = (
    Column(name="month", unit="UTC", kind=ColumnKind.DAY),
    Column(name="state", unit="", kind=ColumnKind.TEXT),
    *(measure.column for measure in MEASURES),
)


def months(snapshot: ReadSnapshot, question: Question) -> Report:
    """Months with events or adjustments, newest first, by posted period; `month` is its first
    day.
    """
    condition, values = question.condition()
    figures = figures_of(MEASURES)
    chosen = facts(source_of(question, MEASURES), condition)
    rows = snapshot.rows(
        "SELECT fact.posted_period AS month, coalesce(max(period.state), 'open') AS state, "
        f"{figures} {chosen} LEFT JOIN finance.periods AS period ON period.month = "
        "fact.posted_period GROUP BY 1 ORDER BY 1 DESC",
        **values,
    )
    total = snapshot.row(f"SELECT {figures}, {SURENESS} {chosen}", **values)
    fresh = read_freshness(snapshot, question)
    return Report(
        name="months",
        title=TITLE,
        dataset=question.dataset,
        columns=COLUMNS,
        rows=tuple((row["month"], row["state"], *cells(row, MEASURES)) for row in rows),
        total=total_of(total, MEASURES),
        complete_until=fresh.complete_until,
        notes=notes_on(question, total, fresh),
    )
