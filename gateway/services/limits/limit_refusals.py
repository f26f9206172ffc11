"""Builds the errors for a request over a limit: the limit, its figure, the time to retry, and who
can raise it; `limiter` decides and raises them.
"""

from __future__ import annotations

from math import ceil

from gateway.domain.budgets.limits import LimitUnit
from gateway.errors import ConcurrencyLimited, RateLimited, RequestError

LONGEST_S = 120.0
FIELDS = {
    LimitUnit.REQUESTS: "requests_per_minute",
    LimitUnit.TOKENS: "tokens_per_minute",
    LimitUnit.CONCURRENT: "concurrent",
}


def refusal(limit_id: str, measure: LimitUnit, limit: int, *, wait_s: float) -> RequestError:
    """Return the error for a request over a limit that is used up for the next `wait_s` seconds."""
    retry_after_s = min(max(wait_s, 0.001), LONGEST_S)
    error: RequestError
    if measure is LimitUnit.CONCURRENT:
        error = ConcurrencyLimited(
            f"{limit_id} may have {limit:,} requests running at once, and has. "
            f"Try again when one has ended, or {_ask_for(limit_id, measure)}",
            retry_after_s=retry_after_s,
        )
    else:
        error = RateLimited(
            f"{limit_id} may use {limit:,} {measure} in any 60 seconds, and this one would be "
            f"more. Try again in {ceil(retry_after_s)} s, or {_ask_for(limit_id, measure)}",
            retry_after_s=retry_after_s,
        )
    error.rules = (limit_id,)
    return error


def never_fits(limit_id: str, limit: int, tokens: int) -> RequestError:
    """Return the error for a single request whose tokens are more than the whole limit."""
    error = RateLimited(
        f"This request may use {tokens:,} tokens, and {limit_id} may use {limit:,} in any 60 "
        "seconds: it will never fit. Ask for fewer output tokens, or "
        f"{_ask_for(limit_id, LimitUnit.TOKENS)}"
    )
    error.rules = (limit_id,)
    return error


def _ask_for(limit_id: str, measure: LimitUnit) -> str:
    """Return the end of a refusal's sentence: which limit an admin would have to raise."""
    return f"ask an admin to raise {FIELDS[measure]} of {limit_id} in the policy."
