"""Checks the deadlines of all connections with one timer, twice a second; the connection itself
acts on a passed deadline.

Each connection is kept in the slot of its earliest deadline and checked when the slot is due.

One timer per connection would be set and cancelled with every request. A slot is checked twice a
second.
"""

from __future__ import annotations

import asyncio
from math import inf
from typing import Protocol

TICK_S = 0.5
# A tick this late means that the event loop was blocked. Bytes that arrived meanwhile are read
# before any connection counts as late.
HELD_UP_S, ONE_TURN_S = 1.0, 0.001
NEVER = 2**62


class Timed(Protocol):
    """An object with deadlines, such as a connection. `slot` belongs to `Deadlines`; NEVER at
    first.
    """

    slot: int

    def check(self, now_s: float) -> float:
        """Act on passed deadlines; return the loop time of the next check, infinity for none."""


class Deadlines:
    """The deadlines of all connections, checked by one timer.

    `watch` is cheap if an earlier time is already watched, as for each request after the first.
    """

    def __init__(self) -> None:
        """Make an empty set of deadlines; the timer starts with the first of them."""
        self._slots: dict[int, set[Timed]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._due_s = inf

    def watch(self, watched: Timed, at_s: float) -> None:
        """Have `watched.check` called at the loop time `at_s` or up to half a second later; an
        earlier time that is already set stays.
        """
        slot = int(at_s / TICK_S) + 1
        if slot >= watched.slot:
            return
        self.forget(watched)
        watched.slot = slot
        self._slots.setdefault(slot, set()).add(watched)
        if self._timer is None:
            self._start_timer(TICK_S)

    def forget(self, watched: Timed) -> None:
        """Stop checking an object, because it has no further deadlines."""
        if watched.slot != NEVER:
            waiting = self._slots.get(watched.slot)
            if waiting is not None:
                waiting.discard(watched)
            watched.slot = NEVER

    def _start_timer(self, after_s: float) -> None:
        """Start the timer that runs `_tick` once, after `after_s`."""
        loop = asyncio.get_running_loop()
        self._due_s = loop.time() + after_s
        self._timer = loop.call_later(after_s, self._tick)

    def _tick(self) -> None:
        """Run one turn of the timer: check the due slots, and start the timer again while any are
        left.
        """
        now_s = asyncio.get_running_loop().time()
        if now_s - self._due_s > HELD_UP_S:
            self._start_timer(ONE_TURN_S)
            return
        self._timer = None
        try:
            self._check_due(now_s)
        finally:  # after a failed check the others continue
            if self._slots and self._timer is None:
                self._start_timer(TICK_S)

    def _check_due(self, now_s: float) -> None:
        """Check every object whose slot is due, and watch it again until its next deadline."""
        now = int(now_s / TICK_S)
        for slot in [slot for slot in self._slots if slot <= now]:
            waiting = self._slots[slot]
            while waiting:
                watched = waiting.pop()
                watched.slot = NEVER
                again_s = watched.check(now_s)
                if again_s < inf:
                    self.watch(watched, again_s)
            del self._slots[slot]
