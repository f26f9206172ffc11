"""Declares the report `retries`: the cost of second attempts and of failed attempts."""

from __future__ import annotations

from dataclasses import replace

from sqlalchemy import func

from gateway.reports.dimensions import Dimension
from gateway.reports.report import ColumnKind
from gateway.reports.report_kind import summary
from gateway.reports.sources.aggregate import ATTEMPTS, SPENT, Measure, count_sum, total_or_zero
from gateway.reports.sources.facts import FigureGroup, fact


def _amount(name: str) -> Measure:
    """Return the measure of an amount of some attempts; 0 if there are none."""
    return Measure(
        name=name,
        unit="USD",
        kind=ColumnKind.MONEY,
        value=total_or_zero(name),
        needs=FigureGroup.TIMES,
    )


FAILED = _amount("failed_usd")
WASTED = Measure(
    name="wasted_share",
    unit="share of cost_usd",
    kind=ColumnKind.SHARE,
    value=func.round(func.sum(fact("failed_usd")) / func.nullif(func.sum(fact("cost_usd")), 0), 6),
    needs=FigureGroup.TIMES,
    is_ratio=True,
)
RETRIES = replace(count_sum("retry_attempts"), needs=FigureGroup.TIMES)
REPORT = summary(
    name="retries",
    title="Retries and failed attempts",
    question="What did second attempts and failed attempts cost?",
    by=(Dimension.ROUTE,),
    measures=(
        ATTEMPTS,
        RETRIES,
        _amount("retry_usd"),
        count_sum("failed_attempts"),
        FAILED,
        WASTED,
        *SPENT,
    ),
    sorted_by=FAILED,
    notes=(
        "retry_usd is the known cost of second and later attempts of a request, failed_usd that of "
        "attempts that did not end as ok; a failed second attempt is in both.",
    ),
)
