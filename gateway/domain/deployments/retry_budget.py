"""How many second tries are allowed: a share of the requests, so that an outage is not answered
with a storm.

Without it every request to something that fails is sent three times, just when it can take none.
"""

from __future__ import annotations

from gateway.domain.sliding import SlidingCount

SHARE = 0.1  # of the requests
FLOOR_PER_S = 3  # so that little traffic may retry at all
HELD_S = 10  # what is not used in that time is gone


class RetryBudget:
    """In the ten seconds before any retry there were at most 30 and a tenth of the requests of that
    time.

    Retries are looked back on a little longer than that, requests a little shorter: seconds are
    counted whole.
    """

    __slots__ = ("_requests", "_retries")

    def __init__(self) -> None:
        self._requests, self._retries = SlidingCount(HELD_S), SlidingCount(HELD_S + 1)

    def note_request(self, now_s: float) -> None:
        """A request came, or with a deployment, was sent there first."""
        self._requests.add(now_s)

    def has_one(self, now_s: float) -> bool:
        """Whether one more try is covered."""
        allowed = FLOOR_PER_S * HELD_S + SHARE * self._requests.count(now_s)
        return self._retries.count(now_s) + 1 <= allowed

    def take(self, now_s: float) -> None:
        """Use one up."""
        assert self.has_one(now_s), "asked before"
        self._retries.add(now_s)
