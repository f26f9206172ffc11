"""Declares the dimensions by which reports group and filter events, each as an SQL column
expression; runs no query.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import date
from enum import StrEnum
from typing import Any

from sqlalchemy import (
    TIMESTAMP,
    BigInteger,
    ColumnElement,
    Date,
    FromClause,
    Interval,
    TableValuedAlias,
    Text,
    case,
    cast,
    column,
    exists,
    func,
    literal,
    literal_column,
    select,
    union_all,
)
from sqlalchemy.sql.base import ReadOnlyColumnCollection
from sqlalchemy.sql.elements import KeyedColumnElement

from gateway.reports.report import Column, ColumnKind

# The columns of one relation: of events, of adjustments or of a roll-up.
Columns = ReadOnlyColumnCollection[str, KeyedColumnElement[Any]]

UNALLOCATED = "unallocated"  # never the text of a tag, because those contain "="
UNTAGGED = "(untagged)"  # the older word for it, still accepted in a filter


class Dimension(StrEnum):
    """A dimension that splits a total. The value is the word that users type."""

    TEAM = "team"
    PROJECT = "project"
    COST_CENTRE = "cost_centre"
    KEY = "key"
    END_USER = "end_user"
    TAG = "tag"
    ROUTE = "route"
    MODEL = "model"
    PROVIDER = "provider"
    REGION = "region"
    DEPLOYMENT = "deployment"
    DESTINATION = "destination"
    OUTCOME = "outcome"
    USAGE_SOURCE = "usage_source"
    DAY = "day"

    @property
    def report_column(self) -> Column:
        """Return the report column that shows this dimension."""
        if self is Dimension.DAY:
            return Column(name="day", unit="UTC", kind=ColumnKind.DAY)
        return Column(name=self.value, unit="", kind=ColumnKind.TEXT)

    @property
    def label(self) -> str:
        """Return the name of the dimension's column in a statement: no figure has such a name."""
        return f"by_{self.value}"

    def of(self, row: Columns) -> ColumnElement[Any]:
        """Return the SQL of the dimension's value in a row. A tag has none, because an event may
        have several.
        """
        expression = _EXPRESSIONS.get(self)
        return row[self.value] if expression is None else expression(row)


# A constant in the statement: as a parameter it would hide that two expressions are the same.
UTC_ZONE = literal_column("'UTC'", Text)


def utc_day(moment: ColumnElement[Any]) -> ColumnElement[Any]:
    """Return the SQL of a moment's UTC day."""
    return cast(func.timezone(UTC_ZONE, moment), Date)


def in_utc_month(moment: ColumnElement[Any], month: date) -> tuple[ColumnElement[bool], ...]:
    """Return the conditions that a moment lies in a month, which begins at midnight UTC for any
    session.
    """
    first = cast(literal(month, Date), TIMESTAMP)
    next_first = first + literal_column("interval '1 month'", Interval)
    return moment >= _in_utc(first), moment < _in_utc(next_first)


def _in_utc(clock: ColumnElement[Any]) -> ColumnElement[Any]:
    """Return the SQL of the moment at which UTC has this date and time."""
    return func.timezone(UTC_ZONE, clock, type_=TIMESTAMP(timezone=True))


# The dimensions that are not simply the column of their name.
_EXPRESSIONS: Mapping[Dimension, Callable[[Columns], ColumnElement[Any]]] = {
    Dimension.KEY: lambda row: row.key_id,
    Dimension.DESTINATION: lambda row: case((row.is_self_hosted, "self-hosted"), else_="external"),
    Dimension.DAY: lambda row: utc_day(row.occurred_at),
}


def each_tag(row: Columns) -> TableValuedAlias:
    """Return the tags of a row as an SQL relation with the columns `key` and `value`."""
    members = column("key", Text), column("value", Text)
    return func.jsonb_each_text(row.tags).table_valued(*members, name="tag")


def tag_label(tag: TableValuedAlias) -> ColumnElement[str]:
    """Return the SQL of a tag as users type it: `key=value`."""
    label: ColumnElement[str] = tag.c.key + "=" + tag.c.value
    return label


def has_tag(row: Columns, wanted: str | None) -> ColumnElement[bool]:
    """Return the SQL condition that a row has a tag; for None, `unallocated` or `(untagged)`, that
    it has none.
    """
    if wanted in (None, UNALLOCATED, UNTAGGED):
        return func.coalesce(row.tags, literal_column("'{}'")) == literal_column("'{}'")
    tag = each_tag(row)
    return exists().select_from(tag).where(tag_label(tag) == wanted)


def tag_rows(row: Columns, *, rows_add_up: bool) -> FromClause:
    """Return the SQL relation of an event's rows in a split by tag, with the columns `label` and
    `times`.

    An event with three tags is in three rows, each time in full. It counts -2 times in the row
    `unallocated`; an event without a tag counts there once. So the rows always add up to the total.
    Percentiles cannot be subtracted: unless `rows_add_up`, `unallocated` has only the events
    without a tag, and the rows overlap.
    """
    tag = each_tag(row)
    tagged = select(
        tag_label(tag).label("label"), literal(1, BigInteger).label("times")
    ).select_from(tag)
    tags = func.count()
    rest = select(literal(UNALLOCATED), 1 - tags if rows_add_up else literal(1, BigInteger))
    is_left = tags != 1 if rows_add_up else tags == 0
    return union_all(tagged, rest.select_from(each_tag(row)).having(is_left)).lateral("pair")
