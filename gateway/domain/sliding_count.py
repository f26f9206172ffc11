"""Counts the events of the last seconds by whole second, in constant memory, for breakers and retry
budgets.
"""

from __future__ import annotations

from math import floor


class SlidingCount:
    """Counts by whole second over the last `seconds`. The current second is among them, so the span
    is slightly shorter.

    Time is an argument and does not go back.
    """

    __slots__ = ("_by_second", "_next_s", "total")

    def __init__(self, seconds: int) -> None:
        """Start without events, for a window of this many seconds."""
        self._by_second = [0] * seconds  # the current second last
        self._next_s = float("-inf")  # the end of the current second
        self.total = 0  # as of the last call

    def add(self, now_s: float) -> None:
        """Count one event in the current second."""
        if now_s >= self._next_s:
            self._roll(now_s)
        self._by_second[-1] += 1
        self.total += 1

    def count(self, now_s: float) -> int:
        """Return the number of events in the last seconds."""
        if now_s >= self._next_s:
            self._roll(now_s)
        return self.total

    def clear(self) -> None:
        """Forget all counted events."""
        self._by_second = [0] * len(self._by_second)
        self.total = 0

    def _roll(self, now_s: float) -> None:
        """Move the window to the current second and drop the seconds that have left it."""
        seconds = len(self._by_second)
        passed = int(min(floor(now_s) + 1 - self._next_s, seconds))
        self._by_second = self._by_second[passed:] + [0] * passed
        self.total = sum(self._by_second)
        self._next_s = floor(now_s) + 1
