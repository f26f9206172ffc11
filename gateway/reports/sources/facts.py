"""Composes the SQL relation that reports sum: events or their roll-up, and the adjustments booked
since; runs no query.

All rows have the same columns, and every figure of every report is a sum over them. An event counts
as one attempt, a row of a roll-up as many, an adjustment as none. So a total does not depend on its
source.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from functools import cache, lru_cache
from typing import Any

from sqlalchemy import (
    ARRAY,
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
    and_,
    case,
    cast,
    column,
    func,
    literal_column,
    not_,
    null,
    select,
    true,
    union_all,
)
from sqlalchemy.types import TypeEngine

from gateway.reports.dimensions import (
    UNALLOCATED,
    UTC_ZONE,
    Columns,
    Dimension,
    Split,
    TagKey,
    tag_rows,
)
from gateway.reports.question import Question
from gateway.reports.report import Dataset
from gateway.reports.sources.allocated_rows import (
    allocated,
    idle_rows,
    unrated_day,
    with_rates,
    with_shares,
)
from gateway.reports.sources.cache_savings import with_cache_savings
from gateway.reports.sources.lines import with_lines
from gateway.storage.postgres.schema import finance_views
from gateway.storage.postgres.schema.column_types import TIMESTAMPTZ

# Real and demo are never mixed: each has a view of its own.
EVENTS: Mapping[Dataset, Table] = {
    Dataset.REAL: finance_views.usage_events,
    Dataset.DEMO: finance_views.demo_usage_events,
}
# The conditions on the rows of a relation, as `Question.conditions` makes them.
Conditions = Callable[[Columns], Iterable[ColumnElement[bool]]]


class FigureGroup(StrEnum):
    """Figures that only some sources have, or that they have only for some questions."""

    END_USERS = "end_users"
    TASKS = "tasks"
    USAGE_SOURCES = "usage_sources"
    SAVINGS = "savings"
    TIMES = "times"


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A view that events can be summed from.

    `rows` are its rows with their `occurred_at`; `splits` are its dimensions, and `has` are those
    of its figures that not every source has. `step` is the time that a row sums, from
    `occurred_at` on; it is 0 for an event. `is_by_month`: a row sums a posted month, and has no
    moment. `is_shared`: its rows go by shares of cost centres.
    """

    dataset: Dataset
    table: Table
    rows: FromClause
    splits: frozenset[Dimension]
    has: frozenset[FigureGroup] = frozenset()
    step: timedelta = timedelta(0)
    is_by_month: bool = False
    is_shared: bool = False

    @property
    def view(self) -> str:
        """Return the name of the source's view."""
        return self.table.fullname

    @property
    def is_events(self) -> bool:
        """Return True if each row of the source is one event."""
        return self.table is EVENTS[self.dataset]


TASK_TAGS = ("task", "session")  # the tags by which callers name a piece of work
_EPOCH, _HOUR, _DAY = datetime(1970, 1, 1, tzinfo=UTC), timedelta(hours=1), timedelta(days=1)
_EVERYWHERE = frozenset(
    {
        Dimension.TEAM,
        Dimension.PROJECT,
        Dimension.COST_CENTRE,
        Dimension.ROUTE,
        Dimension.MODEL,
        Dimension.DEPLOYMENT,
        Dimension.PROVIDER,
        Dimension.REGION,
        Dimension.DESTINATION,
        Dimension.DAY,
        Dimension.WEEK,
        Dimension.MONTH,
        Dimension.QUARTER,
    }
)
_ALL_BUT_OWNERS = _EVERYWHERE | {Dimension.OUTCOME, Dimension.USAGE_SOURCE}
# Shares of cost centres go by day, as rates of currencies do.
_NOT_BY_MONTH = frozenset({Dimension.DAY, Dimension.WEEK, Dimension.COST_CENTRE})


_OF_DETAIL = frozenset({FigureGroup.SAVINGS, FigureGroup.TIMES, FigureGroup.USAGE_SOURCES})


def _events(dataset: Dataset) -> Source:
    """Return the source of a dataset's single events, which can be split by every dimension."""
    table = EVENTS[dataset]
    return Source(
        dataset=dataset,
        table=table,
        rows=table.alias("event"),
        splits=frozenset(Dimension),
        has=frozenset(FigureGroup) - {FigureGroup.SAVINGS},  # these: `_EVENTS_WITH_SAVINGS`
    )


def _by_day(dataset: Dataset, table: Table) -> Source:
    """Return the source of a dataset's sums by day, which cannot be split by key, end user or
    tag.
    """
    return Source(
        dataset=dataset,
        table=table,
        rows=_rows_of_days(table),
        splits=_ALL_BUT_OWNERS,
        has=_OF_DETAIL,
        step=_DAY,
    )


def _by_hour(dataset: Dataset, table: Table) -> Source:
    """Return the source of a dataset's sums by hour, which have keys too."""
    return Source(
        dataset=dataset,
        table=table,
        rows=select(*table.c, table.c.hour.label("occurred_at")).subquery("event"),
        splits=_ALL_BUT_OWNERS | {Dimension.HOUR, Dimension.KEY},
        has=_OF_DETAIL,
        step=_HOUR,
    )


def _by_day_and_key(table: Table) -> Source:
    """Return the source of sums by day and key, with every other dimension of a day's sums."""
    return Source(
        dataset=Dataset.REAL,
        table=table,
        rows=_rows_of_days(table),
        splits=_ALL_BUT_OWNERS | {Dimension.KEY},
        has=_OF_DETAIL,
        step=_DAY,
    )


def _by_day_and(owner: Dimension, table: Table, has: FigureGroup) -> Source:
    """Return the source of sums by day and end user or tag, which have no waiting times: there
    may be nearly as many of them as events.
    """
    return Source(
        dataset=Dataset.REAL,
        table=table,
        rows=_rows_of_days(table),
        splits=_EVERYWHERE | {owner},
        has=frozenset({FigureGroup.SAVINGS, has}),
        step=_DAY,
    )


def _by_month(daily: Source, table: Table) -> Source:
    """Return the source of the sums of a posted month, made of the sums by day."""
    return replace(
        daily,
        table=table,
        rows=select(*table.c, *_tasks(table)).subquery("event"),
        splits=daily.splits - _NOT_BY_MONTH,
        is_by_month=True,
    )


def _rows_of_days(table: Table) -> Subquery:
    """Return the rows of sums by day; the beginning of a day is named `occurred_at` here too."""
    midnight = func.timezone(UTC_ZONE, cast(table.c.day, TIMESTAMP), type_=TIMESTAMPTZ)
    return select(*table.c, *_tasks(table), midnight.label("occurred_at")).subquery("event")


def _tasks(table: Table) -> list[Label[Any]]:
    """Return the columns of the tags that stand for a task, named as `facts` does; only sums by tag
    have any.
    """
    return [
        case((and_(table.c.tag_key == key, not_(table.c.is_repeat)), table.c.tag)).label(key)
        for key in TASK_TAGS
        if "tag_key" in table.c
    ]


_EVENTS = {dataset: _events(dataset) for dataset in Dataset}
_EVENTS_WITH_SAVINGS = {
    dataset: replace(source, rows=with_cache_savings(source.rows), has=frozenset(FigureGroup))
    for dataset, source in _EVENTS.items()
}
_PRICED_LINES = {
    dataset: replace(source, rows=with_lines(source.rows)) for dataset, source in _EVENTS.items()
}
_DAYS = _by_day(Dataset.REAL, finance_views.spend_daily_detail)
_DAYS_OF_KEYS = _by_day_and_key(finance_views.spend_daily_by_key)
_DAYS_OF_USERS = _by_day_and(
    Dimension.END_USER, finance_views.spend_daily_by_end_user, FigureGroup.END_USERS
)
_DAYS_OF_TAGS = _by_day_and(Dimension.TAG, finance_views.spend_daily_by_tag, FigureGroup.TASKS)
# Each equals its events: it reads months without a sum from their days, days without one from
# their hours, and hours without one from their events. The first source with the needed dimensions
# and figures is read.
_SUMMED = {
    Dataset.REAL: (
        _by_month(_DAYS, finance_views.spend_monthly_detail),
        _by_month(_DAYS_OF_KEYS, finance_views.spend_monthly_by_key),
        _by_month(_DAYS_OF_USERS, finance_views.spend_monthly_by_end_user),
        _by_month(_DAYS_OF_TAGS, finance_views.spend_monthly_by_tag),
        _DAYS,
        _DAYS_OF_KEYS,
        _by_hour(Dataset.REAL, finance_views.spend_hourly_detail),
        _DAYS_OF_USERS,
        _DAYS_OF_TAGS,
    ),
    Dataset.DEMO: (
        _by_day(Dataset.DEMO, finance_views.demo_spend_daily_detail),
        _by_hour(Dataset.DEMO, finance_views.demo_spend_hourly_detail),
    ),
}
_ADJUSTMENTS = finance_views.adjustments.alias("event")


def events(dataset: Dataset, *, has_savings: bool = False) -> Source:
    """Return the source of single events: they have every dimension, and are many."""
    return (_EVENTS_WITH_SAVINGS if has_savings else _EVENTS)[dataset]


def priced_lines(dataset: Dataset) -> Source:
    """Return the source of events with one row for each priced line, and one for an event without
    any. Only its figures of lines can be summed: the others would count an event several times.
    """
    return _PRICED_LINES[dataset]


def source_for(
    dataset: Dataset,
    *,
    by: Collection[Split] = (),
    filters: Collection[Split] = (),
    needs: Collection[FigureGroup] = (),
    moments: Collection[datetime] = (),
    has_moments: bool = True,
    from_events: bool = False,
) -> Source:
    """Return the smallest source that can be split and filtered by these dimensions, and has the
    needed figures.

    `moments` begin or end the asked time: no row may lie on both sides of one. Sums by tag do not
    know the other tags of an event, so questions on two tags need events, and so do the tasks of a
    tag. `has_moments` is False if a fact may belong to a posted month alone, without its day.
    `from_events`: no roll-up has the wanted facts, as those of a month when it was closed.
    """
    needed = {*needs}
    wanted = {Dimension.TAG if isinstance(one, TagKey) else one for one in (*by, *filters)}
    tags = {one for one in (*by, *filters) if isinstance(one, TagKey) or one is Dimension.TAG}
    asks_two_tags = (
        len(tags) > 1
        or (Dimension.TAG in by and Dimension.TAG in filters)
        or (FigureGroup.TASKS in needed and bool(tags))
    )
    return next(
        (
            one
            for one in _SUMMED[dataset]
            if wanted <= one.splits
            and needed <= one.has
            and not asks_two_tags
            and not from_events
            and not (has_moments and one.is_by_month)
            and not any((moment - _EPOCH) % one.step for moment in moments)
        ),
        events(dataset, has_savings=FigureGroup.SAVINGS in needed),
    )


@cache
def shared(source: Source) -> Source:
    """Return a source whose money is shared by the cost centres of each team, by day."""
    return replace(source, rows=with_shares(source.rows), is_shared=True)


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


def _column_or_unknown(name: str) -> _Expression:
    """Return the expression that reads a column that only some relations have."""
    return lambda row: row[name] if name in row else null()


def _tag_of(key: str) -> _Expression:
    """Return the expression of the value of a tag; NULL without it."""
    return lambda row: row.tags[key].astext


def _wide(amount: ColumnElement[Any]) -> ColumnElement[Any]:
    """Return tokens as numeric: two of the largest counts together exceed 64 bits."""
    return cast(amount, Numeric)


def _bound(row: Columns, name: str) -> ColumnElement[Any]:
    """Return the SQL for a bound of the event's route when it was sent; NULL if it had none.

    An event never changes: a record of another shape must not make every report fail for ever.
    """
    place = row.decision["bounds"][name]
    return case((func.jsonb_typeof(place) == "number", place.astext))


def _ttft_bound_s(row: Columns) -> ColumnElement[Any]:
    """Return the SQL of the bound on the time to the first token, in seconds."""
    return cast(_bound(row, "ttft_p95_s"), _SECONDS)


def _cost_bound_usd(row: Columns) -> ColumnElement[Any]:
    """Return the SQL of the bound on an attempt's cost."""
    return _wide(_bound(row, "max_cost_nusd")) * literal_column("0.000000001", Numeric)


def _saving(row: Columns) -> ColumnElement[Any]:
    """Return the SQL of a row's saving; NULL in the sources without it."""
    return row["cache_saving_usd"] if "cache_saving_usd" in row else null()


_COUNT, _AMOUNT = BigInteger(), Numeric()
_SECONDS: Double[float] = Double()
# The figures that a roll-up has too.
_FIGURES = {
    "attempts": _Figure(_COUNT, lambda _: _ONE, lambda _: _ZERO),
    "known_attempts": _Figure(
        _COUNT, _count_if(lambda row: row.cost_usd.is_not(None)), lambda _: _ZERO
    ),
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
# Idle cost belongs to no event.
_OF_IDLE = {"idle_usd": _Figure(_AMOUNT, _unknown)}
_OF_CACHES = {
    "cache_saving_usd": _Figure(_AMOUNT, _saving),
    "unknown_saving_attempts": _Figure(_COUNT, _count_if(lambda row: _saving(row).is_(None))),
    # The prompts whose cached part is known: a share of all input would count unknown as 0.
    "split_input_tokens": _Figure(
        _AMOUNT, lambda row: case((row.cached_input_tokens.is_not(None), row.input_tokens))
    ),
}
# Only the sums by tag have these: see `Measure.known`. No event needs them, because none is a
# difference.
_OF_DIFFERENCES = {
    f"{name}_known": _Figure(_COUNT, _unknown)
    for name in ("cached_input", "cache_write", "output", "reasoning", "total")
}
# The tokens of a row's money: with cost centres, shared as it is.
_OF_SHARES = {"borne_tokens": _Figure(_AMOUNT, _unknown)}
# Of events with a row for each priced line.
_OF_LINES = {
    "line_tokens": _Figure(_AMOUNT, _column_or_unknown("line_tokens")),
    "line_usd": _Figure(_AMOUNT, _column_or_unknown("line_usd")),
}
# Of events with their costs at other deployments.
_OF_OTHER_DEPLOYMENTS = {
    "dearest_usd": _Figure(_AMOUNT, _column_or_unknown("dearest_usd")),
    "default_usd": _Figure(_AMOUNT, _column_or_unknown("default_usd")),
}
# Only events and some roll-ups have these. Postgres skips unused columns, so they cost nothing.
_OF_TIMES = {
    "requests": _Figure(_COUNT, _count_if(lambda row: row.attempt == 1)),
    "error_attempts": _Figure(
        _COUNT, _count_if(lambda row: row.outcome.not_in(("ok", "client_gone", "gateway_stopped")))
    ),
    "degraded_attempts": _Figure(_COUNT, _count_if(lambda row: row.degraded.is_not(None))),
    "retry_attempts": _Figure(_COUNT, _count_if(lambda row: row.attempt > 1)),
    "retry_usd": _Figure(_AMOUNT, lambda row: case((row.attempt > 1, row.cost_usd))),
    "failed_usd": _Figure(_AMOUNT, lambda row: case((row.outcome != "ok", row.cost_usd))),
    "ttft_measured": _Figure(_COUNT, _count_if(lambda row: row.ttft_s.is_not(None))),
    "ttft_bound_attempts": _Figure(
        _COUNT,
        _count_if(lambda row: and_(_ttft_bound_s(row).is_not(None), row.ttft_s.is_not(None))),
    ),
    "ttft_missed": _Figure(_COUNT, _count_if(lambda row: row.ttft_s > _ttft_bound_s(row))),
    "cost_bound_attempts": _Figure(
        _COUNT,
        _count_if(lambda row: and_(_cost_bound_usd(row).is_not(None), row.cost_usd.is_not(None))),
    ),
    "cost_missed": _Figure(_COUNT, _count_if(lambda row: row.cost_usd > _cost_bound_usd(row))),
}
# The same for figures that are not sums.
_OTHERS_OF_TIMES = {"ttft_bound_s": _Figure(_SECONDS, lambda row: _ttft_bound_s(row))}
TIMES: Mapping[str, str] = {
    "ttft": "ttft_s",
    "tpot": "tpot_s",
    "gap": "max_gap_s",
    "queue": "queue_s",
    "overhead": "overhead_s",
    "duration": "duration_s",
}
_BUCKETS = {f"{name}_buckets": _Figure(ARRAY(Integer), _unknown) for name in TIMES}
# Names by which sums choose their facts.
_CONDITIONS = {
    "token_kind": _Figure(Text(), _column_or_unknown("token_kind")),
    "usage_source": _Figure(Text(), _column_of("usage_source"), _column_of("usage_source")),
}
# Names that are counted, each once in a row.
_NAMES = {
    "end_user": _Figure(Text(), _column_of("end_user"), _column_of("end_user")),
    **{key: _Figure(Text(), _tag_of(key), _tag_of(key)) for key in TASK_TAGS},
}
_OF_EVENTS = {
    "request_id": _Figure(Uuid(), _column_of("request_id")),
    **{time: _Figure(_SECONDS, _column_of(time)) for time in TIMES.values()},
}
_SUMS = (
    _FIGURES
    | _OF_ADJUSTMENTS
    | _OF_IDLE
    | _OF_CACHES
    | _OF_DIFFERENCES
    | _OF_LINES
    | _OF_SHARES
    | _OF_OTHER_DEPLOYMENTS
    | _OF_TIMES
)
_ONCE_IN_A_ROW = _OTHERS_OF_TIMES | _BUCKETS | _NAMES | _OF_EVENTS
_ALL = _SUMS | _CONDITIONS | _ONCE_IN_A_ROW
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
    by: tuple[Split, ...] = (),
    has_adjustments: bool = True,
    as_posted: bool = True,
    currency: str | None = None,
    idle_of: Question | None = None,
) -> Subquery:
    """Return the SQL relation whose figures the reports sum, not grouped yet: a row per event or
    roll-up row, and per adjustment, with the dimensions in `by`.

    Its other columns are posted_period, team and is_self_hosted. Only real events have adjustments.
    Split by tag, the rows add up to the whole; what is no sum, such as an end user or a waiting
    time, is NULL in the rows that subtract. Months are those that a fact is posted to, or of its
    moment unless `as_posted`. Money is in a `currency`; then `unrated_day` is the day of a fact
    without a rate. `idle_of` adds the idle cost of a question.
    """
    is_real, is_shared = source.dataset is Dataset.REAL, source.is_shared
    parts = [_of_source(source, currency)]
    if has_adjustments and is_real:
        parts.append(_of_adjustments(is_shared, currency))
    if idle_of is not None and is_real:
        parts.append(_of_idle(idle_of, is_shared, currency))
    return union_all(
        *(
            _facts_of_rows(
                rows,
                figures,
                by,
                as_posted=as_posted,
                conditions=conditions,
            )
            for rows, figures in parts
        )
    ).subquery("fact")


def _facts_of_rows(
    rows: FromClause,
    figures: Mapping[str, ColumnElement[Any]],
    by: tuple[Split, ...],
    *,
    as_posted: bool,
    conditions: Conditions,
) -> Select[Any]:
    """Return the SELECT of the facts of one source's rows, not grouped: the values of the
    dimensions, and the figures.
    """
    groups: list[Label[Any]] = [
        _value(dimension, rows.c, as_posted=as_posted).label(dimension.label)
        for dimension in by
        if dimension is not Dimension.TAG
    ]
    plain: dict[str, ColumnElement[Any]] = {name: rows.c[name] for name in _PLAIN}
    if "per_usd" in rows.c:
        plain["unrated_day"] = unrated_day(rows.c)
    found: FromClause = rows
    if Dimension.TAG in by:
        if "is_repeat" in rows.c:  # sums by tag: they have these rows already
            groups.append(func.coalesce(rows.c.tag, UNALLOCATED).label(Dimension.TAG.label))
            is_added = not_(rows.c.is_repeat)
        else:
            pair = tag_rows(rows.c)
            found = rows.join(pair, true())
            groups.append(pair.c.label.label(Dimension.TAG.label))
            is_added = pair.c.times > 0
            figures = {
                name: figure * pair.c.times if name in _SUMS else figure
                for name, figure in figures.items()
            }
        plain["team"] = case((is_added, rows.c.team))
        figures = {
            name: case((is_added, figure)) if name in _ONCE_IN_A_ROW else figure
            for name, figure in figures.items()
        }
    listed = [one.label(name) for name, one in {**plain, **figures}.items()]
    return select(*groups, *listed).select_from(found).where(*conditions(rows.c))


def _value(dimension: Split, row: Columns, *, as_posted: bool) -> ColumnElement[Any]:
    """Return the SQL of a row's value of a dimension; `unallocated` if it has none."""
    value = dimension.of(row, as_posted=as_posted)
    return value if dimension is Dimension.DAY else func.coalesce(value, UNALLOCATED)


_Part = tuple[FromClause, Mapping[str, ColumnElement[Any]]]


# Kept: they are the same for every question, and to compose them takes longer than to run many.
@lru_cache(maxsize=256)
def _of_source(source: Source, currency: str | None) -> _Part:
    """Return a source's rows with the SQL expression of every figure; NULL for those it lacks."""
    rows = source.rows if currency is None else with_rates(source.rows, currency)
    row, has_all = rows.c, source.is_events
    found = {
        name: row[name] if not has_all and name in row else figure.of_event(row)
        for name, figure in _ALL.items()
        if has_all or name in row or name in _OF_ADJUSTMENTS
    }
    found |= {name: found.get("total_tokens", null()) for name in _OF_SHARES}
    # In the order of all parts of the union, whose columns meet by their place.
    return rows, _typed(row, {name: found.get(name, null()) for name in _ALL})


@lru_cache(maxsize=256)
def _of_adjustments(is_shared: bool, currency: str | None) -> _Part:
    """Return the adjustments with the SQL expression of every figure; NULL for those they lack."""
    rows: FromClause = with_shares(_ADJUSTMENTS) if is_shared else _ADJUSTMENTS
    rows = rows if currency is None else with_rates(rows, currency)
    return rows, _typed(rows.c, {name: one.of_adjustment(rows.c) for name, one in _ALL.items()})


def _of_idle(question: Question, is_shared: bool, currency: str | None) -> _Part:
    """Return the idle cost of a question's time with the SQL expression of every figure."""
    rows: FromClause = idle_rows(question, _ADJUSTMENTS.c)
    rows = with_shares(rows) if is_shared else rows
    rows = rows if currency is None else with_rates(rows, currency)
    figures = {name: rows.c[name] if name in _OF_IDLE else null() for name in _ALL}
    return rows, _typed(rows.c, figures)


def _typed(
    row: Columns, figures: Mapping[str, ColumnElement[Any]]
) -> Mapping[str, ColumnElement[Any]]:
    """Return the figures of a part of the union with their factors and types.

    Every part casts them: Postgres sees through a union only if its parts have equal types.
    """
    names = {name: figures[name] for name in _CONDITIONS | _NAMES}  # a name has no share
    found = {**allocated(row, figures), **names}
    return {name: cast(figure, _ALL[name].kind) for name, figure in found.items()}
