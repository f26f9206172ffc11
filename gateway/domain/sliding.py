"""How often something happened in the last seconds, in memory that does not grow with it."""

from __future__ import annotations

from math import floor


class SlidingCount:
    """Counts by whole second over the last `seconds`: the current one is among them, so it looks
    back a little less.

    Time is an argument and does not go back.
    """

    __slots__ = ("_by_second", "_next_s", "total")

    def __init__(self, seconds: int) -> None:
        self._by_second = [0] * seconds  # the current second last
        self._next_s = float("-inf")  # when the current second is over
        self.total = 0  # as of the last call

    def add(self, now_s: float) -> None:
        """It happened once more."""
        if now_s >= self._next_s:
            self._roll(now_s)
        self._by_second[-1] += 1
        self.total += 1

    def count(self, now_s: float) -> int:
        """How often it happened."""
        if now_s >= self._next_s:
            self._roll(now_s)
        return self.total

    def clear(self) -> None:
        """Forget it all."""
        self._by_second = [0] * len(self._by_second)
        self.total = 0

    def _roll(self, now_s: float) -> None:
        seconds = len(self._by_second)
        passed = int(min(floor(now_s) + 1 - self._next_s, seconds))
        self._by_second = self._by_second[passed:] + [0] * passed
        self.total = sum(self._by_second)
        self._next_s = floor(now_s) + 1
