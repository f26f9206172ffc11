"""Events on their way to Postgres: taken at once, written in batches, kept until they are committed."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

import structlog

from gateway.domain.usage_event import UsageEvent
from gateway.errors import DatabaseUnavailable
from gateway.services.ports import EventLedger

log = structlog.get_logger()

BATCH_EVENTS = 1000
# About ten minutes at 100 requests a second. Beyond it new requests are refused (readiness says so).
MAX_WAITING_EVENTS = 60_000
MAX_PAUSE_S = 5.0


class EventWriter:
    """An `EventSink` that writes what it takes. Lives in one process; a batch leaves it only when committed."""

    def __init__(
        self, ledger: EventLedger, *, every_s: float, on_event: Callable[[UsageEvent], None],
        on_written: Callable[[int, int], None], on_failure: Callable[[], None],
    ) -> None:  # fmt: skip
        self._ledger = ledger
        self._every_s = every_s
        self._on_event, self._on_written, self._on_failure = on_event, on_written, on_failure
        self._waiting: deque[UsageEvent] = deque()
        self._wake = asyncio.Event()
        self._pause_s = every_s

    @property
    def waiting_events(self) -> int:
        """Settled events not yet committed."""
        return len(self._waiting)

    @property
    def is_full(self) -> bool:
        """True where no more requests should be admitted."""
        return len(self._waiting) >= MAX_WAITING_EVENTS

    def take(self, event: UsageEvent) -> None:
        """Take one settled event. No await: a disconnect cancels every await around the caller."""
        self._waiting.append(event)
        self._on_event(event)
        if len(self._waiting) >= BATCH_EVENTS:
            self._wake.set()

    async def run(self) -> None:
        """Write until cancelled: a batch every `every_s` or as soon as one is full; later after a failure."""
        while True:
            try:
                await asyncio.wait_for(self._wake.wait(), timeout=self._pause_s)
            except TimeoutError:
                pass
            self._wake.clear()
            try:
                await self.flush()
            except Exception:  # the background loop's boundary: what was taken is still held
                log.exception("events_not_written", waiting=len(self._waiting))
                self._on_failure()
                self._pause_s = MAX_PAUSE_S

    async def flush(self) -> None:
        """Write all that waits now. Returns early, having lost nothing, where Postgres does not take it."""
        while self._waiting:
            batch = [self._waiting[i] for i in range(min(BATCH_EVENTS, len(self._waiting)))]
            try:
                await asyncio.to_thread(self._ledger.write, batch)
            except DatabaseUnavailable as problem:
                log.warning("events_not_written", waiting=len(self._waiting), problem=problem.message)
                self._on_failure()
                self._pause_s = min(self._pause_s * 2, MAX_PAUSE_S)
                return
            for _ in batch:  # only now: until the commit they are ours
                self._waiting.popleft()
            self._pause_s = self._every_s
            self._on_written(len(batch), len(self._waiting))
