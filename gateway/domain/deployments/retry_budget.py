"""Counts the requests and retries of the last ten seconds, and allows retries up to a share of the
requests, so that an outage causes no storm.

Without it every request to a failing deployment is sent three times, just when it can take none.
"""

from __future__ import annotations

from gateway.domain.sliding_count import SlidingCount

SHARE = 0.1  # of the requests
FLOOR_PER_S = 3  # so that little traffic may retry at all
HELD_S = 10  # unused retries expire after it


class RetryBudget:
    """Before any retry, at most 30 retries plus a tenth of the requests of the last ten seconds.

    Retries are counted over a slightly longer time and requests over a slightly shorter one,
    because seconds are counted whole.
    """

    __slots__ = ("_requests", "_retries")

    def __init__(self) -> None:
        """Start without any counted request or retry."""
        self._requests, self._retries = SlidingCount(HELD_S), SlidingCount(HELD_S + 1)

    def note_request(self, now_s: float) -> None:
        """Count a request, or for a deployment, a first attempt there."""
        self._requests.add(now_s)

    def has_one(self, now_s: float) -> bool:
        """Return True if the budget covers one more retry, without taking it."""
        allowed = FLOOR_PER_S * HELD_S + SHARE * self._requests.count(now_s)
        return self._retries.count(now_s) + 1 <= allowed

    def take(self, now_s: float) -> None:
        """Take one retry from the budget."""
        assert self.has_one(now_s), "asked before"
        self._retries.add(now_s)
