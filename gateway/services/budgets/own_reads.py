"""Reads of callers' own figures (usage, receipts): a few at once, fewer for one team, and none for
long.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol, TypeVar

from gateway.domain.budgets.limits import LimitedBy
from gateway.errors import Unavailable
from gateway.services.budgets.limiter import LimitGrant

T = TypeVar("T")

PATIENCE_S = 3.0  # of a caller; a read itself ends by the same limit (`reports.open`)
THREADS = 8  # as many as the reports' pool has connections
AT_ONCE_PER_TEAM = 2


class TeamLimiter(Protocol):
    """Admits under the team's limits; `services.budgets.limiter.TeamLimiter` does."""

    async def admit_read(self, limited: Sequence[LimitedBy]) -> LimitGrant:
        """Count one request. Raises `RateLimited`."""


class OwnReads:
    """Threads of their own: reads that hang or come in floods hold up no job of this worker."""

    def __init__(self, limiter: TeamLimiter, *, patience_s: float = PATIENCE_S) -> None:
        self._limiter, self._patience_s = limiter, patience_s
        self._threads = ThreadPoolExecutor(THREADS, "own-reads")
        self._teams: dict[str, asyncio.Semaphore] = {}

    async def read(self, team: str, limited: Sequence[LimitedBy], work: Callable[[], T]) -> T:
        """Run `work` in a thread, as one request of the team's.

        Raises `RateLimited`, `Unavailable` where it takes too long, and what `work` raises.
        """
        (await self._limiter.admit_read(limited)).settle(None)
        places = self._teams.setdefault(team, asyncio.Semaphore(AT_ONCE_PER_TEAM))
        try:
            async with asyncio.timeout(self._patience_s):
                await places.acquire()
                reading = asyncio.get_running_loop().run_in_executor(self._threads, work)
                reading.add_done_callback(
                    lambda _: places.release()
                )  # its thread is done, its caller may be gone
                await asyncio.wait({reading})
                return reading.result()
        except TimeoutError:
            raise Unavailable(
                f"The ledger did not answer within {self._patience_s:g} s, or too many of team "
                f"{team}'s own reads are "
                f"under way. Nothing was changed. Try again in 5 seconds.",
                retry_after_s=5,
            ) from None

    async def close(self) -> None:
        """End the threads."""
        self._threads.shutdown(wait=False, cancel_futures=True)
