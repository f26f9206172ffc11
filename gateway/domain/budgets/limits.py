"""Declares rate and concurrency limits and the asks and grants of windows that workers share, and
counts units over 60 seconds; refuses nothing.

A tick is 25 ms of the database's clock; times in seconds are of a worker's monotonic clock.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

from msgspec import Struct

WINDOW_S = 60
TICK_MS = 25
EACH = "*"  # instead of a project's or key's name: each of them separately


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The limits of one owner; None is no limit. Tokens are those of prompt and answer together.

    In shadow mode they refuse nothing, but count.
    """

    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    concurrent: int | None = None
    is_shadow: bool = False

    @property
    def is_limited(self) -> bool:
        """Return True if any limit is declared, also one in shadow mode, which refuses nothing."""
        return (self.requests_per_minute, self.tokens_per_minute, self.concurrent) != (
            None,
            None,
            None,
        )

    @property
    def refuses_tokens(self) -> bool:
        """Return True if a token limit is enforced, so that a request can be refused for its
        tokens.
        """
        return self.tokens_per_minute is not None and not self.is_shadow


NO_LIMITS = Limits()

LimitedBy: TypeAlias = tuple[str, Limits]  # the name under which the limits are counted


class LimitUnit(StrEnum):
    """The counted unit."""

    REQUESTS = "requests"
    TOKENS = "tokens"
    CONCURRENT = "concurrent"


class LimitAsk(Struct, frozen=True, kw_only=True):
    """A worker's ask for one window, or for one limit's slots.

    `needs` are `(units, times)`, each granted whole or not at all, in order; `ahead` is optional
    extra. `kept` are the slots that the worker has and keeps. `corrections` are `(tick, units)`:
    negative for returned units, positive for units used without asking; tick 0 is unknown.
    """

    limit_id: str
    measure: LimitUnit
    most: int
    needs: tuple[tuple[int, int], ...] = ()
    ahead: int = 0
    kept: int = 0
    corrections: tuple[tuple[int, int], ...] = ()


class LimitGranted(Struct, frozen=True, kw_only=True):
    """The grant of one window at `tick`, or the worker's total of slots.

    `used` is by all workers, this grant included. `slides` are `(milliseconds from now, units)`:
    the next units to leave the window.
    """

    limit_id: str
    measure: LimitUnit
    tick: int
    granted: int
    used: int
    slides: tuple[tuple[int, int], ...] = ()


class LimitAnswer(Struct, frozen=True, kw_only=True):
    """The answer to all asks of one exchange.

    `is_repeat`: the exchange of the same number was answered before.
    """

    workers: int
    now_ms: int
    answers: tuple[LimitGranted, ...]
    is_repeat: bool = False


def limits_of_deployment(name: str, limits: Limits) -> tuple[LimitedBy, ...]:
    """Return the limits for an attempt at one deployment, with the name that they are counted
    under; empty if it has none.
    """
    return ((f"deployment:{name}", limits),) if limits.is_limited else ()


def limits_of_owner(limits: Mapping[str, Limits], owner: str | None) -> Limits:
    """Return the limits of a project or key: its own, or those that `*` declares for each unnamed
    one; no limits without an owner.
    """
    if owner is None:
        return NO_LIMITS
    return limits.get(owner, limits.get(EACH, NO_LIMITS))


class SlidingCounts:
    """Units by the time they were taken, and their number in the last 60 seconds.

    A unit counts for 60 seconds and at most one step more. Times never go back.
    """

    STEPS_PER_S = 2

    __slots__ = ("_steps", "used")

    def __init__(self) -> None:
        """Start without any counted unit."""
        self._steps: deque[list[int]] = deque()  # [step, units], oldest first
        self.used = 0

    def add(self, now_s: float, units: int) -> None:
        """Count units as used now; they leave the window after 60 seconds."""
        step = int(now_s * self.STEPS_PER_S)
        if not self._steps or self._steps[-1][0] != step:
            self.slide(now_s)
            self._steps.append([step, 0])
        self._steps[-1][1] += units
        self.used += units

    def correct(self, taken_s: float, units: int) -> None:
        """Add or subtract units that were counted at an earlier time; change nothing if they have
        left the window.
        """
        step = int(taken_s * self.STEPS_PER_S)
        for counted in reversed(self._steps):
            if counted[0] == step:
                counted[1] += units
                self.used += units
                return

    def slide(self, now_s: float) -> int:
        """Drop units older than the window; return the number of units that remain in it."""
        first = int(now_s * self.STEPS_PER_S) - WINDOW_S * self.STEPS_PER_S
        while self._steps and self._steps[0][0] < first:
            self.used -= self._steps.popleft()[1]
        return self.used

    def ready_s(self, now_s: float, excess: int) -> float:
        """Return the time when `excess` units, by which a waiting request exceeds the limit, have
        left the window; the time when all have if fewer are in it.
        """
        ready_s = now_s
        for step, units in self._steps:
            if excess <= 0:
                break
            ready_s = (step + 1) / self.STEPS_PER_S + WINDOW_S
            excess -= units
        return ready_s
