"""Answers the report `unsettled`: the attempts with an unknown cost, their age and the reason;
resolves none.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from sqlalchemy import ColumnElement, Double, Select, Text, cast, extract, func, literal, select

from gateway.domain.ledger.usage_event import Outcome
from gateway.reports.dimensions import Columns
from gateway.reports.question import Question
from gateway.reports.report import Cell, Column, ColumnKind, Report, listed_note
from gateway.reports.report_kind import ReportKind
from gateway.reports.sources.aggregate import ATTEMPTS, HELD, total_of, total_row
from gateway.reports.sources.connection import ReadSnapshot, Row
from gateway.reports.sources.facts import EVENTS, facts
from gateway.reports.sources.facts import events as events_of
from gateway.reports.sources.notes import notes_on, read_freshness


def _text_column(name: str) -> Column:
    """Return a report column of text."""
    return Column(name=name, unit="", kind=ColumnKind.TEXT)


COLUMNS = (
    Column(name="occurred_at", unit="UTC", kind=ColumnKind.TIME),
    _text_column("request_id"),
    Column(name="attempt", unit="", kind=ColumnKind.COUNT),
    Column(name="age_s", unit="s", kind=ColumnKind.SECONDS),
    _text_column("team"),
    _text_column("route"),
    _text_column("deployment"),
    _text_column("provider"),
    _text_column("outcome"),
    Column(name="held_usd", unit="USD, at most", kind=ColumnKind.MONEY),
    _text_column("why"),
)
WHY = {
    Outcome.OK: "it ended well, but its usage is missing",
    Outcome.UPSTREAM_ERROR: "the upstream failed after it may have begun to work",
    Outcome.UPSTREAM_CUT: "the upstream broke off before it reported usage",
    Outcome.UPSTREAM_TIMEOUT: "the upstream did not answer in time; it may have worked",
    Outcome.UPSTREAM_UNREACHABLE: "the connection failed after the request may have been sent",
    Outcome.CLIENT_GONE: "the caller left, and this upstream reports usage only at the end",
    Outcome.GATEWAY_ERROR: "the gateway failed in the middle of it",
    Outcome.GATEWAY_STOPPED: "the gateway was stopped in the middle of it",
    Outcome.INTERRUPTED: "the gateway's process ended before the attempt did",
}
SUSPECT = "the usage it reported cannot be true"
_TOTAL = (ATTEMPTS, HELD)


_BATCH = 5_000


def unsettled(snapshot: ReadSnapshot, question: Question) -> Report:
    """Return the report on unsettled attempts: one page, oldest first.

    The total covers all pages; no limit, no rows.
    """
    rows = () if question.limit is None else tuple(unsettled_rows(snapshot, question))
    source = events_of(question.dataset)
    chosen = facts(source, lambda row: _conditions(question, row), has_adjustments=False)
    total = total_row(snapshot, _TOTAL, chosen, source=source)
    fresh = read_freshness(snapshot, question)
    return Report(
        name=REPORT.name,
        title=REPORT.title,
        dataset=question.dataset,
        columns=COLUMNS,
        rows=rows,
        total=total_of(total, _TOTAL),
        complete_until=fresh.complete_until,
        notes=(
            *_listed(question, total["attempts"], len(rows)),
            *_remedy(total["attempts"]),
            *notes_on(question, total, fresh),
        ),
    )


def unsettled_rows(snapshot: ReadSnapshot, question: Question) -> Iterator[tuple[Cell, ...]]:
    """Yield the page's attempts one by one, oldest first; all of them if there is no limit."""
    yield from map(_cells, snapshot.each(_page(question), batch=_BATCH))


def _page(question: Question) -> Select[Any]:
    """Return the SELECT of one page of unsettled attempts, oldest first."""
    row = EVENTS[question.dataset].c
    now = func.now() if question.closed_at is None else literal(question.closed_at)
    age_s = cast(extract("epoch", now - row.occurred_at), Double)
    return (
        select(
            row.occurred_at,
            cast(row.request_id, Text).label("request_id"),
            row.attempt,
            age_s.label("age_s"),
            row.team,
            row.route,
            row.deployment,
            row.provider,
            row.outcome,
            row.held_usd,
            row.is_suspect,
        )
        .where(*_conditions(question, row))
        .order_by(row.occurred_at, row.request_id, row.attempt)
        .limit(question.limit)
        .offset(question.offset)
    )


def _conditions(question: Question, row: Columns) -> list[ColumnElement[bool]]:
    """Return the SQL conditions of the question, and that the attempt is unsettled."""
    return [*question.conditions(row), row.is_unsettled]


def _cells(row: Row) -> tuple[Cell, ...]:
    """Return an attempt's cells in the report, with the reason in words."""
    why = SUSPECT if row["is_suspect"] else WHY[Outcome(row["outcome"])]
    return tuple(why if column.name == "why" else row[column.name] for column in COLUMNS)


def _listed(question: Question, attempts: int, rows: int) -> tuple[str, ...]:
    """Return the note about the attempts that a page omits: without it a reader takes the page for
    everything.
    """
    if question.limit is None or rows == attempts:
        return ()
    return (listed_note("Attempts", count=attempts, first=question.offset + 1, rows=rows),)


def _remedy(attempts: int) -> tuple[str, ...]:
    """Return the note with the command that enters a cost, or that every attempt is settled."""
    if not attempts:
        return ("Every attempt is settled.",)
    return ("Enter a cost: tollgate reconcile resolve REQUEST_ID --as zero|hold|AMOUNT --reason …",)


REPORT = ReportKind(
    name="unsettled",
    title="Unsettled attempts",
    question="Which attempts have an unknown cost, for how long, and why?",
    by=None,
    run=unsettled,
    usd_alone="a hold is a bound of the ledger, and `reconcile resolve` takes USD",
    each_row=unsettled_rows,
    reproduces=True,
)
