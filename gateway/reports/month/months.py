"""Answers the report `months`: each month's cost, and whether it can still change; changes no
month.
"""

from __future__ import annotations

from sqlalchemy import func, select

from gateway.reports.question import Question
from gateway.reports.report import Column, ColumnKind, Report
from gateway.reports.report_kind import ReportKind
from gateway.reports.sources.aggregate import (
    ATTEMPTS,
    SPENT,
    cells,
    figures_of,
    source_of,
    total_of,
    total_row,
)
from gateway.reports.sources.connection import ReadSnapshot
from gateway.reports.sources.currencies import require_rates, rounded
from gateway.reports.sources.facts import facts
from gateway.reports.sources.notes import notes_on, read_freshness
from gateway.storage.postgres.schema import finance_views

MEASURES = (ATTEMPTS, *SPENT)
COLUMNS = (
    Column(name="month", unit="UTC", kind=ColumnKind.DAY),
    Column(name="state", unit="", kind=ColumnKind.TEXT),
    *(measure.report_column for measure in MEASURES),
)


def months(snapshot: ReadSnapshot, question: Question) -> Report:
    """Return the report on the months with events or adjustments, newest first.

    They are posted periods; `month` is the first day.
    """
    source = source_of(question, MEASURES)
    chosen = facts(source, question.conditions, currency=question.currency)
    if question.currency is not None:
        require_rates(snapshot, chosen, question.currency, closed_at=question.closed_at)
    month, of_month = chosen.c.posted_period, finance_views.periods
    period = select(of_month.c.month, of_month.c.state).subquery("period")
    rows = snapshot.rows(
        select(
            month.label("month"),
            func.coalesce(func.max(period.c.state), "open").label("state"),
            *figures_of(MEASURES, source),
        )
        .select_from(chosen.outerjoin(period, period.c.month == month))
        .group_by(month)
        .order_by(month.desc())
    )
    total = total_row(snapshot, MEASURES, chosen, source=source)
    fresh = read_freshness(snapshot, question)
    report = Report(
        name=REPORT.name,
        title=REPORT.title,
        dataset=question.dataset,
        columns=COLUMNS,
        rows=tuple((row["month"], row["state"], *cells(row, MEASURES)) for row in rows),
        total=total_of(total, MEASURES),
        complete_until=fresh.complete_until,
        notes=notes_on(question, total, fresh),
    )
    return report if question.currency is None else rounded(report)


REPORT = ReportKind(
    name="months",
    title="Months",
    question="Which months are there, and can they still change?",
    by=None,
    run=months,
)
