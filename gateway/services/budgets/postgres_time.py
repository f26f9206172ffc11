"""Keeps Postgres's time between its statements, and measures this machine's clock by it.

A budget's period begins at a moment of Postgres's clock, for every replica the same one. A worker
that trusted its own clock would spend another period's budget.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

from gateway.services.ports import Clock

OLD_AFTER_S = 30.0  # seconds; the two machines' clocks drift apart by less than a millisecond


class PostgresTime:
    """Postgres's time as it last stated it, carried on by this process's monotonic clock.

    Moments are seconds since 1970: each request under a budget asks for one.
    """

    def __init__(self, clock: Clock) -> None:
        """Take the clock that is measured; until Postgres states its time, none is known."""
        self._clock = clock
        self._stated_s = 0.0  # by the monotonic clock
        self._ahead_s: float | None = None  # Postgres's time less that of the monotonic clock

    def note(self, stated: datetime) -> None:
        """Record the time that Postgres stated at the end of an exchange that ended just now."""
        self._stated_s = self._clock.monotonic()
        self._ahead_s = stated.timestamp() - self._stated_s

    def at_s(self, now_s: float) -> float | None:
        """Return Postgres's time at a moment of the monotonic clock; None if it is not known."""
        return None if self._ahead_s is None else now_s + self._ahead_s

    def is_old(self, now_s: float) -> bool:
        """Return True if Postgres stated its time so long ago that it should do so again."""
        return self._ahead_s is not None and now_s - self._stated_s > OLD_AFTER_S

    def note_if_old(self, state: Callable[[], datetime]) -> None:
        """Ask for Postgres's time with `state`, and record it, if it is not known or old."""
        if self._ahead_s is None or self.is_old(self._clock.monotonic()):
            self.note(state())

    @property
    def skew_s(self) -> float | None:
        """Return the seconds by which this machine's clock is ahead of Postgres's; negative if it
        is behind, None if Postgres's time is not known.
        """
        there_s = self.at_s(self._clock.monotonic())
        return None if there_s is None else self._clock.now().timestamp() - there_s
