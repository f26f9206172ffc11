"""Keeps a worker's snapshot fresh: told of changes by the database, and looking by itself besides."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import structlog

from gateway.errors import OperatorError
from gateway.services.ports import Clock
from gateway.services.snapshot import Snapshot, SnapshotHolder, SnapshotSource

log = structlog.get_logger()


class Refresher:
    """Swaps the snapshot when policy or keys change. A failed look keeps the last good snapshot."""

    def __init__(
        self, source: SnapshotSource, holder: SnapshotHolder, *, every_s: float, clock: Clock,
        on_swap: Callable[[Snapshot], None],
    ) -> None:  # fmt: skip
        self._source, self._holder, self._clock = source, holder, clock
        self._every_s, self._on_swap = every_s, on_swap

    async def refresh(self) -> None:
        """Look once."""
        try:
            snapshot = await asyncio.to_thread(self._source.load, self._holder.current)
        except OperatorError as problem:
            if self._holder.problem != problem.message:
                log.warning("snapshot_not_refreshed", problem=problem.message)
            self._holder.problem = problem.message
            return
        self._holder.refreshed_at = self._clock.now()
        if snapshot is None:
            self._holder.problem = "no policy was applied yet; run: tollgate policy apply FILE"
            return
        self._holder.problem = None
        if snapshot is not self._holder.current:
            self._holder.current = snapshot
            self._on_swap(snapshot)

    async def run(self) -> None:
        """Look until cancelled."""
        while True:
            try:
                await asyncio.to_thread(self._source.wait, self._every_s)
            except OperatorError:
                await asyncio.sleep(self._every_s)
            await self.refresh()
