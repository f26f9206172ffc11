"""Takes a deployment out of use whose upstream says that it ran elsewhere than promised: here at
once, soon everywhere.

What is noted here counts from the same moment in this worker; Postgres hears of it in the
background, and from there every other one. In again it comes by `tollgate policy readmit` alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Protocol
from uuid import UUID

import structlog

from gateway.domain.residency.stated import Contradiction
from gateway.errors import DatabaseUnavailable
from gateway.services.ports import Clock

log = structlog.get_logger()

RETRY_S = 1.0
# A snapshot with the ejection in it is here long before; after that a readmission must count.
FORGOTTEN_AFTER_S = 10.0


class EjectionNotes(Protocol):
    """Where all replicas hear of ejections.

    `storage.deployments.ejections.EjectionStore` is one. Called in a thread.
    """

    def eject(self, found: Contradiction, *, request_id: UUID, attempt: int) -> None:
        """Note one. Raises `DatabaseUnavailable`."""


class Ejections:
    """What this worker has seen contradicted. `run` must be running for others to hear of it."""

    def __init__(
        self,
        store: EjectionNotes,
        clock: Clock,
        *,
        on_ejected: Callable[[str], None],
        retry_s: float = RETRY_S,
    ) -> None:
        self._store, self._clock, self._on_ejected, self._retry_s = (
            store,
            clock,
            on_ejected,
            retry_s,
        )
        self.noted = (
            0  # how often this changed: decisions made before the last time are of the past
        )
        self._stated: dict[str, str] = {}
        self._told_s: dict[str, float] = {}
        self._queue: asyncio.Queue[tuple[Contradiction, UUID, int]] = asyncio.Queue()

    def note(self, found: Contradiction, *, request_id: UUID, attempt: int) -> None:
        """Take a deployment out of use from now on. No await."""
        if found.deployment in self._stated:
            return
        log.error(
            "residency_contradicted",
            deployment=found.deployment,
            promised=found.promised,
            stated=found.stated,
            request_id=str(request_id),
            attempt=attempt,
        )
        self._stated[found.deployment] = found.stated
        self.noted += 1
        self._on_ejected(found.deployment)
        self._queue.put_nowait((found, request_id, attempt))

    def is_out(self, deployment: str) -> bool:
        """Whether this worker has taken it out; what Postgres knew was decided with."""
        return deployment in self._stated

    def out(self, known: Mapping[str, str]) -> Mapping[str, str]:
        """What each deployment said that is out of use; `known` is what Postgres knew when the
        snapshot was read.
        """
        if not self._stated:
            return known
        now_s = self._clock.monotonic()
        for name in list(self._stated):
            if name in known or now_s - self._told_s.get(name, now_s) > FORGOTTEN_AFTER_S:
                del self._stated[name]
                self._told_s.pop(name, None)
                self.noted += 1  # what was decided with it may be wrong from now on
        return {**self._stated, **known}

    async def run(self) -> None:
        """Tell Postgres, until cancelled; as long as it is away this worker keeps to what it has
        seen.
        """
        while True:
            found, request_id, attempt = await self._queue.get()
            is_told = False
            try:
                is_told = await self._tell(found, request_id, attempt)
            finally:
                if not is_told:  # however that ended: the other replicas must hear of it
                    self._queue.put_nowait((found, request_id, attempt))
            if not is_told:
                await asyncio.sleep(self._retry_s)
            elif found.deployment in self._stated:
                self._told_s[found.deployment] = self._clock.monotonic()

    async def _tell(self, found: Contradiction, request_id: UUID, attempt: int) -> bool:
        try:
            await asyncio.to_thread(
                self._store.eject, found, request_id=request_id, attempt=attempt
            )
        except DatabaseUnavailable as away:
            log.warning("ejection_not_told", deployment=found.deployment, problem=away.message)
            return False
        return True
