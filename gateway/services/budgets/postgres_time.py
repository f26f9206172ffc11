"""Keeps Postgres's time between its statements, and measures this machine's clock by it.

A budget's period begins at a moment of Postgres's clock, for every replica the same one. A worker
that trusted its own clock would spend another period's budget.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from gateway.domain.budgets.health import MOST_SKEW_S
from gateway.services.ports import Clock

OLD_AFTER_S = 30.0  # seconds; the two machines' clocks drift apart by less than a millisecond


class PostgresTime:
    """Postgres's time as it last stated it, carried on by this process's monotonic clock."""

    def __init__(self, clock: Clock) -> None:
        """Take the clock that is measured; until Postgres states its time, none is known."""
        self._clock = clock
        self._stated: datetime | None = None
        self._stated_s = 0.0

    def note(self, stated: datetime) -> None:
        """Record the time that Postgres stated at the end of an exchange that ended just now."""
        self._stated, self._stated_s = stated, self._clock.monotonic()

    def at(self, now_s: float) -> datetime | None:
        """Return Postgres's time at a moment of the monotonic clock; None if it is not known."""
        if self._stated is None:
            return None
        return self._stated + timedelta(seconds=now_s - self._stated_s)

    def is_old(self, now_s: float) -> bool:
        """Return True if Postgres stated its time so long ago that it should do so again."""
        return self._stated is not None and now_s - self._stated_s > OLD_AFTER_S

    @property
    def skew_s(self) -> float | None:
        """Return the seconds by which this machine's clock is ahead of Postgres's; negative if it
        is behind, None if Postgres's time is not known.
        """
        there = self.at(self._clock.monotonic())
        return None if there is None else (self._clock.now() - there).total_seconds()

    def is_wrong(self, moment: datetime, stated: datetime) -> bool:
        """Return True if a moment of this machine's clock is too far from Postgres's time."""
        return abs((moment - stated).total_seconds()) > MOST_SKEW_S
