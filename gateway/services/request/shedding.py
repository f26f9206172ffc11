"""Says no early: what this replica cannot do well it refuses before it has read the request.

A gateway that takes everything answers everything late; one that refuses a part of it answers the
rest in time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from gateway.domain.policy.policy import Priority
from gateway.errors import Overloaded

TICK_S = 0.05
# One late turn is a pause of the collector or of the machine. What is late at each of so many is
# overloaded.
TURNS = 3
JOURNAL_SHARE = 0.9
RETRY_AFTER_S = 2.0
# From which part of these limits on each priority is refused; the streams' last twentieth is for
# `high` alone.
FROM: dict[Priority, float] = {Priority.LOW: 0.5, Priority.NORMAL: 1.0, Priority.HIGH: 2.0}
STREAMS_SHARE = 0.95


class Shedding:
    """Measures how much this worker has to do.

    `run` must be running; until it has, nothing is refused.

    `journal_share` is the used part of the journal, `streams` how many requests are in flight of
    `max_streams`, `lag_s` how late the loop may be at everything.
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
        self._journal_share, self._streams, self._max_streams = journal_share, streams, max_streams
        self._most_lag_s, self._on_shed = lag_s, on_shed
        self._late_s = [0.0] * TURNS
        self.pressure = 0.0  # 1 where a team of normal priority is refused

    @property
    def lag_s(self) -> float:
        """How late the loop is at its turns lately, at the least late of them."""
        return min(self._late_s)

    def check(self, priority: Priority) -> None:
        """Raise `Overloaded` for a request that should not be taken now."""
        if self.pressure < FROM[priority]:
            return
        self._on_shed(priority.value)
        raise Overloaded(
            "This replica has more to do than it can do in time, so it takes nothing new from "
            "teams of priority "
            f"'{priority.value}'. Try again later.",
            retry_after_s=RETRY_AFTER_S,
        )

    def note_turn(self, late_s: float) -> None:
        """The loop came to its turn so late."""
        self._late_s = [*self._late_s[1:], late_s]
        streams = self._streams() / max(self._max_streams * STREAMS_SHARE, 1.0)
        # High teams go up to the hard limits, which stand elsewhere: the journal's end and the cap
        # on streams.
        self.pressure = max(
            self.lag_s / self._most_lag_s,
            min(self._journal_share() / JOURNAL_SHARE, 1.5),
            min(streams, 1.5),
        )

    async def run(self) -> None:
        """Measure until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            due_s = loop.time() + TICK_S
            await asyncio.sleep(TICK_S)
            self.note_turn(loop.time() - due_s)
