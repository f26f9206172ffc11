"""The cost, split by any dimension."""

from __future__ import annotations

from sqlalchemy import func

from gateway.reports.dimensions import Dimension
from gateway.reports.kind import summary
from gateway.reports.report import ColumnKind
from gateway.reports.sources.aggregate import ATTEMPTS, SPENT, Measure, count, tokens
from gateway.reports.sources.facts import fact


def _share(name: str, part: str) -> Measure:
    share = func.sum(fact(part)) / func.nullif(func.sum(fact("attempts")), 0)
    return Measure(
        name=name,
        unit="share of attempts",
        kind=ColumnKind.SHARE,
        is_ratio=True,
        value=func.round(share, 6),
    )


# Input includes cached tokens, output includes reasoning tokens.
MEASURES = (
    ATTEMPTS,
    tokens("input_tokens"),
    tokens("cached_input_tokens"),
    tokens("output_tokens"),
    tokens("reasoning_tokens"),
    *SPENT,
    count("unknown_attempts"),
    count("derived_attempts"),
    _share("unknown_share", "unknown_attempts"),
    _share("derived_share", "derived_attempts"),
)
REPORT = summary(
    name="spend",
    title="Spend",
    question="What did it cost, split by team, model, tag, day or anything else?",
    by=(Dimension.TEAM,),
    measures=MEASURES,
)
