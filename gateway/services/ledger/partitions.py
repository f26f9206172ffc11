"""Creates the ledger's monthly partitions three months ahead, in a background loop, so that no
event lands in the default partition.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from datetime import date

import structlog

from gateway.domain.calendar_months import last_partitioned_month
from gateway.errors import OperatorError
from gateway.services.ports import Clock

log = structlog.get_logger()

LOOK_EVERY_S = 6 * 3600.0
RETRY_AFTER_S = 60.0


class PartitionKeeper:
    """The background job that creates partitions; `ensure` makes the missing months between two
    days and returns them.

    It runs in a thread. `on_made` is called after some were made: a check that ran before them
    reports them as missing.
    """

    def __init__(
        self,
        ensure: Callable[[date, date], Sequence[str]],
        clock: Clock,
        *,
        on_made: Callable[[], None],
    ) -> None:
        """Make the background job; `run` starts it."""
        self._ensure, self._clock, self._on_made = ensure, clock, on_made

    async def run(self) -> None:
        """Create the missing partitions periodically, until cancelled."""
        while True:
            pause_s = LOOK_EVERY_S if await self.run_once() else RETRY_AFTER_S
            await asyncio.sleep(pause_s)

    async def run_once(self) -> bool:
        """Create the missing monthly partitions; return False if the database could not be
        asked.
        """
        today = self._clock.now().date()
        try:
            made = await asyncio.to_thread(self._ensure, today, last_partitioned_month(today))
        except OperatorError as problem:
            log.warning("partitions_not_checked", problem=problem.message)
            return False
        if made:
            log.info("partitions_made", months=list(made))
            self._on_made()
        return True
