"""Composes the SQL of GPU cost by day and deployment for the report `gpu`, and builds the note on
idle cost for other reports.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from sqlalchemy import ColumnElement, FromClause, Subquery, Text, case, cast, false, func, select

from gateway.domain.money import format_usd
from gateway.reports.dimensions import Columns, Dimension, Split, utc_day
from gateway.reports.question import Question
from gateway.reports.report import Dataset
from gateway.reports.sources.allocated_rows import unrated_day, with_rates
from gateway.reports.sources.connection import ReadSnapshot
from gateway.reports.sources.currencies import require_rates
from gateway.storage.postgres.schema import finance_views

IDLE_UNKNOWN = (
    "Idle GPU cost not included: not known, as no GPU hours were seen or no rate was declared."
)
_OWN_IDLE = (
    "idle_usd is the share of idle GPU cost that the policy's rules give to these teams, and no "
    "other column has it. The whole GPU bill is shown to finance."
)
_NO_IDLE = "Idle GPU cost not included: the whole GPU bill is shown to finance."

_HOURS = finance_views.gpu_cost
_OWN: Mapping[Split, Callable[[Columns], ColumnElement[Any]]] = {
    Dimension.DEPLOYMENT: lambda row: row.deployment,
    Dimension.DAY: lambda row: utc_day(row.hour),
}
_SUMMED = (
    "idle_usd",
    "variance_usd",
    "up_hours",
    "empty_usd",
    "underfilled_usd",
    "estimated_usd",
    "imported_usd",
)


def gpu_days(question: Question) -> Subquery:
    """Return the subquery of GPU cost for a question: one row per day and deployment, the sums of
    its hours.

    Filters that GPU hours do not have are left out. An hour without a bill adds nothing but its
    charges, which have their own column.
    """
    row = gpu_hours(question).c
    day = utc_day(row.hour)
    rate, has_no_bill = row.usd_per_gpu_hour, row.bill_usd.is_(None)
    charged_without_bill = func.sum(row.applied_usd).filter(has_no_bill)
    has_one_rate = (func.min(rate) == func.max(rate)) & (func.count(row.imported_usd) == 0)
    return (
        select(
            day.label("day"),
            row.deployment,
            func.sum(row.gpu_hours).label("gpu_hours"),
            case((has_one_rate, func.min(rate))).label("usd_per_gpu_hour"),
            func.sum(row.bill_usd).label("bill_usd"),
            func.sum(row.applied_usd).filter(row.bill_usd.is_not(None)).label("applied_usd"),
            *(func.sum(row[name]).label(name) for name in _SUMMED),
            func.coalesce(charged_without_bill, 0).label("applied_without_bill_usd"),
            func.count().filter(has_no_bill).label("hours_without_bill"),
        )
        .where(*gpu_conditions(row, question))
        .group_by(day, row.deployment)
        .subquery("days")
    )


def gpu_hours(question: Question) -> FromClause:
    """Return the hours of GPU cost. In another currency they have the columns `per_usd`, the
    factor of their money, and `unrated_day`.
    """
    if question.currency is None:
        return _HOURS
    dated = select(_HOURS, _HOURS.c.hour.label("occurred_at")).subquery("dated")
    rated = with_rates(dated, question.currency).c
    figures = (
        (rated[one.name] * rated.per_usd).label(one.name)
        if "usd" in one.name.split("_")
        else rated[one.name]
        for one in _HOURS.c
    )
    return select(*figures, rated.per_usd, unrated_day(rated)).subquery("hours")


def require_gpu_rates(snapshot: ReadSnapshot, question: Question) -> None:
    """Raise `OperatorError` if an hour of the question has no rate of its currency."""
    if question.currency is None:
        return
    row = gpu_hours(question).c
    chosen = select(row.unrated_day).where(*gpu_conditions(row, question)).subquery("chosen")
    require_rates(snapshot, chosen, question.currency, closed_at=question.closed_at)


def gpu_conditions(row: Columns, question: Question) -> Iterator[ColumnElement[bool]]:
    """Yield the SQL conditions of a question's month and filters on rows with an `hour` and a
    `deployment`.
    """
    yield from question.happened(row.hour)
    for dimension, wanted in question.where:
        if dimension in _OWN and wanted is not None:
            yield cast(_OWN[dimension](row), Text) == wanted
    if question.dataset is Dataset.DEMO:
        yield false()  # the demo's GPUs have no bill


def foreign_filters(question: Question) -> list[Split]:
    """Return the filters of a question that GPU hours do not have: a GPU belongs to no team."""
    return [dimension for dimension, _ in question.where if dimension not in _OWN]


def idle_note(snapshot: ReadSnapshot, question: Question, *, has_column: bool = False) -> str:
    """Return the note on the part of the GPU bill that a report of charges leaves out, or has in a
    column of its own, in USD. The readers of some teams see no bill.
    """
    if snapshot.is_of_teams:
        return _OWN_IDLE if has_column else _NO_IDLE
    days = gpu_days(replace(question, currency=None)).c
    missing_hours = func.coalesce(func.sum(days.hours_without_bill), 0)
    found = snapshot.row(
        select(
            func.sum(days.bill_usd).label("bill_usd"),
            func.sum(days.idle_usd).label("idle_usd"),
            missing_hours.label("hours_without_bill"),
        )
    )
    if found["bill_usd"] is None:
        return IDLE_UNKNOWN
    scope = " of all teams together" if foreign_filters(question) else ""
    missing = found["hours_without_bill"]
    kept = " not included" if not has_column else ""
    column = " idle_usd has it by the policy's rules, and no other column." if has_column else ""
    return (
        f"Idle GPU cost{kept}: {format_usd(found['idle_usd'])} of a GPU bill of "
        f"{format_usd(found['bill_usd'])}{scope}; tollgate report gpu shows it.{column}"
        + (f" For {missing:,} hour(s) with requests the bill is not known." if missing else "")
    )
