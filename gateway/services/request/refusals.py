"""Counts refused requests by hour, team, route, class, code and rules, and writes the counts to
Postgres every two seconds; it refuses nothing.

Only decisions are counted, never contents.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping
from datetime import timedelta
from uuid import UUID

import structlog

from gateway.domain.routing.decide import Decision
from gateway.domain.routing.refusal_count_key import RefusalCountKey
from gateway.errors import DatabaseUnavailable
from gateway.services.ports import Clock

log = structlog.get_logger()

WRITE_EVERY_S = 2.0
KEPT = timedelta(
    hours=2
)  # older counts were written, or Postgres has been away for long and gets them dated then
MOST_KINDS = 10_000


class Refusals:
    """The counts of refused requests in one worker.

    `store` sets a journal's counts so far. It is called in a thread and raises
    `DatabaseUnavailable`. Refusals in the last two seconds before a crash are not counted.
    """

    def __init__(
        self,
        store: Callable[[UUID, Mapping[RefusalCountKey, int]], None],
        clock: Clock,
        *,
        journal_id: UUID,
        every_s: float = WRITE_EVERY_S,
    ) -> None:
        """Start with empty counts of this worker's journal."""
        self._store, self._clock = store, clock
        self._journal_id, self._every_s = journal_id, every_s
        self._counts: Counter[RefusalCountKey] = Counter()
        self._changed: set[RefusalCountKey] = set()

    def note(self, decision: Decision, code: str, *, rules: tuple[str, ...] | None = None) -> None:
        """Count a refusal, or one in shadow mode, by the decision's rules unless others are
        given. Never awaits.
        """
        hour = self._clock.now().replace(minute=0, second=0, microsecond=0)
        team, route = decision.team.name, decision.route.name
        named = decision.denying_rules if rules is None else rules
        refused = RefusalCountKey(hour, team, route, decision.class_label, code, named)
        if refused not in self._counts and len(self._counts) >= MOST_KINDS:
            return
        self._counts[refused] += 1
        self._changed.add(refused)

    async def run(self) -> None:
        """Write changed counts to Postgres periodically, until cancelled."""
        while True:
            await asyncio.sleep(self._every_s)
            await self.write()

    async def write(self) -> None:
        """Write changed counts of refusals; a failed write is retried at the next turn."""
        changed = {refused: self._counts[refused] for refused in self._changed}
        if not changed:
            return
        try:
            await asyncio.to_thread(self._store, self._journal_id, changed)
        except DatabaseUnavailable as away:
            log.warning("refusals_not_written", problem=away.message)
        else:
            # Only now: after an earlier cancellation, `close` must still write them.
            self._changed -= {
                refused for refused, times in changed.items() if self._counts[refused] == times
            }
        self._forget()

    def _forget(self) -> None:
        """Drop the counts of old hours that Postgres has."""
        before = self._clock.now() - KEPT
        for refused in [
            known for known in self._counts if known.hour < before and known not in self._changed
        ]:
            del self._counts[refused]

    async def close(self) -> None:
        """Write the remaining counts of refusals."""
        await self.write()
