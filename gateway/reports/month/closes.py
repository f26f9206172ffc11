"""Answers the report `closes`: each closed version of each month, with its hash, its author, the
accepted checks and its reopening.
"""

from __future__ import annotations

from sqlalchemy import select

from gateway.errors import BadUsage
from gateway.reports.question import Question
from gateway.reports.report import Cell, Column, ColumnKind, Dataset, Report
from gateway.reports.report_kind import ReportKind
from gateway.reports.sources.connection import ReadSnapshot, Row
from gateway.storage.postgres.schema import finance_views

COLUMNS = (
    Column(name="month", unit="UTC", kind=ColumnKind.DAY),
    Column(name="version", unit="", kind=ColumnKind.COUNT),
    Column(name="state", unit="", kind=ColumnKind.TEXT),
    Column(name="closed_at", unit="UTC", kind=ColumnKind.TIME),
    Column(name="author", unit="", kind=ColumnKind.TEXT),
    Column(name="operator", unit="", kind=ColumnKind.TEXT),
    Column(name="events", unit="events", kind=ColumnKind.COUNT),
    Column(name="adjustments", unit="adjustments", kind=ColumnKind.COUNT),
    Column(name="total_usd", unit="USD", kind=ColumnKind.MONEY),
    Column(name="sha256", unit="", kind=ColumnKind.TEXT),
    Column(name="accepted", unit="", kind=ColumnKind.TEXT),
    Column(name="reopened_at", unit="UTC", kind=ColumnKind.TIME),
    Column(name="reopened_by", unit="", kind=ColumnKind.TEXT),
    Column(name="reopen_reason", unit="", kind=ColumnKind.TEXT),
)


def closes(snapshot: ReadSnapshot, question: Question) -> Report:
    """Return the report: one row a version, the newest month and version first.

    Raises `BadUsage` for a filter or for days: a closed version is of a whole month.
    """
    if question.where or question.days is not None:
        raise BadUsage("Report closes is about whole months: give --month YYYY-MM, or nothing.")
    view = finance_views.month_closes.c
    wanted = () if question.month is None else (view.month == question.month,)
    ordered = select(*view).where(*wanted).order_by(view.month.desc(), view.version.desc())
    rows = snapshot.rows(ordered) if question.dataset is Dataset.REAL else ()
    return Report(
        name=REPORT.name,
        title=REPORT.title,
        dataset=question.dataset,
        columns=COLUMNS,
        rows=tuple(_cells(row) for row in rows),
        total={},
        complete_until=max((row["closed_at"] for row in rows), default=None),
        notes=(
            *(() if rows else ("No month was closed yet.",)),
            "sha256 covers the events, adjustments, allocation and rates of the version; tollgate "
            "month verify MONTH computes it again. total_usd includes adjustments.",
        ),
    )


def _cells(row: Row) -> tuple[Cell, ...]:
    """Return the cells of one closed version."""
    accepted = "; ".join(f"{check}: {why}" for check, why in sorted(row["accepted"].items()))
    state = "closed" if row["reopened_at"] is None else "reopened"
    found = dict(row) | {"state": state, "accepted": accepted or None}
    return tuple(found[column.name] for column in COLUMNS)


REPORT = ReportKind(
    name="closes",
    title="Closed months",
    question="Which months were closed, by whom, with which hash, and were they reopened?",
    by=None,
    run=closes,
    whole_months=True,
)
