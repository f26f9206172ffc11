"""Runs callers' reads of their own figures (usage, receipts) in threads: counted under the team's
limits, two at once per team, for 3 s at most.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from gateway.domain.budgets.limits import LimitedBy
from gateway.errors import Unavailable
from gateway.services.limits.limiter import LimitGrant

T = TypeVar("T")
Admit = Callable[[Sequence[LimitedBy]], Awaitable[LimitGrant]]

PATIENCE_S = 3.0  # seconds that a caller waits; `open_reports` ends the read itself after as long
THREADS = 8  # one per connection of the reports' pool
AT_ONCE_PER_TEAM = 2


class OwnReads:
    """A thread pool for reads, so that slow or numerous reads delay no other job of this worker.

    `admit` counts a read under its team's limits, or raises `RateLimited`.
    """

    def __init__(self, admit: Admit, *, patience_s: float = PATIENCE_S) -> None:
        """Make the thread pool; `patience_s` bounds the wait of a caller for its read."""
        self._admit, self._patience_s = admit, patience_s
        self._threads = ThreadPoolExecutor(THREADS, "own-reads")
        self._teams: dict[str, asyncio.Semaphore] = {}

    async def read(self, team: str, limited: Sequence[LimitedBy], work: Callable[[], T]) -> T:
        """Run `work`, a caller's read of its own figures, in a thread, as one request of the team.

        Raises `RateLimited`, `Unavailable` if it takes too long, and any error of `work`.
        """
        (await self._admit(limited)).settle(None)
        places = self._teams.setdefault(team, asyncio.Semaphore(AT_ONCE_PER_TEAM))
        try:
            async with asyncio.timeout(self._patience_s):
                await places.acquire()
                reading = asyncio.get_running_loop().run_in_executor(self._threads, work)
                # Its thread is done; its caller may have left.
                reading.add_done_callback(lambda _: places.release())
                await asyncio.wait({reading})
                return reading.result()
        except TimeoutError:
            raise Unavailable(
                f"The ledger did not answer within {self._patience_s:g} s, or too many of team "
                f"{team}'s own reads are under way. Nothing was changed. Try again in 5 seconds.",
                retry_after_s=5,
            ) from None

    async def close(self) -> None:
        """Stop the threads that read callers' own figures."""
        self._threads.shutdown(wait=False, cancel_futures=True)
