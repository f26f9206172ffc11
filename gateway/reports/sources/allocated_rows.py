"""Composes the relations in which rows are shared by the cost centres of their team, converted to
a currency, or the idle cost of GPUs; runs no query.

A row has a factor for its money in each column `share` and `per_usd`. A shared row is repeated for
each cost centre; all that is not money counts once, in the row of the event's own cost centre.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date, timedelta
from typing import Any

from sqlalchemy import (
    Boolean,
    ColumnElement,
    Date,
    FromClause,
    Label,
    MetaData,
    Numeric,
    Subquery,
    Table,
    Text,
    and_,
    case,
    cast,
    column,
    func,
    literal,
    literal_column,
    null,
    or_,
    select,
    true,
)
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.functions import FunctionElement

from gateway.reports.dimensions import UTC_ZONE, Columns, utc_day
from gateway.reports.question import Question
from gateway.storage.postgres.schema import finance_views
from gateway.storage.postgres.schema.column_types import TIMESTAMPTZ

# With these decimals the sum of ten million rows is exact to far below a nano-dollar.
_ONE = literal_column("1.0000000000000000000000000000000000000000", Numeric)
_MONEY, _OF_MONEY = "_usd", "borne_"
_FOUR_DAYS = timedelta(days=4)  # from the 28th always into the next month
_IDLE_COSTS = Table("idle_costs", MetaData(schema=finance_views.gpu_cost.schema))


class IdleCosts(FunctionElement[Any]):
    """The function that returns the idle cost between two moments.

    It has the schema of the snapshot's views: SQLAlchemy translates that of a table's name alone.
    """

    name = "idle_costs"
    inherit_cache = True


@compiles(IdleCosts)
def _idle_costs_sql(element: IdleCosts, compiler: SQLCompiler, **options: Any) -> str:
    """Return the SQL of the call."""
    name = compiler.preparer.format_table(_IDLE_COSTS)
    return f"{name}{compiler.process(element.clause_expr, **options)}"


def with_shares(rows: FromClause) -> Subquery:
    """Return rows with their team's shares: a shared row once for each cost centre of its day.

    It is shared only if the policy of its day has the row's own cost centre as the largest: a row
    of before a move keeps its cost centre.
    """
    share = finance_views.cost_centre_shares.alias("shared")
    day = utc_day(rows.c.occurred_at)
    is_of_row = and_(
        share.c.team == rows.c.team,
        share.c.event_cost_centre == rows.c.cost_centre,
        share.c.share < 1,
        share.c.first_day <= day,
        or_(share.c.next_day.is_(None), day < share.c.next_day),
    )
    others = [one for one in rows.c if one.name != "cost_centre"]
    return (
        select(
            *others,
            func.coalesce(share.c.cost_centre, rows.c.cost_centre).label("cost_centre"),
            func.coalesce(share.c.share, 1).label("share"),
            func.coalesce(share.c.cost_centre == rows.c.cost_centre, true()).label("is_own"),
        )
        .select_from(rows.outerjoin(share, is_of_row))
        .subquery("event")
    )


def with_rates(rows: FromClause, currency: str) -> Subquery:
    """Return rows with the units of a currency that a dollar was worth on their day; NULL without a
    rate.
    """
    rate = finance_views.currency_rates.alias("rated")
    day = utc_day(rows.c.occurred_at)
    is_of_row = and_(
        rate.c.currency == literal(currency, Text),
        rate.c.first_day <= day,
        or_(rate.c.next_day.is_(None), day < rate.c.next_day),
    )
    return (
        select(*rows.c, (_ONE / rate.c.usd_per_unit).label("per_usd"))
        .select_from(rows.outerjoin(rate, is_of_row))
        .subquery("event")
    )


def allocated(
    rows: Columns, figures: Mapping[str, ColumnElement[Any]]
) -> Mapping[str, ColumnElement[Any]]:
    """Return the figures of rows with their factors applied; unchanged for rows without any."""
    factors = [rows[name] for name in ("share", "per_usd") if name in rows]
    if not factors:
        return figures
    return {name: _allocated(rows, name, figure, factors) for name, figure in figures.items()}


def _allocated(
    rows: Columns, name: str, figure: ColumnElement[Any], factors: Sequence[ColumnElement[Any]]
) -> ColumnElement[Any]:
    """Return one figure: money by its factors, a part of money by its share, and any other in the
    row of the own cost centre alone.

    An adjustment is one in each of its rows: it tells that their amount is one of an adjustment.
    """
    if name.endswith(_MONEY):
        for factor in factors:
            figure = figure * factor
        return figure
    if name.startswith(_OF_MONEY):
        return figure * rows.share if "share" in rows else figure
    if "is_own" not in rows or name == "adjustments":
        return figure
    return case((rows.is_own, figure))


def unrated_day(rows: Columns) -> Label[Any]:
    """Return the column with the day of a row that has no rate; NULL for any other."""
    return case((rows.per_usd.is_(None), utc_day(rows.occurred_at))).label("unrated_day")


def idle_rows(question: Question, like: Columns) -> Subquery:
    """Return the idle GPU cost of a question's time, with the columns of adjustments: its hour,
    deployment, and the team and cost centre that bear it by the policy, NULL if none does.
    """
    members = (
        column("hour", TIMESTAMPTZ),
        column("deployment", Text),
        column("team", Text),
        column("cost_centre", Text),
        column("idle_usd", Numeric),
    )
    idle = IdleCosts(*_bounds(question)).table_valued(*members, name="idle").c
    own: dict[str, ColumnElement[Any]] = {
        "occurred_at": idle.hour,
        "posted_period": cast(func.date_trunc("month", func.timezone(UTC_ZONE, idle.hour)), Date),
        "is_self_hosted": literal_column("true", Boolean),
        **{name: idle[name] for name in ("deployment", "team", "cost_centre", "idle_usd")},
    }
    unknown = {one.name: cast(null(), one.type) for one in like if one.name not in own}
    listed = (value.label(name) for name, value in (own | unknown).items())
    return select(*listed).subquery("event")


def _bounds(question: Question) -> tuple[ColumnElement[Any], ColumnElement[Any]]:
    """Return the SQL of the first moment of a question's time and the first one after it."""
    if question.moments:
        first, after = question.moments[0], question.moments[-1]
        return literal(first, TIMESTAMPTZ), literal(after, TIMESTAMPTZ)
    if question.month is None:
        return tuple(  # type: ignore[return-value]  # of two
            cast(literal(word, Text), TIMESTAMPTZ) for word in ("-infinity", "infinity")
        )
    following = (question.month.replace(day=28) + _FOUR_DAYS).replace(day=1)
    return _midnight(question.month), _midnight(following)


def _midnight(day: date) -> ColumnElement[Any]:
    """Return the SQL of a day's first moment in UTC."""
    return cast(literal(f"{day.isoformat()} 00:00:00+00", Text), TIMESTAMPTZ)
