"""Declares the report `overview`: headline figures of cost, requests, tokens, teams and certainty,
without a split by default.
"""

from __future__ import annotations

from sqlalchemy import func, not_

from gateway.reports.report import ColumnKind
from gateway.reports.report_kind import summary
from gateway.reports.sources.aggregate import (
    ATTEMPTS,
    SPENT,
    Measure,
    count_sum,
    money,
    token_sum,
)
from gateway.reports.sources.facts import fact

# By their first attempt: so the parts of a split add up to all requests.
REQUESTS = count_sum("requests", "requests")
TEAMS = Measure(
    name="teams",
    unit="teams",
    kind=ColumnKind.COUNT,
    value=func.count(fact("team").distinct()),
    adds_up=False,
)
MEASURES = (
    ATTEMPTS,
    REQUESTS,
    count_sum("failed_attempts"),
    count_sum("unknown_attempts"),
    count_sum("derived_attempts"),
    *SPENT,
    money("self_hosted_cost_usd", fact("is_self_hosted")),
    money("external_cost_usd", not_(fact("is_self_hosted"))),
    token_sum("input_tokens"),
    token_sum("cached_input_tokens"),
    token_sum("output_tokens"),
    token_sum("reasoning_tokens"),
    TEAMS,
)
REPORT = summary(
    name="overview",
    title="Overview",
    question="How much was spent, on what, and how sure is that?",
    by=(),
    measures=MEASURES,
)
