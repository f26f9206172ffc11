"""Keeps the ledger's sums up to date and ends what nobody ended in time: unknown holds and lost
journals.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import structlog

from gateway.errors import OperatorError
from gateway.services.ports import Clock

log = structlog.get_logger()

LOOK_EVERY_S = 60.0
# The running hour is summed again and again, the longer the fuller it is: at most a twentieth of
# the time goes there.
LEAST_PAUSES = 20


class RollupKeeper:
    """`refresh` sums up what has changed and returns how many hours; `expire` books holds that are
    too old, `lose` gives up journals not heard of for too long, and each returns how many. All run
    in a thread, in every worker: Postgres lets one of them at it at a time.
    """

    def __init__(
        self,
        refresh: Callable[[], int],
        expire: Callable[[], int],
        lose: Callable[[], int],
        clock: Clock,
    ) -> None:
        self._refresh, self._expire, self._lose, self._clock = refresh, expire, lose, clock

    async def run(self) -> None:
        """Look until cancelled."""
        while True:
            began_s = self._clock.monotonic()
            await self.look()
            await asyncio.sleep(
                max(LOOK_EVERY_S, LEAST_PAUSES * (self._clock.monotonic() - began_s))
            )

    async def look(self) -> bool:
        """Do once what is due; False where the database could not be asked.

        Reports are right without it, but slow.

        A step that fails keeps none of the others from its turn. Raises what the first of them
        failed with.
        """
        problem: OperatorError | None = None
        defect: Exception | None = None
        for step in (self._sum_up, self._expire_holds, self._give_up_journals):
            try:
                await step()
            except OperatorError as failed:
                problem = failed.with_traceback(None)
            except Exception as failed:
                defect = defect or failed
        if problem is not None:
            log.warning("rollups_not_refreshed", problem=problem.message)
        if defect is not None:
            raise defect
        return problem is None

    async def _sum_up(self) -> None:
        log.debug("rollups_refreshed", hours=await asyncio.to_thread(self._refresh))

    async def _expire_holds(self) -> None:
        if expired := await asyncio.to_thread(self._expire):
            log.warning("holds_expired", attempts=expired)

    async def _give_up_journals(self) -> None:
        if lost := await asyncio.to_thread(self._lose):
            log.error("journals_given_up", journals=lost)
