"""Counts refusals and tells Postgres of them, a few seconds later.

Counted is what was decided, never what was said.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping
from datetime import timedelta
from typing import Protocol
from uuid import UUID

import structlog

from gateway.domain.routing.decide import Decision
from gateway.domain.routing.refusals import Refused
from gateway.errors import DatabaseUnavailable
from gateway.services.ports import Clock

log = structlog.get_logger()

WRITE_EVERY_S = 2.0
KEPT = timedelta(
    hours=2
)  # what is older was written, or Postgres has been away for long and has it as of then
MOST_KINDS = 10_000


class RefusalNotes(Protocol):
    """Where counts are kept; `storage.budgets.refusals.RefusalStore` is one. Called in a thread."""

    def write(self, journal_id: UUID, counts: Mapping[Refused, int]) -> None:
        """Set how many there were so far. Raises `DatabaseUnavailable`."""


class Refusals:
    """One worker's counts.

    What was refused in the last two seconds before a crash is not counted.
    """

    def __init__(
        self, store: RefusalNotes, clock: Clock, *, journal_id: UUID, every_s: float = WRITE_EVERY_S
    ) -> None:
        self._store, self._clock, self._journal_id, self._every_s = (
            store,
            clock,
            journal_id,
            every_s,
        )
        self._counts: Counter[Refused] = Counter()
        self._changed: set[Refused] = set()

    def note(self, decision: Decision, code: str, *, rules: tuple[str, ...] | None = None) -> None:
        """A request was refused, or would have been; by the decision's own rules, unless others are
        named. No await.
        """
        hour = self._clock.now().replace(minute=0, second=0, microsecond=0)
        team, route = decision.team.name, decision.route.name
        named = decision.denying_rules if rules is None else rules
        refused = Refused(hour, team, route, decision.class_label, code, named)
        if refused not in self._counts and len(self._counts) >= MOST_KINDS:
            return
        self._counts[refused] += 1
        self._changed.add(refused)

    async def run(self) -> None:
        """Write what changed now and then, until cancelled."""
        while True:
            await asyncio.sleep(self._every_s)
            await self.write()

    async def write(self) -> None:
        """Write what changed; what cannot be written is tried again the next time."""
        changed = {refused: self._counts[refused] for refused in self._changed}
        if not changed:
            return
        try:
            await asyncio.to_thread(self._store.write, self._journal_id, changed)
        except DatabaseUnavailable as away:
            log.warning("refusals_not_written", problem=away.message)
        else:
            # Only now: a cancellation in between must leave them to be written at the close.
            self._changed -= {
                refused for refused, times in changed.items() if self._counts[refused] == times
            }
        self._forget()

    def _forget(self) -> None:
        before = self._clock.now() - KEPT
        for refused in [
            known for known in self._counts if known.hour < before and known not in self._changed
        ]:
            del self._counts[refused]

    async def close(self) -> None:
        """Write what is left."""
        await self.write()
