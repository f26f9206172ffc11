"""Builds an answer's headers about limits in OpenAI's and in Anthropic's form, from the tightest of
the caller's limits; it enforces no limit.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from math import ceil

from gateway.api.errors import Headers
from gateway.services.limits.limiter import LimitStatus, LimitUsage


def limit_headers(standings: Sequence[LimitStatus]) -> Headers:
    """Return an answer's `x-ratelimit-*` headers for requests and tokens, each from the caller's
    limit with the smallest share left.
    """
    requests = [standing.requests for standing in standings if standing.requests is not None]
    tokens = [standing.tokens for standing in standings if standing.tokens is not None]
    return [*_headers(b"requests", requests), *_headers(b"tokens", tokens)]


def anthropic_limit_headers(standings: Sequence[LimitStatus], now: datetime) -> Headers:
    """Return the same as `anthropic-ratelimit-*` headers, which name the time of the reset.

    Source: https://docs.aws.amazon.com/claude-platform/latest/userguide/rate-limits.html, which
    names Anthropic's own headers, 2026-11-24.
    """
    found: Headers = []
    requests = [standing.requests for standing in standings if standing.requests is not None]
    tokens = [standing.tokens for standing in standings if standing.tokens is not None]
    for measure, figures in ((b"requests", requests), (b"tokens", tokens)):
        if not figures:
            continue
        tightest = _tightest(figures)
        reset = (now + timedelta(seconds=ceil(tightest.reset_s))).strftime("%Y-%m-%dT%H:%M:%SZ")
        prefix = b"anthropic-ratelimit-" + measure
        found += [
            (prefix + b"-limit", b"%d" % tightest.limit),
            (prefix + b"-remaining", b"%d" % max(tightest.remaining, 0)),
            (prefix + b"-reset", reset.encode()),
        ]
    return found


def _tightest(figures: Sequence[LimitUsage]) -> LimitUsage:
    """Return the limit with the smallest share left."""
    return min(figures, key=lambda one: one.remaining / one.limit)


def _headers(measure: bytes, figures: Sequence[LimitUsage]) -> Headers:
    """Return limit, remainder and reset time of the tightest limit of one measure, as headers."""
    if not figures:
        return []
    tightest = _tightest(figures)
    return [
        (b"x-ratelimit-limit-" + measure, b"%d" % tightest.limit),
        (b"x-ratelimit-remaining-" + measure, b"%d" % max(tightest.remaining, 0)),
        (b"x-ratelimit-reset-" + measure, duration(tightest.reset_s).encode()),
    ]


def duration(seconds: float) -> str:
    """Return seconds in OpenAI's form for headers, rounded up: `350ms`, `12s`, `1m0s`."""
    if seconds < 1:
        return f"{ceil(seconds * 1000)}ms"
    minutes, rest = divmod(ceil(seconds), 60)
    return f"{minutes}m{rest}s" if minutes else f"{rest}s"
