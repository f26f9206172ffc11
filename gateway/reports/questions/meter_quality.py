"""Declares the report `meter-quality`: how sure the metered figures are, by the source of the
usage, and the holds that are still open.
"""

from __future__ import annotations

from sqlalchemy import ColumnElement, func

from gateway.reports.dimensions import Dimension
from gateway.reports.report import ColumnKind
from gateway.reports.report_kind import summary
from gateway.reports.sources.aggregate import (
    ATTEMPTS,
    HELD,
    SPENT,
    Measure,
    count_sum,
    total_or_zero,
)
from gateway.reports.sources.facts import FigureGroup, fact


def _from(*sources: str) -> ColumnElement[bool]:
    """Return the condition that the usage has one of these sources."""
    return fact("usage_source").in_(sources)


def _attempts(name: str, *sources: str) -> Measure:
    """Return the measure of the number of attempts whose usage has one of these sources."""
    return Measure(
        name=name,
        unit="attempts",
        kind=ColumnKind.COUNT,
        value=total_or_zero("attempts", _from(*sources)),
        needs=FigureGroup.USAGE_SOURCES,
    )


def _amount(name: str, *sources: str) -> Measure:
    """Return the measure of the known cost of attempts whose usage has one of these sources."""
    return Measure(
        name=name,
        unit="USD",
        kind=ColumnKind.MONEY,
        value=total_or_zero("cost_usd", _from(*sources)),
        needs=FigureGroup.USAGE_SOURCES,
    )


def _share(name: str, figure: str) -> Measure:
    """Return the measure of a share of attempts, to six decimals; NULL if there are none."""
    part, whole = func.sum(fact(figure)), func.nullif(func.sum(fact("attempts")), 0)
    return Measure(
        name=name,
        unit="of attempts",
        kind=ColumnKind.SHARE,
        value=func.round(part / whole, 6),
        is_ratio=True,
    )


REPORT = summary(
    name="meter-quality",
    title="Meter quality",
    question="How sure are the figures, and which holds are still open?",
    by=(Dimension.PROVIDER,),
    measures=(
        ATTEMPTS,
        _attempts("final_attempts", "provider", "none"),
        _attempts("running_attempts", "derived"),
        _attempts("estimated_attempts", "estimated"),
        _attempts("unreported_usage_attempts", "unknown"),
        count_sum("unknown_attempts", unit="attempts with an open hold"),
        _share("unknown_share", "unknown_attempts"),
        _share("derived_share", "derived_attempts"),
        _amount("final_usd", "provider", "none"),
        _amount("derived_usd", "derived", "estimated"),
        count_sum("expected_attempts", unit="adjustments at an expected cost"),
        *SPENT,
    ),
    sorted_by=HELD,
    notes=(
        "Usage is final (the provider's own last figure, or provably none), running (its last "
        "figure before a break), estimated by the gateway, or unknown. derived_share covers "
        "running and estimated usage. unknown_attempts have an open hold, held_usd; the other "
        "attempts of unknown usage were settled since, by an adjustment.",
    ),
)
