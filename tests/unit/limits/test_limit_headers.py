"""`x-ratelimit-*`: the headers that SDKs and people read before they are refused."""

from __future__ import annotations

import pytest

from gateway.api.limit_headers import duration, limit_headers
from gateway.services.limits.limiter import LimitStatus, LimitUsage


def test_the_headers_show_the_tightest_limit() -> None:
    """A key with much left under a team with little is as good as nothing."""
    team = LimitStatus(
        limit_id="t", requests=LimitUsage(limit=600, remaining=6, reset_s=12.2), tokens=None
    )
    key = LimitStatus(
        limit_id="k",
        requests=LimitUsage(limit=60, remaining=30, reset_s=1),
        tokens=LimitUsage(limit=9, remaining=-1, reset_s=0.35),
    )
    assert dict(limit_headers([team, key])) == {
        b"x-ratelimit-limit-requests": b"600",
        b"x-ratelimit-remaining-requests": b"6",
        b"x-ratelimit-reset-requests": b"13s",
        b"x-ratelimit-limit-tokens": b"9",
        b"x-ratelimit-remaining-tokens": b"0",
        b"x-ratelimit-reset-tokens": b"350ms",
    }


def test_without_limits_there_are_no_headers() -> None:
    """A client should not back off from a limit that does not exist."""
    assert limit_headers([LimitStatus(limit_id="t", requests=None, tokens=None)]) == []


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0ms"), (0.0001, "1ms"), (1, "1s"), (59.1, "1m0s"), (61, "1m1s")]
)
def test_times_are_written_as_openai_writes_them(seconds: float, text: str) -> None:
    """Clients parse Go durations."""
    assert duration(seconds) == text
