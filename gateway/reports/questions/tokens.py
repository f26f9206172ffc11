"""Declares the report `tokens`: used tokens by disjoint kind, by day unless asked otherwise."""

from __future__ import annotations

from gateway.reports.dimensions import Dimension
from gateway.reports.report_kind import summary
from gateway.reports.sources.aggregate import ATTEMPTS, SPENT, count_sum, token_sum

REPORT = summary(
    name="tokens",
    title="Tokens by kind",
    question="Which kinds of tokens were used, over time?",
    by=(Dimension.DAY,),
    # The kinds are disjoint and add up to input plus output, so that they can be stacked. A part
    # that a provider does not report stays in its whole.
    measures=(
        ATTEMPTS,
        token_sum("uncached_input_tokens"),
        token_sum("cached_input_tokens"),
        token_sum("cache_write_tokens"),
        token_sum("plain_output_tokens"),
        token_sum("reasoning_tokens"),
        count_sum("unreported_attempts"),
        *SPENT,
    ),
)
