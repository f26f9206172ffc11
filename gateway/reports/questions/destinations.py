"""The destinations of data and money: own GPUs or external providers, and the region."""

from __future__ import annotations

from gateway.reports.dimensions import Dimension
from gateway.reports.question import Question
from gateway.reports.report import ColumnKind, Report
from gateway.reports.sources.aggregate import ATTEMPTS, SPENT, Measure, aggregate, tokens
from gateway.reports.sources.connection import ReadSnapshot

TITLE = "Self-hosted and external"
DEFAULT_BY = (Dimension.DESTINATION, Dimension.PROVIDER, Dimension.REGION, Dimension.DEPLOYMENT)
MEASURES = (
    ATTEMPTS,
    tokens("input_tokens"),
    tokens("output_tokens"),
    *SPENT,
    Measure(
        name="cost_per_mtok_usd",
        unit="USD per million tokens",
        kind=ColumnKind.MONEY,
        is_ratio=True,
        sql="round(sum(cost_usd) * 1000000 / nullif(sum(total_tokens), 0), 9)",
    ),
)


def destinations(snapshot: ReadSnapshot, question: Question) -> Report:
    """Return attempts, tokens and cost by place.

    `cost_per_mtok_usd` is over input and output tokens together.
    """
    by = DEFAULT_BY if question.by is None else question.by
    return aggregate(snapshot, question, MEASURES, name="destinations", title=TITLE, by=by)
