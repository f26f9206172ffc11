"""Declares the dimensions by which reports group and filter events, each as an SQL column
expression; runs no query.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import date, datetime
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
    and_,
    case,
    cast,
    column,
    exists,
    func,
    literal,
    literal_column,
    not_,
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
    HOUR = "hour"
    DAY = "day"
    WEEK = "week"
    MONTH = "month"
    QUARTER = "quarter"

    @property
    def report_column(self) -> Column:
        """Return the report column that shows this dimension."""
        if self is Dimension.DAY:
            return Column(name="day", unit="UTC", kind=ColumnKind.DAY)
        unit = "UTC" if self in TIME else ""
        return Column(name=self.value, unit=unit, kind=ColumnKind.TEXT)

    @property
    def label(self) -> str:
        """Return the name of the dimension's column in a statement: no figure has such a name."""
        return f"by_{self.value}"

    def of(self, row: Columns, *, as_posted: bool = True) -> ColumnElement[Any]:
        """Return the SQL of the dimension's value in a row. A tag has none, because an event may
        have several.

        Months and quarters are those that the row is posted to or, unless `as_posted`, those of the
        moment at which it happened.
        """
        if self in _POSTED and as_posted:
            return func.to_char(cast(row.posted_period, TIMESTAMP), _LABELS[self])
        if self in _LABELS:
            return func.to_char(func.timezone(UTC_ZONE, row.occurred_at), _LABELS[self])
        expression = _EXPRESSIONS.get(self)
        return row[self.value] if expression is None else expression(row)


class TagKey(str):
    """A split by the value of one tag, as users type it, `tag:KEY`: one row for each value."""

    PREFIX = "tag:"
    __slots__ = ()

    @property
    def key(self) -> str:
        """Return the name of the tag."""
        return self.removeprefix(self.PREFIX)

    @property
    def value(self) -> str:
        """Return the words of users, as a dimension has them."""
        return str(self)

    @property
    def report_column(self) -> Column:
        """Return the report column that shows the tag's values."""
        return Column(name=self.value, unit="", kind=ColumnKind.TEXT)

    @property
    def label(self) -> str:
        """Return the name of its column in a statement."""
        return f"by_{self.value}"

    def of(self, row: Columns, *, as_posted: bool = True) -> ColumnElement[Any]:
        """Return the SQL of the tag's value in a row; NULL for an event without the tag.

        In sums by tag it is NULL for the rows of other tags and for the repeated counts. Together
        these are the total minus the rows with the tag: the events without it.
        """
        if "is_repeat" in row:
            begins_at = len(self.key) + len("=") + 1
            return case((row.tag_key == self.key, func.substr(row.tag, begins_at)))
        found: ColumnElement[Any] = row.tags[self.key].astext
        return found


Split = Dimension | TagKey
TIME = (Dimension.HOUR, Dimension.DAY, Dimension.WEEK, Dimension.MONTH, Dimension.QUARTER)
_POSTED = (Dimension.MONTH, Dimension.QUARTER)
# As Postgres writes them; weeks are those of ISO 8601. As constants: see UTC_ZONE.
_LABELS = {
    dimension: literal_column(f"'{label}'", Text)
    for dimension, label in (
        (Dimension.HOUR, 'YYYY-MM-DD"T"HH24:00"Z"'),
        (Dimension.WEEK, 'IYYY-"W"IW'),
        (Dimension.MONTH, "YYYY-MM"),
        (Dimension.QUARTER, 'YYYY-"Q"Q'),
    )
}


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


def in_utc_days(
    moment: ColumnElement[Any], first: date, last: date
) -> tuple[ColumnElement[bool], ...]:
    """Return the conditions that a moment lies in the days from `first` to `last`, in UTC."""
    begin, end = (cast(literal(day, Date), TIMESTAMP) for day in (first, last))
    next_day = end + literal_column("interval '1 day'", Interval)
    return moment >= _in_utc(begin), moment < _in_utc(next_day)


def in_moments(
    moment: ColumnElement[Any], first: datetime, after: datetime
) -> tuple[ColumnElement[bool], ...]:
    """Return the conditions that a moment lies from a first one up to another one."""
    zoned = TIMESTAMP(timezone=True)
    return moment >= literal(first, zoned), moment < literal(after, zoned)


def _in_utc(clock: ColumnElement[Any]) -> ColumnElement[Any]:
    """Return the SQL of the moment at which UTC has this date and time."""
    return func.timezone(UTC_ZONE, clock, type_=TIMESTAMP(timezone=True))


# The dimensions that are not simply the column of their name.
_EXPRESSIONS: Mapping[Dimension, Callable[[Columns], ColumnElement[Any]]] = {
    Dimension.KEY: lambda row: row.key_id,
    # Neither for an adjustment without an event, such as a re-allocation.
    Dimension.DESTINATION: lambda row: case(
        (row.is_self_hosted, "self-hosted"), (not_(row.is_self_hosted), "external")
    ),
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
    is_untagged = wanted in (None, UNALLOCATED, UNTAGGED)
    if "is_repeat" in row:  # sums by tag: the tag is a column
        return and_(row.tag.is_(None), not_(row.is_repeat)) if is_untagged else row.tag == wanted
    if is_untagged:
        return func.coalesce(row.tags, literal_column("'{}'")) == literal_column("'{}'")
    tag = each_tag(row)
    return exists().select_from(tag).where(tag_label(tag) == wanted)


def tag_rows(row: Columns) -> FromClause:
    """Return the SQL relation of an event's rows in a split by tag, with the columns `label` and
    `times`.

    An event with three tags is in three rows, each time in full. It counts -2 times in the row
    `unallocated`; an event without a tag counts there once. So the rows always add up to the total.
    """
    tag = each_tag(row)
    tagged = select(
        tag_label(tag).label("label"), literal(1, BigInteger).label("times")
    ).select_from(tag)
    tags = func.count()
    rest = select(literal(UNALLOCATED), 1 - tags).select_from(each_tag(row)).having(tags != 1)
    return union_all(tagged, rest).lateral("pair")
