"""Declares the report `spend`: tokens, cost and unknown shares, split by any dimension."""

from __future__ import annotations

from dataclasses import replace

from sqlalchemy import func

from gateway.reports.dimensions import Dimension
from gateway.reports.question import Question
from gateway.reports.questions.why import why
from gateway.reports.report import ColumnKind, Report
from gateway.reports.report_kind import summary
from gateway.reports.sources.aggregate import ATTEMPTS, IDLE, SPENT, Measure, count_sum, token_sum
from gateway.reports.sources.connection import ReadSnapshot
from gateway.reports.sources.facts import fact


def _share(name: str, part: str) -> Measure:
    """Return the measure of the share of attempts that `part` counts."""
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
    token_sum("input_tokens"),
    token_sum("cached_input_tokens"),
    token_sum("output_tokens"),
    token_sum("reasoning_tokens"),
    *SPENT,
    count_sum("unknown_attempts"),
    count_sum("derived_attempts"),
    _share("unknown_share", "unknown_attempts"),
    _share("derived_share", "derived_attempts"),
    IDLE,
)
_SUMS = summary(
    name="spend",
    title="Spend",
    question="What did it cost, split by team, model, tag, day or anything else?",
    by=(Dimension.TEAM,),
    measures=MEASURES,
)


def _run(snapshot: ReadSnapshot, question: Question) -> Report:
    """Return the sums, or the reasons for their change."""
    if question.asks_why:
        return why(snapshot, question, name=_SUMS.name)
    return _SUMS.run(snapshot, question)


REPORT = replace(_SUMS, run=_run, explains=True)
