"""Answers the report `events`: the single attempts behind a total, page by page or as a stream."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from sqlalchemy import Label, Select, Text, cast, func, select

from gateway.reports.dimensions import Columns, TagKey, each_tag, tag_label
from gateway.reports.question import Question
from gateway.reports.report import Cell, Column, ColumnKind, Report
from gateway.reports.report_kind import ReportKind
from gateway.reports.sources.aggregate import ATTEMPTS, SPENT, total_of, total_row
from gateway.reports.sources.connection import ReadSnapshot
from gateway.reports.sources.facts import EVENTS, Source, facts, source_for
from gateway.reports.sources.notes import notes_on, read_freshness


def _text_column(name: str) -> Column:
    """Return a report column of text."""
    return Column(name=name, unit="", kind=ColumnKind.TEXT)


def _token_column(name: str) -> Column:
    """Return a report column of token counts."""
    return Column(name=name, unit="tokens", kind=ColumnKind.COUNT)


COLUMNS = (
    Column(name="occurred_at", unit="UTC", kind=ColumnKind.TIME),
    _text_column("request_id"),
    Column(name="attempt", unit="", kind=ColumnKind.COUNT),
    _text_column("team"),
    _text_column("project"),
    _text_column("cost_centre"),
    _text_column("key_id"),
    _text_column("end_user"),
    _text_column("tags"),
    _text_column("route"),
    _text_column("deployment"),
    _text_column("provider"),
    _text_column("model"),
    _text_column("region"),
    _text_column("data_class"),
    _text_column("outcome"),
    Column(name="http_status", unit="", kind=ColumnKind.COUNT),
    Column(name="streamed", unit="", kind=ColumnKind.FLAG),
    _token_column("input_tokens"),
    _token_column("cached_input_tokens"),
    _token_column("output_tokens"),
    _token_column("reasoning_tokens"),
    _text_column("usage_source"),
    Column(name="cost_usd", unit="USD", kind=ColumnKind.MONEY),
    Column(name="held_usd", unit="USD, at most, for unknown", kind=ColumnKind.MONEY),
    Column(name="posted_period", unit="UTC", kind=ColumnKind.DAY),
    Column(name="ttft_s", unit="s", kind=ColumnKind.SECONDS),
    Column(name="duration_s", unit="s", kind=ColumnKind.SECONDS),
)
_TOTAL = (ATTEMPTS, *SPENT)
_BATCH = 5_000


def _tags(row: Columns) -> Label[Any]:
    """Return the SQL of an event's tags as one text, `key=value` separated by commas."""
    tag = each_tag(row)
    listed = func.string_agg(tag_label(tag), ", ").aggregate_order_by(tag.c.key)
    return select(listed).select_from(tag).scalar_subquery().label("tags")


_AS_TEXT: Mapping[str, Callable[[Columns], Label[Any]]] = {
    "request_id": lambda row: cast(row.request_id, Text).label("request_id"),
    "tags": _tags,
}


def events(snapshot: ReadSnapshot, question: Question) -> Report:
    """Return the report on single attempts: one page, newest first; the total covers all pages.

    Without a limit it lists no rows.
    """
    rows = () if question.limit is None else tuple(event_rows(snapshot, question))
    source = _source_of_total(question)
    total = total_row(snapshot, _TOTAL, facts(source, question.conditions), source=source)
    fresh = read_freshness(snapshot, question)
    return Report(
        name=REPORT.name,
        title=REPORT.title,
        dataset=question.dataset,
        columns=COLUMNS,
        rows=rows,
        total=total_of(total, _TOTAL),
        complete_until=fresh.complete_until,
        notes=(_listed(question, total["attempts"], len(rows)), *notes_on(question, total, fresh)),
    )


def _source_of_total(question: Question) -> Source:
    """Return the smallest source that knows the filters: to count a page's events one by one would
    read the whole month.

    Money is not shared by cost centres: a page lists the events that one is booked on.
    """
    filters = [dimension for dimension, _ in question.where]
    return source_for(
        question.dataset,
        filters=filters,
        moments=question.moments,
        from_events=question.is_as_closed or any(isinstance(one, TagKey) for one in filters),
    )


def event_rows(snapshot: ReadSnapshot, question: Question) -> Iterator[tuple[Cell, ...]]:
    """Yield the page's attempts one by one, newest first; all of them if there is no limit."""
    for row in snapshot.each(_page(question), batch=_BATCH):
        yield tuple(row[column.name] for column in COLUMNS)


def _page(question: Question) -> Select[Any]:
    """Return the SELECT of one page of events, newest first."""
    row = EVENTS[question.dataset].c
    wanted = (
        _AS_TEXT[column.name](row) if column.name in _AS_TEXT else row[column.name]
        for column in COLUMNS
    )
    return (
        select(*wanted)
        .where(*question.conditions(row))
        .order_by(row.occurred_at.desc(), row.request_id, row.attempt)
        .limit(question.limit)
        .offset(question.offset)
    )


def _listed(question: Question, attempts: int, rows: int) -> str:
    """Return the note that names the events that this page lists."""
    if question.limit is None and not question.offset:
        return f"All {attempts:,} events, newest first."
    if question.limit is None:
        return f"Events {question.offset + 1:,} to {attempts:,}, newest first."
    if not rows:
        return "No events here."
    first, last = question.offset + 1, question.offset + rows
    return f"Events {first:,} to {last:,} of {attempts:,}, newest first."


REPORT = ReportKind(
    name="events",
    title="Events",
    question="Which attempts are behind a total?",
    by=None,
    run=events,
    usd_alone="its rows are the ledger's own, each with its price, and the ledger is in USD",
    each_row=event_rows,
    reproduces=True,
)
