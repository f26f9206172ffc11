"""Attempts with an unknown cost: their age and the reason."""

from __future__ import annotations

from collections.abc import Iterator

from gateway.domain.ledger.usage_event import Outcome
from gateway.reports.question import Question
from gateway.reports.report import Cell, Column, ColumnKind, Report, listed_note
from gateway.reports.sources.aggregate import ATTEMPTS, HELD, figures_of, total_of
from gateway.reports.sources.connection import ReadSnapshot, Row
from gateway.reports.sources.facts import events as events_of
from gateway.reports.sources.facts import facts
from gateway.reports.sources.notes import SURENESS, notes_on, read_freshness

TITLE = "Unsettled attempts"


def _text(name: str) -> Column:
    return Column(name=name, unit="", kind=ColumnKind.TEXT)


COLUMNS = (
    Column(name="occurred_at", unit="UTC", kind=ColumnKind.TIME),
    _text("request_id"),
    Column(name="attempt", unit="", kind=ColumnKind.COUNT),
    Column(name="age_s", unit="s", kind=ColumnKind.SECONDS),
    _text("team"),
    _text("route"),
    _text("deployment"),
    _text("provider"),
    _text("outcome"),
    Column(name="held_usd", unit="USD, at most", kind=ColumnKind.MONEY),
    _text("why"),
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
    """Return one page of unsettled attempts, oldest first.

    The total covers all pages; no limit, no rows.
    """
    condition, values = _condition(question)
    rows = () if question.limit is None else tuple(unsettled_rows(snapshot, question))
    figures = figures_of(_TOTAL)
    chosen = facts(events_of(question.dataset), condition, has_adjustments=False)
    total = snapshot.row(f"SELECT {figures}, {SURENESS} {chosen}", **values)
    fresh = read_freshness(snapshot, question)
    return Report(
        name="unsettled",
        title=TITLE,
        dataset=question.dataset,
        columns=COLUMNS,
        rows=rows,
        total=total_of(total, _TOTAL),
        complete_until=fresh.complete_until,
        notes=(
            *_listed(question, total["attempts"], len(rows)),
            *_what_to_do(total["attempts"]),
            *notes_on(question, total, fresh),
        ),
    )


def unsettled_rows(snapshot: ReadSnapshot, question: Question) -> Iterator[tuple[Cell, ...]]:
    """Yield the page's attempts one by one, oldest first; all of them if there is no limit."""
    condition, values = _condition(question)
    listed = (
        "occurred_at, CAST(request_id AS text) AS request_id, attempt, team, route, deployment, "
        "provider, outcome, held_usd, is_suspect, CAST(extract(epoch FROM now() - occurred_at) AS "
        "double precision) AS age_s"
    )
    rows = snapshot.each(
        f"SELECT {listed} FROM {question.dataset.events} AS event WHERE {condition} "  # noqa: S608 - constants
        "ORDER BY event.occurred_at, event.request_id, event.attempt LIMIT :page_rows OFFSET "
        ":page_start",
        batch=_BATCH,
        **values,
        page_rows=question.limit,
        page_start=question.offset,
    )
    yield from map(_cells, rows)


def _condition(question: Question) -> tuple[str, dict[str, object]]:
    condition, values = question.condition()
    return f"{condition} AND is_unsettled", values


def _cells(row: Row) -> tuple[Cell, ...]:
    why = SUSPECT if row["is_suspect"] else WHY[Outcome(row["outcome"])]
    return tuple(why if column.name == "why" else row[column.name] for column in COLUMNS)


def _listed(question: Question, attempts: int, rows: int) -> tuple[str, ...]:
    """Return the note about a page's omissions: without it a reader takes the page for
    everything.
    """
    if question.limit is None or rows == attempts:
        return ()
    return (listed_note("Attempts", count=attempts, first=question.offset + 1, rows=rows),)


def _what_to_do(listed: int) -> tuple[str, ...]:
    if not listed:
        return ("Every attempt is settled.",)
    return ("Enter a cost: tollgate reconcile resolve REQUEST_ID --as zero|hold|AMOUNT --reason …",)
