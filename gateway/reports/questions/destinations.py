"""Declares the report `destinations`: attempts, tokens and cost by own GPUs or external provider,
region and deployment.
"""

from __future__ import annotations

from sqlalchemy import func

from gateway.reports.dimensions import Dimension
from gateway.reports.report import ColumnKind
from gateway.reports.report_kind import summary
from gateway.reports.sources.aggregate import ATTEMPTS, SPENT, Measure, token_sum
from gateway.reports.sources.facts import fact

_MTOK = 1_000_000
# Over input and output tokens together.
COST_PER_MTOK = Measure(
    name="cost_per_mtok_usd",
    unit="USD per million tokens",
    kind=ColumnKind.MONEY,
    is_ratio=True,
    known=func.sum(fact("known_attempts")),
    value=func.round(
        func.sum(fact("cost_usd")) * _MTOK / func.nullif(func.sum(fact("total_tokens")), 0), 9
    ),
)
REPORT = summary(
    name="destinations",
    title="Self-hosted and external",
    question="Where did data and money go: own GPUs or external providers, and in which region?",
    by=(Dimension.DESTINATION, Dimension.PROVIDER, Dimension.REGION, Dimension.DEPLOYMENT),
    measures=(
        ATTEMPTS,
        token_sum("input_tokens"),
        token_sum("output_tokens"),
        *SPENT,
        COST_PER_MTOK,
    ),
)
