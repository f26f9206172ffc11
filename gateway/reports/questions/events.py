"""The attempts behind a total."""

from __future__ import annotations

from collections.abc import Iterator

from gateway.reports.question import Question
from gateway.reports.report import Cell, Column, ColumnKind, Report
from gateway.reports.sources.aggregate import ATTEMPTS, SPENT, figures_of, total_of
from gateway.reports.sources.connection import ReadSnapshot
from gateway.reports.sources.facts import events as events_of
from gateway.reports.sources.facts import facts
from gateway.reports.sources.notes import SURENESS, notes_on, read_freshness

TITLE = "Events"


def _text(name: str) -> Column:
    return Column(name=name, unit="", kind=ColumnKind.TEXT)


def _count(name: str) -> Column:
    return Column(name=name, unit="tokens", kind=ColumnKind.COUNT)


COLUMNS = (
    Column(name="occurred_at", unit="UTC", kind=ColumnKind.TIME),
    _text("request_id"),
    Column(name="attempt", unit="", kind=ColumnKind.COUNT),
    _text("team"),
    _text("project"),
    _text("cost_centre"),
    _text("key_id"),
    _text("end_user"),
    _text("tags"),
    _text("route"),
    _text("deployment"),
    _text("provider"),
    _text("model"),
    _text("region"),
    _text("data_class"),
    _text("outcome"),
    Column(name="http_status", unit="", kind=ColumnKind.COUNT),
    Column(name="streamed", unit="", kind=ColumnKind.FLAG),
    _count("input_tokens"),
    _count("cached_input_tokens"),
    _count("output_tokens"),
    _count("reasoning_tokens"),
    _text("usage_source"),
    Column(name="cost_usd", unit="USD", kind=ColumnKind.MONEY),
    Column(name="held_usd", unit="USD, at most, for unknown", kind=ColumnKind.MONEY),
    Column(name="posted_period", unit="UTC", kind=ColumnKind.DAY),
    Column(name="ttft_s", unit="s", kind=ColumnKind.SECONDS),
    Column(name="duration_s", unit="s", kind=ColumnKind.SECONDS),
)
_TOTAL = (ATTEMPTS, *SPENT)
_AS_TEXT = {
    "request_id": "CAST(request_id AS text) AS request_id",
    "tags": "(SELECT string_agg(key || '=' || value, ', ' ORDER BY key) FROM "
    "jsonb_each_text(event.tags)) AS tags",
}


_BATCH = 5_000


def events(snapshot: ReadSnapshot, question: Question) -> Report:
    """Return one page of attempts, newest first; the total covers all pages.

    Without a limit it lists no rows.
    """
    condition, values = question.condition()
    rows = () if question.limit is None else tuple(event_rows(snapshot, question))
    figures = figures_of(_TOTAL)
    summed = facts(events_of(question.dataset), condition)
    total = snapshot.row(f"SELECT {figures}, {SURENESS} {summed}", **values)
    fresh = read_freshness(snapshot, question)
    return Report(
        name="events",
        title=TITLE,
        dataset=question.dataset,
        columns=COLUMNS,
        rows=rows,
        total=total_of(total, _TOTAL),
        complete_until=fresh.complete_until,
        notes=(_listed(question, total["attempts"], len(rows)), *notes_on(question, total, fresh)),
    )


def event_rows(snapshot: ReadSnapshot, question: Question) -> Iterator[tuple[Cell, ...]]:
    """Yield the page's attempts one by one, newest first; all of them if there is no limit."""
    condition, values = question.condition()
    wanted = ", ".join(_AS_TEXT.get(column.name, column.name) for column in COLUMNS)
    rows = snapshot.each(
        f"SELECT {wanted} FROM {question.dataset.events} AS event WHERE {condition} "  # noqa: S608 - constants
        "ORDER BY event.occurred_at DESC, event.request_id, event.attempt LIMIT :page_rows "
        "OFFSET :page_start",
        batch=_BATCH,
        **values,
        page_rows=question.limit,
        page_start=question.offset,
    )
    for row in rows:
        yield tuple(row[column.name] for column in COLUMNS)


def _listed(question: Question, attempts: int, rows: int) -> str:
    if question.limit is None and not question.offset:
        return f"All {attempts:,} events, newest first."
    if question.limit is None:
        return f"Events {question.offset + 1:,} to {attempts:,}, newest first."
    if not rows:
        return "No events here."
    first, last = question.offset + 1, question.offset + rows
    return f"Events {first:,} to {last:,} of {attempts:,}, newest first."
