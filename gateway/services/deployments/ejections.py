"""Ejects a deployment whose upstream reported another place than the policy promises, in this
worker at once and through Postgres in all others.

Only `tollgate policy readmit` ends an ejection.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Protocol
from uuid import UUID

import structlog

from gateway.domain.policy.policy import Deployment
from gateway.domain.residency.stated_place import Contradiction, stated_region
from gateway.domain.routing.decide import Decision
from gateway.errors import DatabaseUnavailable
from gateway.services.ports import Clock

log = structlog.get_logger()

RETRY_S = 1.0
# seconds; the ejection reaches a snapshot long before, and afterwards a readmission must count
FORGOTTEN_AFTER_S = 10.0


class EjectionNotes(Protocol):
    """Shares ejections with all replicas.

    `storage.deployments.ejections.EjectionStore` implements it. Called in a thread.
    """

    def eject(self, found: Contradiction, *, request_id: UUID, attempt: int) -> None:
        """Record one ejection. Raises `DatabaseUnavailable`."""


class Ejections:
    """The deployments that this worker ejected. `run` must be running to share them."""

    def __init__(
        self,
        store: EjectionNotes,
        clock: Clock,
        *,
        on_ejected: Callable[[str], None],
        retry_s: float = RETRY_S,
    ) -> None:
        """Start without ejections; `on_ejected` is called with each newly ejected deployment."""
        self._store, self._clock, self._on_ejected, self._retry_s = (
            store,
            clock,
            on_ejected,
            retry_s,
        )
        self.noted = 0  # changes so far; a decision made before the last change is outdated
        self._stated: dict[str, str] = {}
        self._stored_s: dict[str, float] = {}
        self._queue: asyncio.Queue[tuple[Contradiction, UUID, int]] = asyncio.Queue()

    def note(self, found: Contradiction, *, request_id: UUID, attempt: int) -> None:
        """Eject a deployment from now on, because its upstream reported another place. Never
        awaits.
        """
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

    def note_head(
        self,
        headers: Mapping[str, str],
        decision: Decision,
        deployment: Deployment,
        *,
        request_id: UUID,
    ) -> None:
        """Eject a deployment whose answer's headers report a place that was not promised or is not
        allowed: for calls that are no attempts.
        """
        stated = stated_region(headers, None)
        if stated is not None and (found := decision.contradiction(stated, deployment)):
            self.note(found, request_id=request_id, attempt=1)

    def is_out(self, deployment: str) -> bool:
        """Return True if this worker ejected the deployment; decisions already include the
        ejections in Postgres.
        """
        return deployment in self._stated

    def out(self, known: Mapping[str, str]) -> Mapping[str, str]:
        """Return the place that each ejected deployment reported: the snapshot's ejections `known`,
        and this worker's own.
        """
        if not self._stated:
            return known
        now_s = self._clock.monotonic()
        for name in list(self._stated):
            if name in known or now_s - self._stored_s.get(name, now_s) > FORGOTTEN_AFTER_S:
                del self._stated[name]
                self._stored_s.pop(name, None)
                self.noted += 1  # decisions made with it may be wrong from now on
        return {**self._stated, **known}

    async def run(self) -> None:
        """Write ejections to Postgres until cancelled. While Postgres is away, this worker applies
        its own.
        """
        while True:
            found, request_id, attempt = await self._queue.get()
            is_stored = False
            try:
                is_stored = await self._store_ejection(found, request_id, attempt)
            finally:
                if not is_stored:  # on every exit: the other replicas must learn of it
                    self._queue.put_nowait((found, request_id, attempt))
            if not is_stored:
                await asyncio.sleep(self._retry_s)
            elif found.deployment in self._stated:
                self._stored_s[found.deployment] = self._clock.monotonic()

    async def _store_ejection(self, found: Contradiction, request_id: UUID, attempt: int) -> bool:
        """Write one ejection to Postgres in a thread; return False if Postgres is away."""
        try:
            await asyncio.to_thread(
                self._store.eject, found, request_id=request_id, attempt=attempt
            )
        except DatabaseUnavailable as away:
            log.warning("ejection_not_told", deployment=found.deployment, problem=away.message)
            return False
        return True
