"""The kinds of used tokens over time."""

from __future__ import annotations

from gateway.reports.dimensions import Dimension
from gateway.reports.kind import summary
from gateway.reports.sources.aggregate import ATTEMPTS, SPENT, count, tokens

REPORT = summary(
    name="tokens",
    title="Tokens by kind",
    question="Which kinds of tokens were used, over time?",
    by=(Dimension.DAY,),
    # The kinds are disjoint and add up to input plus output, so that they can be stacked. A part
    # that a provider does not report stays in its whole.
    measures=(
        ATTEMPTS,
        tokens("uncached_input_tokens"),
        tokens("cached_input_tokens"),
        tokens("cache_write_tokens"),
        tokens("plain_output_tokens"),
        tokens("reasoning_tokens"),
        count("unreported_attempts"),
        *SPENT,
    ),
)
