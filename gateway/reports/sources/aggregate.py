"""Builds reports of sums: one SQL statement over the facts, grouped by dimensions, for a report's
measures and its total.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from functools import partial
from typing import Any, cast

from sqlalchemy import (
    BigInteger,
    Boolean,
    ColumnElement,
    FromClause,
    Function,
    Label,
    Subquery,
    and_,
    case,
    desc,
    false,
    func,
    not_,
    null,
    or_,
    select,
)

from gateway.reports.dimensions import TIME, UNALLOCATED, Dimension, Split, TagKey
from gateway.reports.question import Question
from gateway.reports.report import Cell, Column, ColumnKind, Report
from gateway.reports.sources.connection import ReadSnapshot, Row
from gateway.reports.sources.currencies import require_rates, rounded
from gateway.reports.sources.facts import (
    FigureGroup,
    Source,
    events,
    fact,
    facts,
    shared,
    source_for,
)
from gateway.reports.sources.notes import SURENESS, notes_on, read_freshness

OF_EVENTS = (
    "No sums hold this combination: it was read from the events themselves, one by one. A filter "
    "by team, and fewer days, make it quicker."
)
MAX_ROWS = 50_000  # by key and day in a large company; more rows are an export, not a report
NOT_LISTED = "(not listed)"  # the last of so many rows, for all others: the parts stay the whole


@dataclass(frozen=True, slots=True, kw_only=True)
class Measure:
    """One column of figures and the aggregate over `facts` that fills it.

    `of_events` fills it if each fact is one event, because it is more exact. `known` counts the
    attempts whose figure is known, if it can be unknown: a difference of sums is 0 also if none is.
    `needs` are figures that not every source has. `adds_up` is False for a figure that cannot be
    subtracted, such as a percentile. `is_ratio`: it is one sum by another. `has_adjustments`: its
    amount has adjustments in it.
    """

    name: str
    unit: str
    kind: ColumnKind
    value: ColumnElement[Any]
    of_events: ColumnElement[Any] | None = None
    known: ColumnElement[Any] | None = None
    needs: FigureGroup | None = None
    adds_up: bool = True
    is_ratio: bool = False
    has_adjustments: bool = False

    @property
    def report_column(self) -> Column:
        """Return the report column of this measure, without its SQL expression."""
        return Column(name=self.name, unit=self.unit, kind=self.kind)


# An event's part at a second cost centre counts no attempt, but its cost may be unknown too.
_IS_OF_EVENTS = fact("adjustments") == 0


def total_or_zero(name: str, *counted: ColumnElement[bool]) -> ColumnElement[Any]:
    """Return the SQL sum of a figure, in all or under conditions; 0 without any."""
    return func.coalesce(func.sum(fact(name)).filter(*counted), 0)


def token_sum(name: str) -> Measure:
    """Return the measure that sums a column of reported tokens; NULL if no event reported any."""
    return Measure(
        name=name,
        unit="tokens",
        kind=ColumnKind.COUNT,
        value=func.sum(fact(name)),
        known=func.sum(_KNOWN[name]),
    )


def count_sum(name: str, unit: str = "attempts") -> Measure:
    """Return the measure that sums a column of counts."""
    return Measure(name=name, unit=unit, kind=ColumnKind.COUNT, value=total_or_zero(name))


# The attempts whose figure is known, in the sums by tag.
_KNOWN: Mapping[str, ColumnElement[Any]] = {
    "cost_usd": fact("known_attempts"),
    "cache_saving_usd": fact("attempts") - fact("unknown_saving_attempts"),
    "input_tokens": fact("attempts") - fact("unreported_attempts"),
    "uncached_input_tokens": fact("attempts") - fact("unreported_attempts"),
    "cached_input_tokens": fact("cached_input_known"),
    "cache_write_tokens": fact("cache_write_known"),
    "output_tokens": fact("output_known"),
    "plain_output_tokens": fact("output_known"),
    "reasoning_tokens": fact("reasoning_known"),
    "total_tokens": fact("total_known"),
}


def money(
    name: str,
    condition: ColumnElement[bool] | None = None,
    *,
    of: str = "cost_usd",
    needs: FigureGroup | None = None,
) -> Measure:
    """Return the measure of a known amount, in all or under a condition. NULL if events exist but
    none has a known amount: unknown is never 0.
    """
    counted = () if condition is None else (condition,)
    has_events = func.coalesce(any_of(_IS_OF_EVENTS).filter(*counted), false())
    known = func.sum(fact(of)).filter(*counted)
    value = case((has_events, known), else_=0)
    return Measure(
        name=name,
        unit="USD",
        kind=ColumnKind.MONEY,
        value=value,
        known=_known_or_none(_KNOWN[of], *counted),
        needs=needs,
    )


def _known_or_none(
    known: ColumnElement[Any], *conditions: ColumnElement[bool]
) -> ColumnElement[Any]:
    """Return the SQL count of known figures; 1 without attempts: then nothing is unknown."""
    attempts = func.coalesce(func.sum(fact("attempts")).filter(*conditions), 0)
    return case((attempts == 0, 1), else_=func.sum(known).filter(*conditions))


def any_of(condition: ColumnElement[bool]) -> Function[bool]:
    """Return the SQL of whether the condition holds in any row; NULL without rows."""
    return func.bool_or(condition, type_=Boolean)


def total_usd(*counted: ColumnElement[bool]) -> ColumnElement[Any]:
    """Return the SQL sum of cost and adjustments, in all or under conditions; NULL if there are
    events, and neither a known cost nor an adjustment.
    """
    cost = func.sum(fact("cost_usd")).filter(*counted)
    adjusted = func.coalesce(any_of(fact("adjustments") != 0).filter(*counted), false())
    has_events = any_of(_IS_OF_EVENTS).filter(*counted)
    is_unknown = and_(has_events, cost.is_(None), not_(adjusted))
    return case(
        (is_unknown, null()),
        else_=total_or_zero("cost_usd", *counted) + total_or_zero("adjustments_usd", *counted),
    )


ATTEMPTS = count_sum("attempts")
COST = money("cost_usd")
ADJUSTMENTS = Measure(
    name="adjustments_usd",
    unit="USD",
    kind=ColumnKind.MONEY,
    value=total_or_zero("adjustments_usd"),
    has_adjustments=True,
)
TOTAL = Measure(
    name="total_usd",
    unit="USD, cost and adjustments",
    kind=ColumnKind.MONEY,
    value=total_usd(),
    known=_known_or_none(fact("known_attempts") + fact("adjustments")),
    has_adjustments=True,
)
HELD = Measure(
    name="held_usd",
    unit="USD, at most, for unknown",
    kind=ColumnKind.MONEY,
    value=total_or_zero("held_usd"),
)
IDLE = Measure(
    name="idle_usd",
    unit="USD, idle GPU time, in no other column",
    kind=ColumnKind.MONEY,
    value=total_or_zero("idle_usd"),
)
# Together in every report of money, so that the events alone cannot be mistaken for the total.
SPENT = (COST, ADJUSTMENTS, TOTAL, HELD)


def aggregate(
    snapshot: ReadSnapshot,
    question: Question,
    measures: Sequence[Measure],
    *,
    name: str,
    title: str,
    by: tuple[Split, ...],
    sorted_by: Measure = COST,
) -> Report:
    """Return a report with one row per group and a total over the facts themselves, from one
    snapshot.

    The total has no groups: an event in two rows cannot inflate it. It comes from the smallest
    source that knows the filters, unless that would give other figures. Rows are in the order of
    their time, then by `sorted_by`, largest first.
    """
    source = source_of(question, measures, by=by)
    is_same_from_sums = all(measure.of_events is None for measure in measures)
    source_of_total = source_of(question, measures) if is_same_from_sums else source
    has_idle = IDLE in measures
    fresh = read_freshness(snapshot, question, has_idle=has_idle)
    facts_of = partial(
        facts,
        conditions=question.conditions,
        has_adjustments=any(measure.has_adjustments for measure in measures),
        as_posted=question.is_as_posted,
        currency=question.currency,
        # Without a bill there is no idle cost, and to find that out takes longer than the rest.
        idle_of=question if has_idle and not fresh.is_idle_unknown else None,
    )
    chosen = facts_of(source_of_total)
    if question.currency is not None:
        require_rates(snapshot, chosen, question.currency, closed_at=question.closed_at)
    total = total_row(
        snapshot,
        _as_difference(measures, question, source_of_total),
        chosen,
        source=source_of_total,
    )
    rows: Sequence[Sequence[Any]] = []
    if by:
        split = facts_of(source, by=by)
        groups = [split.c[dimension.label] for dimension in by]
        times = [split.c[dimension.label] for dimension in by if dimension in TIME]
        rows = snapshot.tuples(
            select(*groups, *figures_of(_as_difference(measures, question, source, by=by), source))
            .group_by(*groups)
            .having(*_is_any(by, source))
            .order_by(*times, desc(sorted_by.name).nulls_last(), *groups)
            .limit(MAX_ROWS + 1)
        )
    report = Report(
        name=name,
        title=title,
        dataset=question.dataset,
        columns=(
            *(dimension.report_column for dimension in by),
            *(measure.report_column for measure in measures),
        ),
        rows=_listed(
            list(_rows_of(rows[:MAX_ROWS], by, measures)),
            rows,
            by=by,
            measures=measures,
            total=total_of(total, measures),
        ),
        total=total_of(total, measures),
        complete_until=fresh.complete_until,
        notes=(
            *notes_on(question, total, fresh, by=by),
            *((OF_EVENTS,) if source.is_events or source_of_total.is_events else ()),
            *_left_out(rows),
        ),
    )
    if has_idle and fresh.is_idle_unknown and total["sure_self_hosted"]:
        report = report.with_unknown(IDLE.name)
    return report if question.currency is None else rounded(report)


def _as_difference(
    measures: Sequence[Measure], question: Question, source: Source, *, by: Sequence[Split] = ()
) -> Sequence[Measure]:
    """Return measures that stay unknown if the events without a tag are a difference of sums."""
    names = (*by, *(name for name, _ in question.where))
    if source.is_events or not any(isinstance(name, TagKey) for name in names):
        return measures
    return [
        measure
        if measure.known is None
        else replace(measure, value=case((measure.known != 0, measure.value)))
        for measure in measures
    ]


def _is_any(by: Sequence[Split], source: Source) -> list[ColumnElement[bool]]:
    """Return the condition that a group has an event, an adjustment or money, if it may have
    nothing: the events without a tag can be a difference of sums.

    A second cost centre has a share of the money of events that are counted at the first one.
    """
    if source.is_events or not any(isinstance(split, TagKey) for split in by):
        return []
    figures = ("attempts", "adjustments", "cost_usd", "held_usd", "idle_usd")
    return [or_(*(total_or_zero(name) != 0 for name in figures))]


def source_of(
    question: Question, measures: Sequence[Measure], *, by: tuple[Split, ...] = ()
) -> Source:
    """Return the source of a report's figures: a roll-up if it has the needed columns, else the
    events.
    """
    filters = [dimension for dimension, _ in question.where]
    asks_without_tag = any(isinstance(split, TagKey) for split in by) or any(
        isinstance(split, TagKey) and value in (None, UNALLOCATED)
        for split, value in question.where
    )
    if asks_without_tag and not all(measure.adds_up for measure in measures):
        source = events(
            question.dataset,
            has_savings=any(measure.needs is FigureGroup.SAVINGS for measure in measures),
        )
    else:
        source = source_for(
            question.dataset,
            by=by,
            filters=filters,
            needs={measure.needs for measure in measures if measure.needs is not None},
            moments=question.moments,
            has_moments=bool(question.moments) or question.currency is not None,
            from_events=question.is_as_closed,
        )
    return _shared_if_asked(source, question, by)


def _shared_if_asked(source: Source, question: Question, by: Sequence[Split]) -> Source:
    """Return a source, with its money shared if a question names cost centres."""
    names = {*by, *(dimension for dimension, _ in question.where)}
    return shared(source) if Dimension.COST_CENTRE in names else source


def facts_of_events(source: Source, question: Question, *, by: tuple[Split, ...] = ()) -> Subquery:
    """Return the facts of a source of events, for figures that a report sums beside `aggregate`:
    without adjustments, and with its cost centres and its currency.
    """
    return facts(
        _shared_if_asked(source, question, by),
        question.conditions,
        by=by,
        has_adjustments=False,
        as_posted=question.is_as_posted,
        currency=question.currency,
    )


def total_row(
    snapshot: ReadSnapshot, measures: Sequence[Measure], chosen: FromClause, *, source: Source
) -> Row:
    """Return the row of the measures over all facts, with the counts that the notes on certainty
    need.
    """
    return snapshot.row(select(*figures_of(measures, source), *SURENESS).select_from(chosen))


def figures_of(measures: Sequence[Measure], source: Source) -> list[Label[Any]]:
    """Return the columns of a SELECT that fills the measures from the facts of a source."""
    values = (
        measure.of_events if source.is_events and measure.of_events is not None else measure.value
        for measure in measures
    )
    # A sum is NUMERIC: Postgres makes whole numbers of counts sooner than Python.
    return [
        (value.cast(BigInteger) if measure.kind is ColumnKind.COUNT else value).label(measure.name)
        for value, measure in zip(values, measures, strict=True)
    ]


def total_of(row: Row, measures: Sequence[Measure]) -> dict[str, Cell]:
    """Return the figures of a report's total row, by name."""
    return dict(zip((measure.name for measure in measures), cells(row, measures), strict=True))


def cells(row: Row, measures: Sequence[Measure]) -> tuple[Cell, ...]:
    """Return the cells of a row's measures."""
    return tuple(row[measure.name] for measure in measures)


def _rows_of(
    found: Iterable[Sequence[Any]], by: Sequence[Split], measures: Sequence[Measure]
) -> Iterator[tuple[Cell, ...]]:
    """Yield the rows of a report: the values of the dimensions, then the cells of the measures.

    The row `unallocated` of a split by tag may be a difference, so it has no shares or rates.
    """
    if Dimension.TAG not in by:
        yield from map(tuple, found)
        return
    tag = by.index(Dimension.TAG)
    ratios = {place for place, one in enumerate(measures, len(by)) if one.is_ratio}
    for row in found:
        if row[tag] == UNALLOCATED:
            yield tuple(None if place in ratios else cell for place, cell in enumerate(row))
        else:
            yield tuple(row)


def _listed(
    cells: list[tuple[Cell, ...]],
    rows: Sequence[object],
    *,
    by: Sequence[Split],
    measures: Sequence[Measure],
    total: Mapping[str, Cell],
) -> tuple[tuple[Cell, ...], ...]:
    """Return the listed rows and, if more were found, one with the rest of each sum. A team may
    choose any number of tags, and must not push money out of a report by them.
    """
    if len(rows) <= MAX_ROWS:
        return tuple(cells)
    names = (None if split is Dimension.DAY else NOT_LISTED for split in by)
    figures = list(zip(*cells, strict=True))[len(by) :]
    rest = (
        _rest_of(measure, total, listed) for measure, listed in zip(measures, figures, strict=True)
    )
    return (*cells, (*names, *rest))


def _rest_of(measure: Measure, total: Mapping[str, Cell], listed: Sequence[Cell]) -> Cell:
    """Return a total less its listed parts; None for a figure that is no sum, or is unknown."""
    whole = total[measure.name]
    is_sum = measure.adds_up and not measure.is_ratio and isinstance(whole, int | Decimal)
    if not is_sum or measure.kind not in (ColumnKind.COUNT, ColumnKind.MONEY):
        return None
    parts = sum(cast("Iterable[int]", filter(None, listed)))  # None is an unknown part
    return whole - parts  # type: ignore[operator]  # is_sum says so


def _left_out(rows: Sequence[object]) -> tuple[str, ...]:
    """Return the note that rows beyond the maximum are left out; empty if all are listed."""
    if len(rows) <= MAX_ROWS:
        return ()
    return (
        f"Only the first {MAX_ROWS:,} rows are listed; the last one, {NOT_LISTED}, is the rest. "
        "Filter, or group by less.",
    )
