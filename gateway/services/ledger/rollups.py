"""Runs three upkeep steps about once a minute: sum changed hours, book expired unknown holds, and
give up silent journals; its caller passes them in.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import structlog

from gateway.errors import OperatorError
from gateway.services.ports import Clock

log = structlog.get_logger()

LOOK_EVERY_S = 60.0
# The running hour is summed again and again, and takes longer the more events it has. This bounds
# the work to a twentieth of the time.
LEAST_PAUSES = 20


class RollupKeeper:
    """The background job for roll-ups and old holds; Postgres lets one worker at a time do it.

    `refresh` sums changed hours, `expire` books holds that are too old, `lose` gives up silent
    journals. Each runs in a thread and returns its count.
    """

    def __init__(
        self,
        refresh: Callable[[], int],
        expire: Callable[[], int],
        lose: Callable[[], int],
        clock: Clock,
    ) -> None:
        """Make the job with its three steps for the ledger; `run` starts it."""
        self._refresh, self._expire, self._lose, self._clock = refresh, expire, lose, clock

    async def run(self) -> None:
        """Refresh roll-ups, expire holds and give up silent journals, until cancelled."""
        while True:
            began_s = self._clock.monotonic()
            await self.run_once()
            await asyncio.sleep(
                max(LOOK_EVERY_S, LEAST_PAUSES * (self._clock.monotonic() - began_s))
            )

    async def run_once(self) -> bool:
        """Do each due step (roll-ups, holds, journals) once; return False if the database could not
        be asked.

        Without this job reports stay right but become slow.

        A failing step is logged and does not keep the others from running. Raises the first defect.
        """
        is_whole = True
        defect: Exception | None = None
        for name, step in (
            ("roll-ups", self._refresh_rollups),
            ("expired holds", self._expire_holds),
            ("lost journals", self._give_up_journals),
        ):
            try:
                await step()
            except OperatorError as failed:
                is_whole = False
                log.warning("rollups_not_refreshed", step=name, problem=failed.message)
            except Exception as failed:
                log.exception("rollups_not_refreshed", step=name)
                defect = defect or failed
        if defect is not None:
            raise defect
        return is_whole

    async def _refresh_rollups(self) -> None:
        """Sum the changed hours again, and log their number."""
        log.debug("rollups_refreshed", hours=await asyncio.to_thread(self._refresh))

    async def _expire_holds(self) -> None:
        """Book the holds of unknown attempts that are too old to become known, and log a warning if
        there were any.
        """
        if expired := await asyncio.to_thread(self._expire):
            log.warning("holds_expired", attempts=expired)

    async def _give_up_journals(self) -> None:
        """Give up the journals that have been silent for too long, and log an error if there were
        any.
        """
        if lost := await asyncio.to_thread(self._lose):
            log.error("journals_given_up", journals=lost)
