"""Declares the exports `events` and `adjustments`: the columns and rows of their views."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sqlalchemy import (
    BigInteger,
    Boolean,
    ColumnElement,
    Date,
    DateTime,
    Double,
    Integer,
    Numeric,
    Table,
    Text,
    cast,
    func,
    select,
)
from sqlalchemy.types import TypeEngine

from gateway.reports.dimensions import Columns, Dimension
from gateway.reports.exports.export import ExportKind, Rows
from gateway.reports.exports.watermark import Watermark
from gateway.reports.question import Question
from gateway.reports.report import Column, ColumnKind
from gateway.reports.sources.allocated_rows import allocated, with_shares
from gateway.reports.sources.connection import ReadSnapshot
from gateway.reports.sources.facts import source_for
from gateway.storage.postgres.schema import finance_views
from gateway.storage.postgres.schema.column_types import Xid8

BATCH = 1_000  # rows in memory: an event with its decision has about 2 kB
_KINDS: tuple[tuple[type[TypeEngine[Any]], ColumnKind], ...] = (
    (Boolean, ColumnKind.FLAG),
    (Xid8, ColumnKind.COUNT),
    (Integer, ColumnKind.COUNT),
    (DateTime, ColumnKind.TIME),
    (Date, ColumnKind.DAY),
    (Double, ColumnKind.SECONDS),
    (Numeric, ColumnKind.MONEY),
)
_OF_SHARES = (
    "cost_centre is the largest of the team's cost centres, with all of the money. With --where "
    "cost_centre=CC it is CC, and the money is its share.",
)
_UNITS = {
    ColumnKind.TIME: "UTC",
    ColumnKind.DAY: "UTC",
    ColumnKind.SECONDS: "s",
    ColumnKind.MONEY: "USD",
}


def _view_export(
    name: str,
    title: str,
    table: Table,
    *,
    key: tuple[str, ...],
    expected: Callable[[ReadSnapshot, Question], int | None],
    notes: tuple[str, ...],
) -> ExportKind:
    """Return the export of a view's rows in the order of `key`.

    A row is one fact: `key` names it. With a filter by cost centre the money is that cost centre's
    share of the fact.
    """

    def rows(snapshot: ReadSnapshot, question: Question, since: Watermark | None) -> Rows:
        chosen = _of_cost_centre(table, question)
        after = () if since is None else (since.is_after(chosen),)
        wanted = select(*(_readable(chosen[one.name]) for one in table.columns))
        wanted = wanted.where(*question.conditions(chosen), *after)
        ordered = wanted.order_by(*(chosen[column] for column in key))
        for batch in snapshot.stream(ordered, batch=BATCH):
            yield from batch

    return ExportKind(
        name=name,
        title=title,
        columns=tuple(_column(column.name, column.type) for column in table.columns),
        rows=rows,
        expected=expected,
        notes=notes,
    )


def _of_cost_centre(table: Table, question: Question) -> Columns:
    """Return the columns of a view; if a question asks for a cost centre, with the shares of the
    cost centres of their team.
    """
    if not _asks_cost_centre(question):
        return table.c
    row = with_shares(table.alias("event")).c
    money = {one.name: row[one.name] for one in table.columns if one.name.endswith("_usd")}
    shared = allocated(row, money)
    columns = (shared.get(one.name, row[one.name]).label(one.name) for one in row)
    return select(*columns).subquery("shared").c


def _asks_cost_centre(question: Question) -> bool:
    """Return True if a question has a filter by cost centre."""
    return any(dimension is Dimension.COST_CENTRE for dimension, _ in question.where)


def _column(name: str, type_: TypeEngine[Any]) -> Column:
    """Return the report column of a view's column; ids, lists and objects are texts."""
    kind = next((kind for one, kind in _KINDS if isinstance(type_, one)), ColumnKind.TEXT)
    unit = "tokens" if name.endswith("_tokens") else _UNITS.get(kind, "")
    return Column(name=name, unit=unit, kind=kind)


def _readable(column: ColumnElement[Any]) -> ColumnElement[Any]:
    """Return a column as the type that the files have: ids and JSON as text, transaction numbers
    as integers.
    """
    if isinstance(column.type, Xid8):
        return cast(cast(column, Text), BigInteger)
    if _column("", column.type).kind is ColumnKind.TEXT:
        return cast(column, Text)
    return column


def expected_events(snapshot: ReadSnapshot, question: Question) -> int | None:
    """Return the number of a question's events from their sums, None if no sum can tell."""
    if _asks_cost_centre(question):
        return None  # sums count an event at its largest cost centre alone
    filters = [dimension for dimension, _ in question.where]
    source = source_for(question.dataset, filters=filters, moments=question.moments)
    if source.is_events:
        return None
    row = source.rows.c
    chosen = select(func.sum(row.attempts).label("events")).where(*question.conditions(row))
    return int(snapshot.row(chosen)["events"] or 0)


def _expected_adjustments(snapshot: ReadSnapshot, question: Question) -> int:
    """Return the number of a question's adjustments: there are few."""
    row = _of_cost_centre(finance_views.adjustments, question)
    chosen = select(func.count(row.adjustment_id).label("rows")).where(*question.conditions(row))
    return int(snapshot.row(chosen)["rows"])


EVENTS = _view_export(
    "events",
    "Usage events",
    finance_views.usage_events,
    # A request id begins with its millisecond, so its order is that of time; an index has it.
    key=("request_id", "attempt"),
    expected=expected_events,
    notes=(
        "is_unsettled is as of this export. A later settlement is a row of `export adjustments` "
        "with settles.",
        *_OF_SHARES,
    ),
)
ADJUSTMENTS = _view_export(
    "adjustments",
    "Adjustments",
    finance_views.adjustments,
    key=("created_at", "adjustment_id"),
    expected=_expected_adjustments,
    notes=(
        "is_expected is as of this export. A later resolution is a row of its own.",
        *_OF_SHARES,
    ),
)
