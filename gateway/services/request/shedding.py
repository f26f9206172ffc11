"""Refuses requests by their team's priority, before the body is read, if this worker is overloaded:
event loop late, journal filling or many in flight.

A gateway that accepts everything answers everything late; one that refuses a part answers the rest
in time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from gateway.domain.policy.policy import Priority
from gateway.errors import Overloaded

TICK_S = 0.05
# One late turn is a pause of the garbage collector or the machine. Several late turns in a row are
# overload.
TURNS = 3
JOURNAL_SHARE = 0.9
RETRY_AFTER_S = 2.0
# The part of these limits at which each priority is refused; the last twentieth of streams is for
# `high` only.
FROM: dict[Priority, float] = {Priority.LOW: 0.5, Priority.NORMAL: 1.0, Priority.HIGH: 2.0}
STREAMS_SHARE = 0.95


class Shedding:
    """Measures the load of this worker, and refuses new requests under too much of it.

    `run` must be running; before it has measured, nothing is refused.

    `journal_share` returns the used part of the journal, `streams` the requests in flight of
    `max_streams`. `lag_s` is the tolerated delay of the event loop.
    """

    def __init__(
        self,
        *,
        journal_share: Callable[[], float],
        streams: Callable[[], int],
        max_streams: int,
        lag_s: float,
        on_shed: Callable[[str], None] = lambda priority: None,
    ) -> None:
        """Start without a measurement; `on_shed` is called with the priority of each refused
        request.
        """
        self._journal_share, self._streams, self._max_streams = journal_share, streams, max_streams
        self._most_lag_s, self._on_shed = lag_s, on_shed
        self._late_s = [0.0] * TURNS
        self.pressure = 0.0  # 1 if a team of normal priority is refused

    @property
    def lag_s(self) -> float:
        """Return the least delay of the event loop's recent turns, in seconds."""
        return min(self._late_s)

    def check(self, priority: Priority) -> None:
        """Raise `Overloaded` if this worker's load has reached the limit of this priority."""
        if self.pressure < FROM[priority]:
            return
        self._on_shed(priority.value)
        raise Overloaded(
            "This replica has more to do than it can do in time, so it takes nothing new from "
            f"teams of priority '{priority.value}'. Try again later.",
            retry_after_s=RETRY_AFTER_S,
        )

    def note_turn(self, late_s: float) -> None:
        """Record the delay of one turn of the event loop, and compute the pressure from it, the
        journal and the streams.
        """
        self._late_s = [*self._late_s[1:], late_s]
        streams = self._streams() / max(self._max_streams * STREAMS_SHARE, 1.0)
        # High-priority teams go up to the hard limits, which are elsewhere: the journal's end and
        # the cap on streams.
        self.pressure = max(
            self.lag_s / self._most_lag_s,
            min(self._journal_share() / JOURNAL_SHARE, 1.5),
            min(streams, 1.5),
        )

    async def run(self) -> None:
        """Measure the event loop's delay, turn by turn, until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            due_s = loop.time() + TICK_S
            await asyncio.sleep(TICK_S)
            self.note_turn(loop.time() - due_s)
