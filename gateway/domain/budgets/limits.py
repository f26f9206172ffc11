"""Limits: how many requests and tokens in any 60 seconds, and how many requests at once.

What a worker asks of all workers' shared windows, and what it is answered, are values here too. A
tick is 25 ms of the database's clock; moments in seconds are of a worker's monotonic clock.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol, TypeAlias

from msgspec import Struct

WINDOW_S = 60
TICK_MS = 25
EACH = "*"  # in place of a project's or key's name: each of them by itself


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """None is no limit. Tokens are those of prompt and answer together.

    In shadow they refuse nothing, but count.
    """

    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    concurrent: int | None = None
    is_shadow: bool = False

    @property
    def is_limited(self) -> bool:
        """Whether anything is limited, or would be."""
        return (self.requests_per_minute, self.tokens_per_minute, self.concurrent) != (
            None,
            None,
            None,
        )

    @property
    def refuses_tokens(self) -> bool:
        """Whether a request is refused for the tokens that it may use."""
        return self.tokens_per_minute is not None and not self.is_shadow


NO_LIMITS = Limits()

LimitedBy: TypeAlias = tuple[str, Limits]  # under which name the limits are counted


class HasLimits(Protocol):
    """A team, as far as it is limited."""

    @property
    def name(self) -> str: ...
    @property
    def limits(self) -> Limits: ...
    @property
    def project_limits(self) -> Mapping[str, Limits]: ...
    @property
    def key_limits(self) -> Mapping[str, Limits]: ...


class LimitUnit(StrEnum):
    """What is counted."""

    REQUESTS = "requests"
    TOKENS = "tokens"
    CONCURRENT = "concurrent"


class LimitAsk(Struct, frozen=True, kw_only=True):
    """What one worker asks of one window, or of one limit's slots.

    `needs` are `(units, times)`, each met whole or not at all, in order; `ahead` is welcome
    besides. `kept` are the slots that the worker has and keeps. `corrections` are `(tick, units)`:
    below zero what is given back, above what was used without asking; tick 0 is not known.
    """

    limit_id: str
    measure: LimitUnit
    most: int
    needs: tuple[tuple[int, int], ...] = ()
    ahead: int = 0
    kept: int = 0
    corrections: tuple[tuple[int, int], ...] = ()


class LimitGranted(Struct, frozen=True, kw_only=True):
    """What was granted of one window at `tick`, or how many slots the worker now has in all.

    `used` is by all workers, this grant included. `slides` are `(milliseconds from now, units)`:
    what leaves the window next.
    """

    limit_id: str
    measure: LimitUnit
    tick: int
    granted: int
    used: int
    slides: tuple[tuple[int, int], ...] = ()


class LimitAnswer(Struct, frozen=True, kw_only=True):
    """The answer to all asks of one exchange.

    `is_repeat`: it was given before, to the exchange of the same number.
    """

    workers: int
    now_ms: int
    answers: tuple[LimitGranted, ...]
    is_repeat: bool = False


def limits_of(team: HasLimits, *, project: str | None, key_id: str) -> tuple[LimitedBy, ...]:
    """The limits of a team's request: the team's, its project's and its key's; empty where nothing
    is limited.
    """
    found = [
        (team.name, team.limits),
        (f"{team.name}/project:{project}", _own(team.project_limits, project)),
        (f"{team.name}/key:{key_id}", _own(team.key_limits, key_id)),
    ]
    return tuple((limit_id, limits) for limit_id, limits in found if limits.is_limited)


def limits_of_deployment(name: str, limits: Limits) -> tuple[LimitedBy, ...]:
    """The limits of an attempt at one deployment."""
    return ((f"deployment:{name}", limits),) if limits.is_limited else ()


def _own(limits: Mapping[str, Limits], owner: str | None) -> Limits:
    if owner is None:
        return NO_LIMITS
    return limits.get(owner, limits.get(EACH, NO_LIMITS))


class SlidingCounts:
    """Units by when they were taken, and how many of them are in the last 60 seconds.

    A unit counts for 60 seconds and at most one step more. Moments never go back.
    """

    STEPS_PER_S = 2

    __slots__ = ("_steps", "used")

    def __init__(self) -> None:
        self._steps: deque[list[int]] = deque()  # [step, units], oldest first
        self.used = 0

    def add(self, now_s: float, units: int) -> None:
        """Count units now."""
        step = int(now_s * self.STEPS_PER_S)
        if not self._steps or self._steps[-1][0] != step:
            self.slide(now_s)
            self._steps.append([step, 0])
        self._steps[-1][1] += units
        self.used += units

    def correct(self, taken_s: float, units: int) -> None:
        """Count more or fewer units at an earlier moment; nothing where they have slid out."""
        step = int(taken_s * self.STEPS_PER_S)
        for counted in reversed(self._steps):
            if counted[0] == step:
                counted[1] += units
                self.used += units
                return

    def slide(self, now_s: float) -> int:
        """Let go of what is older than the window; return what is left in it."""
        first = int(now_s * self.STEPS_PER_S) - WINDOW_S * self.STEPS_PER_S
        while self._steps and self._steps[0][0] < first:
            self.used -= self._steps.popleft()[1]
        return self.used

    def ready_s(self, now_s: float, excess: int) -> float:
        """When that many units will have slid out; all of them, where there are fewer."""
        ready_s = now_s
        for step, units in self._steps:
            if excess <= 0:
                break
            ready_s = (step + 1) / self.STEPS_PER_S + WINDOW_S
            excess -= units
        return ready_s
