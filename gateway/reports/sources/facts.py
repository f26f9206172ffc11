"""Composes the SQL relation that reports sum: events or their roll-up, and the adjustments booked
since; runs no query.

All rows have the same columns, and every figure of every report is a sum over them. An event counts
as one attempt, a row of a roll-up as many, an adjustment as none. So a total does not depend on its
source.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from sqlalchemy import (
    TIMESTAMP,
    BigInteger,
    Boolean,
    ColumnClause,
    ColumnElement,
    Date,
    Double,
    FromClause,
    Integer,
    Label,
    Numeric,
    Select,
    Subquery,
    Table,
    Text,
    Uuid,
    case,
    cast,
    column,
    func,
    literal_column,
    null,
    select,
    true,
    union_all,
)
from sqlalchemy.types import TypeEngine

from gateway.reports.dimensions import UTC_ZONE, Columns, Dimension, tag_rows
from gateway.reports.report import Dataset
from gateway.reports.sources.cache_savings import with_cache_savings
from gateway.storage.postgres.schema import other_views, usage_views
from gateway.storage.postgres.schema.base import TIMESTAMPTZ

# Real and demo are never mixed: each has a view of its own.
EVENTS: Mapping[Dataset, Table] = {
    Dataset.REAL: usage_views.usage_events,
    Dataset.DEMO: usage_views.demo_usage_events,
}
# The conditions on the rows of a relation, as `Question.conditions` makes them.
Conditions = Callable[[Columns], Iterable[ColumnElement[bool]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A view that events can be summed from.

    `rows` are its rows with their `occurred_at`; `splits` are its dimensions.
    """

    dataset: Dataset
    table: Table
    rows: FromClause
    splits: frozenset[Dimension]

    @property
    def view(self) -> str:
        """Return the name of the source's view."""
        return self.table.fullname

    @property
    def is_events(self) -> bool:
        """Return True if each row of the source is one event."""
        return self.table is EVENTS[self.dataset]


_EVERYWHERE = frozenset(
    {
        Dimension.TEAM,
        Dimension.PROJECT,
        Dimension.COST_CENTRE,
        Dimension.ROUTE,
        Dimension.MODEL,
        Dimension.DESTINATION,
        Dimension.DAY,
    }
)
_HOUR = _EVERYWHERE | {
    Dimension.DEPLOYMENT,
    Dimension.PROVIDER,
    Dimension.REGION,
    Dimension.OUTCOME,
    Dimension.USAGE_SOURCE,
}


def _events(dataset: Dataset) -> Source:
    """Return the source of a dataset's single events, which can be split by every dimension."""
    table = EVENTS[dataset]
    return Source(
        dataset=dataset, table=table, rows=table.alias("event"), splits=frozenset(Dimension)
    )


def _by_hour(dataset: Dataset, table: Table) -> Source:
    """Return the source of an hourly roll-up, which cannot be split by key, end user or tag."""
    return Source(dataset=dataset, table=table, rows=_rows_at(table, table.c.hour), splits=_HOUR)


def _by_day(table: Table, owner: Dimension) -> Source:
    """Return the source of a daily roll-up, which can be split by its owner too (a key or an end
    user).
    """
    midnight = func.timezone(UTC_ZONE, cast(table.c.day, TIMESTAMP), type_=TIMESTAMPTZ)
    return Source(
        dataset=Dataset.REAL,
        table=table,
        rows=_rows_at(table, midnight),
        splits=_EVERYWHERE | {owner},
    )


def _rows_at(table: Table, moment: ColumnElement[Any]) -> Subquery:
    """Return the rows of a roll-up; its hour or day is named `occurred_at` here too."""
    return select(*table.c, moment.label("occurred_at")).subquery("event")


_EVENTS = {dataset: _events(dataset) for dataset in Dataset}
_EVENTS_WITH_SAVINGS = {
    dataset: replace(source, rows=with_cache_savings(source.rows))
    for dataset, source in _EVENTS.items()
}
# Each equals its events: it reads hours without a sum from them. The first source with the needed
# dimensions is read.
_SUMMED = {
    Dataset.REAL: (
        _by_hour(Dataset.REAL, usage_views.spend_hourly_detail),
        _by_day(usage_views.spend_daily_by_key, Dimension.KEY),
        _by_day(usage_views.spend_daily_by_end_user, Dimension.END_USER),
    ),
    Dataset.DEMO: (_by_hour(Dataset.DEMO, usage_views.demo_spend_hourly_detail),),
}
_ADJUSTMENTS = other_views.adjustments.alias("event")


def events(dataset: Dataset) -> Source:
    """Return the source of single events: they have every dimension, and are many."""
    return _EVENTS[dataset]


def events_with_savings(dataset: Dataset) -> Source:
    """Return the source of single events with their savings: it reads the lines of each event."""
    return _EVENTS_WITH_SAVINGS[dataset]


def source_for(dataset: Dataset, splits: Iterable[Dimension]) -> Source:
    """Return the smallest source that can be split, or filtered, by all of these dimensions."""
    wanted = set(splits)
    return next((source for source in _SUMMED[dataset] if wanted <= source.splits), events(dataset))


_Expression = Callable[[Columns], ColumnElement[Any]]
_ONE, _ZERO = literal_column("1", Integer), literal_column("0", Integer)


def _unknown(_: Columns) -> ColumnElement[Any]:
    """Return SQL's NULL, for a figure that a source lacks."""
    return null()


@dataclass(frozen=True, slots=True)
class _Figure:
    """A column of figures: its type, and its value for an event and for an adjustment."""

    kind: TypeEngine[Any]
    of_event: _Expression
    of_adjustment: _Expression = _unknown


def _count_if(is_counted: Callable[[Columns], ColumnElement[bool]]) -> _Expression:
    """Return the expression that is 1 for a row if a condition holds, else 0."""
    return lambda row: case((is_counted(row), _ONE), else_=_ZERO)


def _column_of(name: str) -> _Expression:
    """Return the expression that reads one column of a row."""
    return lambda row: row[name]


def _wide(amount: ColumnElement[Any]) -> ColumnElement[Any]:
    """Return tokens as numeric: two of the largest counts together exceed 64 bits."""
    return cast(amount, Numeric)


def _bound(row: Columns, name: str) -> ColumnElement[Any]:
    """Return the SQL for a bound of the event's route when it was sent; NULL if it had none.

    An event never changes: a record of another shape must not make every report fail for ever.
    """
    place = row.decision["bounds"][name]
    return case((func.jsonb_typeof(place) == "number", place.astext))


def _saving(row: Columns) -> ColumnElement[Any]:
    """Return the SQL of a row's saving; NULL in the sources without it."""
    return row["cache_saving_usd"] if "cache_saving_usd" in row else null()


_COUNT, _AMOUNT = BigInteger(), Numeric()
_SECONDS: Double[float] = Double()
# The figures that a roll-up has too.
_FIGURES = {
    "attempts": _Figure(_COUNT, lambda _: _ONE, lambda _: _ZERO),
    "unknown_attempts": _Figure(_COUNT, _count_if(lambda row: row.is_unsettled)),
    "derived_attempts": _Figure(
        _COUNT, _count_if(lambda row: row.usage_source.in_(("derived", "estimated")))
    ),
    "failed_attempts": _Figure(_COUNT, _count_if(lambda row: row.outcome != "ok")),
    "unreported_attempts": _Figure(_COUNT, _count_if(lambda row: row.input_tokens.is_(None))),
    "input_tokens": _Figure(_AMOUNT, _column_of("input_tokens")),
    "cached_input_tokens": _Figure(_AMOUNT, _column_of("cached_input_tokens")),
    "cache_write_tokens": _Figure(_AMOUNT, _column_of("cache_write_tokens")),
    "output_tokens": _Figure(_AMOUNT, _column_of("output_tokens")),
    "reasoning_tokens": _Figure(_AMOUNT, _column_of("reasoning_tokens")),
    "uncached_input_tokens": _Figure(
        _AMOUNT,
        lambda row: (
            _wide(row.input_tokens)
            - func.coalesce(row.cached_input_tokens, _ZERO)
            - func.coalesce(row.cache_write_tokens, _ZERO)
        ),
    ),
    "plain_output_tokens": _Figure(
        _AMOUNT, lambda row: _wide(row.output_tokens) - func.coalesce(row.reasoning_tokens, _ZERO)
    ),
    "total_tokens": _Figure(_AMOUNT, lambda row: _wide(row.input_tokens) + row.output_tokens),
    "cost_usd": _Figure(_AMOUNT, _column_of("cost_usd")),
    "held_usd": _Figure(_AMOUNT, lambda row: case((row.is_unsettled, row.held_usd))),
}
_OF_ADJUSTMENTS = {
    "adjustments": _Figure(_COUNT, lambda _: _ZERO, lambda _: _ONE),
    "expected_attempts": _Figure(_COUNT, lambda _: _ZERO, _count_if(lambda row: row.is_expected)),
    "adjustments_usd": _Figure(_AMOUNT, _unknown, _column_of("amount_usd")),
}
# Sums that no roll-up has yet.
_OF_CACHES = {
    "cache_saving_usd": _Figure(_AMOUNT, _saving),
    "unknown_saving_attempts": _Figure(_COUNT, _count_if(lambda row: _saving(row).is_(None))),
    # The prompts whose cached part is known: a share of all input would count unknown as 0.
    "split_input_tokens": _Figure(
        _AMOUNT, lambda row: case((row.cached_input_tokens.is_not(None), row.input_tokens))
    ),
}
# Only events have these. Postgres skips unused columns, so they cost nothing.
_OF_EVENTS = {
    "request_id": _Figure(Uuid(), _column_of("request_id")),
    "ttft_s": _Figure(_SECONDS, _column_of("ttft_s")),
    "tpot_s": _Figure(_SECONDS, _column_of("tpot_s")),
    "duration_s": _Figure(_SECONDS, _column_of("duration_s")),
    "max_gap_s": _Figure(_SECONDS, _column_of("max_gap_s")),
    "queue_s": _Figure(_SECONDS, _column_of("queue_s")),
    "overhead_s": _Figure(_SECONDS, _column_of("overhead_s")),
    "degraded": _Figure(Text(), _column_of("degraded")),
    "is_error": _Figure(
        Boolean(), lambda row: row.outcome.not_in(("ok", "client_gone", "gateway_stopped"))
    ),
    "ttft_bound_s": _Figure(_SECONDS, lambda row: _bound(row, "ttft_p95_s")),
    "cost_bound_usd": _Figure(
        _AMOUNT,
        lambda row: _wide(_bound(row, "max_cost_nusd")) * literal_column("0.000000001", Numeric),
    ),
}
_SUMS = _FIGURES | _OF_ADJUSTMENTS | _OF_CACHES
_ALL = _SUMS | _OF_EVENTS
# Columns of every source that are not figures.
_PLAIN: Mapping[str, TypeEngine[Any]] = {
    "posted_period": Date(),
    "team": Text(),
    "is_self_hosted": Boolean(),
}
_TYPES = {**_PLAIN, **{name: figure.kind for name, figure in _ALL.items()}}


def fact(name: str) -> ColumnClause[Any]:
    """Return a column of `facts`, for an aggregate over it. Raises `KeyError` if there is none."""
    return column(name, _TYPES[name])


def facts(
    source: Source,
    conditions: Conditions,
    *,
    by: tuple[Dimension, ...] = (),
    has_adjustments: bool = True,
    tag_rows_add_up: bool = True,
) -> Subquery:
    """Return the SQL relation whose figures the reports sum, not grouped yet: a row per event or
    roll-up row, and per adjustment, with the dimensions in `by`.

    Its other columns are posted_period, team and is_self_hosted. Only real events have adjustments.
    Split by tag, the rows add up to the whole, unless `tag_rows_add_up` is False.
    """
    parts = [
        _facts_of_rows(
            source.rows,
            _figures_of(source),
            by,
            tag_rows_add_up=tag_rows_add_up,
            conditions=conditions,
        )
    ]
    if has_adjustments and source.dataset is Dataset.REAL:
        figures = _of_adjustments()
        parts.append(
            _facts_of_rows(
                _ADJUSTMENTS, figures, by, tag_rows_add_up=tag_rows_add_up, conditions=conditions
            )
        )
    return union_all(*parts).subquery("fact")


def _facts_of_rows(
    rows: FromClause,
    figures: Mapping[str, ColumnElement[Any]],
    by: tuple[Dimension, ...],
    *,
    tag_rows_add_up: bool,
    conditions: Conditions,
) -> Select[Any]:
    """Return the SELECT of the facts of one source's rows, not grouped: the values of the
    dimensions, and the figures.
    """
    groups: list[Label[Any]] = [
        dimension.of(rows.c).label(dimension.label)
        for dimension in by
        if dimension is not Dimension.TAG
    ]
    plain = [rows.c[name] for name in _PLAIN]
    found: FromClause = rows
    if Dimension.TAG in by:
        pair = tag_rows(rows.c, rows_add_up=tag_rows_add_up)
        groups.append(pair.c.label.label(Dimension.TAG.label))
        found = rows.join(pair, true())
        if tag_rows_add_up:
            figures = {
                name: figure * pair.c.times if name in _SUMS else figure
                for name, figure in figures.items()
            }
    listed = [figure.label(name) for name, figure in figures.items()]
    return select(*groups, *plain, *listed).select_from(found).where(*conditions(rows.c))


# Kept: they are the same for every question, and to compose them takes longer than to run many.
@cache
def _figures_of(source: Source) -> Mapping[str, ColumnElement[Any]]:
    """Return the SQL expression of every figure for a source; NULL for those it lacks."""
    row = source.rows.c
    if source.is_events:
        return {name: cast(figure.of_event(row), figure.kind) for name, figure in _ALL.items()}
    absent = {
        name: cast(figure.of_event(row), figure.kind) for name, figure in _OF_ADJUSTMENTS.items()
    }
    only_of_events = _OF_CACHES | _OF_EVENTS
    unknown = {name: cast(null(), figure.kind) for name, figure in only_of_events.items()}
    return {name: cast(row[name], figure.kind) for name, figure in _FIGURES.items()} | (
        absent | unknown
    )


@cache
def _of_adjustments() -> Mapping[str, ColumnElement[Any]]:
    """Return the SQL expression of every figure for an adjustment; NULL for those it lacks.

    Every part casts them: Postgres sees through a union only if its parts have equal types.
    """
    row = _ADJUSTMENTS.c
    return {name: cast(figure.of_adjustment(row), figure.kind) for name, figure in _ALL.items()}
