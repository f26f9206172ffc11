"""Counts refused requests by hour, team, project, key, route, class, code and rules, and writes the
counts to Postgres every second; it refuses nothing.

Only decisions are counted, never contents.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import Protocol
from uuid import UUID

import structlog

from gateway.domain.routing.refusal_count_key import MOST_CODES, MOST_ROWS, RefusalCountKey
from gateway.errors import DatabaseUnavailable
from gateway.services.ports import Clock

log = structlog.get_logger()

WRITE_EVERY_S = 1.0
# Older counts were written, or Postgres has been away for long and gets them dated then.
KEPT = timedelta(hours=2)
MOST_KINDS = 50_000  # of all teams, so that many teams do not fill the memory


class RefusalTable(Protocol):
    """Where counts end up. Called in a thread."""

    def write(self, journal_id: UUID, counts: Mapping[RefusalCountKey, int]) -> None:
        """Set a journal's counts so far; a repetition changes nothing. Raises
        `DatabaseUnavailable`.
        """


class RefusalFiles(Protocol):
    """The counts that Postgres does not have yet, on this machine's disk. Called in a thread."""

    def keep(self, journal_id: UUID, counts: Mapping[RefusalCountKey, int]) -> None:
        """Replace the counts kept for a journal."""

    def forget(self, journal_id: UUID) -> None:
        """Remove the counts kept for a journal."""

    def left(self) -> Iterable[tuple[UUID, Mapping[RefusalCountKey, int]]]:
        """Yield the counts of each journal that were kept and not removed."""


class Refusals:
    """The counts of refused requests in one worker.

    A kill loses the refusals since the last turn, which is a second. Counts that Postgres does not
    take are on the disk, and the next worker of this machine writes them.
    """

    def __init__(
        self,
        table: RefusalTable,
        clock: Clock,
        *,
        journal_id: UUID,
        files: RefusalFiles,
        every_s: float = WRITE_EVERY_S,
    ) -> None:
        """Start with empty counts of this worker's journal."""
        self._table, self._files, self._clock = table, files, clock
        self._journal_id, self._every_s = journal_id, every_s
        self._counts: Counter[RefusalCountKey] = Counter()
        self._kinds: Counter[tuple[datetime, str]] = Counter()
        self._changed: set[RefusalCountKey] = set()

    def note(
        self,
        team: str,
        code: str,
        *,
        rules: tuple[str, ...],
        route: str = "",
        data_class: str = "",
        project: str = "",
        key_id: str = "",
    ) -> None:
        """Count a refusal, or one in shadow mode. Never awaits.

        A team's kinds beyond `MOST_ROWS` in an hour are counted by their code alone: a caller may
        name projects without end.
        """
        hour = self._clock.now().replace(minute=0, second=0, microsecond=0)
        rule = rules[0] if rules else ""
        refused = RefusalCountKey(
            hour, team, route, data_class, code, rules, project=project, key_id=key_id, rule=rule
        )
        if refused not in self._counts:
            if self._kinds[hour, team] >= MOST_ROWS - MOST_CODES or len(self._counts) >= MOST_KINDS:
                refused = refused.as_other
            else:
                self._kinds[hour, team] += 1
        self._counts[refused] += 1
        self._changed.add(refused)

    async def run(self) -> None:
        """Write the counts of earlier workers, and changed counts periodically, until cancelled."""
        has_adopted = False
        while True:
            has_adopted = has_adopted or await self._adopt()
            await asyncio.sleep(self._every_s)
            await self.write()

    async def write(self) -> None:
        """Write changed counts of refusals; a failed write is retried at the next turn."""
        changed = {refused: self._counts[refused] for refused in self._changed}
        if not changed:
            return
        try:
            await asyncio.to_thread(self._set, changed)
        except DatabaseUnavailable as away:
            log.warning("refusals_not_written", problem=away.message)
        else:
            # Only now: after an earlier cancellation, `close` must still write them.
            self._changed -= {
                refused for refused, times in changed.items() if self._counts[refused] == times
            }
        self._forget()

    def _set(self, changed: Mapping[RefusalCountKey, int]) -> None:
        """Write counts to the disk, then to Postgres; runs in a thread."""
        try:
            self._files.keep(self._journal_id, changed)
        except OSError as full:
            log.warning("refusals_not_kept", problem=str(full))
        self._table.write(self._journal_id, changed)
        self._files.forget(self._journal_id)

    async def _adopt(self) -> bool:
        """Write the counts that earlier workers left on the disk; return False if Postgres is
        away.
        """
        try:
            await asyncio.to_thread(self._write_left)
        except DatabaseUnavailable:
            return False
        return True

    def _write_left(self) -> None:
        """Write each journal's left counts; one that a living worker writes too is the same."""
        for journal_id, counts in self._files.left():
            self._table.write(journal_id, counts)
            self._files.forget(journal_id)

    def _forget(self) -> None:
        """Drop the counts of old hours that Postgres has."""
        before = self._clock.now() - KEPT
        for refused in [
            known for known in self._counts if known.hour < before and known not in self._changed
        ]:
            del self._counts[refused]
        for hour, team in [known for known in self._kinds if known[0] < before]:
            del self._kinds[hour, team]

    async def close(self) -> None:
        """Write the remaining counts of refusals."""
        await self.write()
