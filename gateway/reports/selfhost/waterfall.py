"""Answers the report `gpu-bill`: the GPU bill of each deployment as a waterfall of lines (applied
by team, empty, underfilled and variance).

The lines of a deployment add up to its bill exactly. Hours without a known bill are left out.
"""

from __future__ import annotations

from decimal import Decimal
from typing import Any

from sqlalchemy import (
    CTE,
    ColumnElement,
    Select,
    Text,
    cast,
    func,
    literal,
    null,
    select,
    union_all,
)

from gateway.domain.money import EXACT
from gateway.errors import BadUsage
from gateway.reports.question import Question
from gateway.reports.report import Column, ColumnKind, Report
from gateway.reports.report_kind import ReportKind
from gateway.reports.sources.connection import ReadSnapshot, Row
from gateway.reports.sources.currencies import rounded
from gateway.reports.sources.gpu_days import (
    foreign_filters,
    gpu_conditions,
    gpu_hours,
    require_gpu_rates,
)
from gateway.reports.sources.notes import read_freshness
from gateway.storage.postgres.schema import finance_views

COLUMNS = (
    Column(name="deployment", unit="", kind=ColumnKind.TEXT),
    Column(name="line", unit="", kind=ColumnKind.TEXT),
    Column(name="team", unit="", kind=ColumnKind.TEXT),
    Column(name="amount_usd", unit="USD", kind=ColumnKind.MONEY),
    Column(name="share", unit="share of the deployment's bill", kind=ColumnKind.SHARE),
)
_LINES = ("applied", "empty", "underfilled", "variance")
_SHARE_DIGITS = Decimal("0.000001")


def gpu_bill(snapshot: ReadSnapshot, question: Question) -> Report:
    """Return the GPU bill by deployment and line: the teams' lines first, the largest first.

    Raises `BadUsage` for filters that a GPU bill cannot have.
    """
    foreign = foreign_filters(question)
    if foreign:
        raise BadUsage(
            f"Report gpu-bill cannot be filtered by {', '.join(foreign)}: a GPU bill belongs to no "
            "single team or request. Filter by deployment or day."
        )
    require_gpu_rates(snapshot, question)
    found = snapshot.rows(_lines(question))
    bills: dict[str, Decimal] = {}
    for row in found:
        bills[row["deployment"]] = bills.get(row["deployment"], Decimal(0)) + row["amount_usd"]
    report = Report(
        name=REPORT.name,
        title=REPORT.title,
        dataset=question.dataset,
        columns=COLUMNS,
        rows=tuple(_cells(row, bills[row["deployment"]]) for row in found),
        total={"amount_usd": sum(bills.values(), Decimal(0)) if bills else None},
        complete_until=read_freshness(snapshot, question).complete_until,
        notes=(
            *(() if found else ("No bill of own GPUs is known for this range.",)),
            "The lines of a deployment add up to its bill. Empty: no request was in flight. "
            "Underfilled: requests were in flight, below the declared capacity. Variance: the "
            "bill's difference to the declared rate, and charges beyond the GPU hours.",
            f"Money in {question.currency or 'USD'}, hours in UTC. Hours without a known bill are "
            "left out: tollgate report gpu counts them.",
        ),
    )
    return report if question.currency is None else rounded(report)


def _lines(question: Question) -> Select[Any]:
    """Return the SELECT of a question's lines: deployment, line, team and amount."""
    hours = _billed_hours(question)
    applied = finance_views.gpu_applied.c
    charged: ColumnElement[Any] = applied.applied_usd
    if question.currency is not None:
        charged = charged * hours.c.per_usd
    by_team = (
        select(
            hours.c.deployment,
            literal("applied").label("line"),
            applied.team.label("team"),
            func.sum(charged).label("amount_usd"),
        )
        .join_from(
            hours,
            finance_views.gpu_applied,
            (applied.hour == hours.c.hour) & (applied.deployment == hours.c.deployment),
        )
        # The join alone would sum up every month: a range of hours reaches no index through it.
        .where(*gpu_conditions(applied, question))
        .group_by(hours.c.deployment, applied.team)
    )
    others = [
        select(
            hours.c.deployment,
            literal(line).label("line"),
            cast(null(), Text).label("team"),
            func.sum(hours.c[f"{line}_usd"]).label("amount_usd"),
        ).group_by(hours.c.deployment)
        for line in _LINES[1:]
    ]
    every = union_all(by_team, *others).subquery("every").c
    place = func.array_position(list(_LINES), every.line)
    return select(*every).order_by(
        every.deployment, place, every.amount_usd.desc(), every.team.nulls_last()
    )


def _billed_hours(question: Question) -> CTE:
    """Return the hours of a question whose bill is known."""
    row = gpu_hours(question).c
    factor = () if question.currency is None else (row.per_usd,)
    figures = (row.empty_usd, row.underfilled_usd, row.variance_usd)
    return (
        select(row.hour, row.deployment, *figures, *factor)
        .where(row.bill_usd.is_not(None), *gpu_conditions(row, question))
        .cte("hours")
    )


def _cells(row: Row, bill_usd: Decimal) -> tuple[str | Decimal | None, ...]:
    """Return a line as a report's row, with its share of the deployment's bill."""
    amount: Decimal = row["amount_usd"]
    share = EXACT.quantize(amount / bill_usd, _SHARE_DIGITS) if bill_usd else None
    return (row["deployment"], row["line"], row["team"], amount, share)


REPORT = ReportKind(
    name="gpu-bill",
    title="GPU bill",
    question="Where did the GPU bill go: which team, empty, underfilled or variance?",
    by=None,
    run=gpu_bill,
)
