"""Replaces this worker's snapshot when Postgres notifies of a change, and every few seconds; keeps
a copy on disk, and reports the served policy version.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress

import structlog

from gateway.domain.policy.last_snapshot import LastSnapshot, NotUsable, usable_age_s
from gateway.errors import BadUsage, DatabaseUnavailable, OperatorError, PolicyRejected
from gateway.services.database_exchange import DatabaseExchange, wait_for
from gateway.services.ports import Clock
from gateway.services.snapshot.snapshot import (
    Snapshot,
    SnapshotHolder,
    SnapshotShelf,
)
from gateway.services.snapshot.source import StoredSnapshots

log = structlog.get_logger()

FIRST_LOOK_S = 3.0  # seconds; then a start continues with the stored snapshot
# Seconds without an answer or a broken connection; the next look opens a new connection.
HUNG_AFTER_S = 20.0
RENEW_AFTER_S = 60.0
CONFIRMED_WITHIN_S = 1.0  # seconds that a caller waits for it
# The least time between two looks that callers ask for, which bounds the queries during a flood of
# invented keys.
CONFIRMED_APART_S = 0.2
# One thread listens, one may wait for a slow disk, one reports the served version, and two looks
# may hang. No other work can use up these threads.
_THREADS = 5


def _ignore_version(version: int) -> None:
    """Do nothing with the served version: the default of a worker that reports none."""


class Refresher:
    """Replaces a worker's snapshot when policy or keys change in Postgres.

    If a look fails, the last good snapshot stays until it is too old.

    `shelf` keeps the last good snapshot across restarts; None keeps nothing. `report` records the
    served version in Postgres, after serving began and without delaying it.
    """

    def __init__(
        self,
        source: StoredSnapshots,
        holder: SnapshotHolder,
        *,
        every_s: float,
        clock: Clock,
        on_swap: Callable[[Snapshot], None],
        shelf: SnapshotShelf | None = None,
        first_look_s: float = FIRST_LOOK_S,
        hung_after_s: float = HUNG_AFTER_S,
        confirmed_within_s: float = CONFIRMED_WITHIN_S,
        report: Callable[[int], None] = _ignore_version,
    ) -> None:
        """Make the job; `start` loads the first snapshot, and `loops` has the background loops."""
        self._report, self._reported = report, 0
        self._taken = asyncio.Event()
        self._source, self._holder, self._shelf, self._clock = source, holder, shelf, clock
        self._every_s, self._first_look_s, self._hung_after_s = every_s, first_look_s, hung_after_s
        self._on_swap = on_swap
        self._postgres = DatabaseExchange("snapshot", clock, threads=_THREADS)
        self._changed, self._looked, self._ended = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self._confirmed_within_s = confirmed_within_s
        self._asked_s = -math.inf  # when the latest look began
        holder.confirm = self.confirm
        self._kept: Snapshot | None = None
        self._kept_s = 0.0
        self._shelf_problem: str | None = None
        self._logged = ""  # the latest problem with Postgres that was logged

    async def start(self) -> None:
        """Load the first snapshot of policy and keys, from Postgres or, if it does not answer soon,
        from the stored copy.

        If Postgres does not answer soon, the stored snapshot serves.

        Raises `BadUsage` if the stored data cannot belong to this gateway.
        """
        try:
            await self._load_snapshot(limit_s=self._first_look_s)
        except BadUsage:
            raise
        except OperatorError as problem:
            await self._note_problem(problem)

    async def refresh(self) -> None:
        """Read policy and keys from Postgres once, and replace the snapshot if they changed."""
        is_done = False
        try:
            await self._load_snapshot(limit_s=self._hung_after_s)
            is_done = True
        except OperatorError as problem:
            await self._note_problem(problem)
            is_done = True
        finally:
            if not is_done:
                self._holder.problem = (
                    "the gateway failed on the data that it read; its log has the error"
                )

    async def confirm(self) -> bool:
        """Ask Postgres once more whether the snapshot is current; return True if it answers soon.
        Needs `loops`.

        All waiting requests share one look, which begins after they asked: an earlier one may have
        missed a key that was made since.
        """
        asked_s, holder = self._clock.monotonic(), self._holder

        def is_answered() -> bool:
            return holder.refreshed_s is not None and holder.refreshed_s >= asked_s

        await asyncio.sleep(CONFIRMED_APART_S - holder.age_s())
        if self._asked_s < asked_s:
            self._changed.set()
        with suppress(TimeoutError):
            async with asyncio.timeout(self._confirmed_within_s):
                while not is_answered() and holder.problem is None:
                    await self._ended.wait()
        return holder.problem is None and is_answered()

    async def keep(self) -> None:
        """Store the current snapshot on disk if it changed, or the copy is `RENEW_AFTER_S` old."""
        shelf, snapshot, good_at = self._shelf, self._holder.current, self._holder.refreshed_at
        if shelf is None or snapshot is None or good_at is None:
            return
        if snapshot is self._kept and self._clock.monotonic() - self._kept_s < RENEW_AFTER_S:
            return
        last = LastSnapshot(
            good_at=good_at,
            version=snapshot.policy.version,
            sha256=snapshot.policy.sha256,
            document=snapshot.document,
            prices=snapshot.prices,
            keys=tuple(snapshot.keys.values()),
            ejected=snapshot.ejected,
        )
        try:
            if not await self._postgres.ask(lambda: shelf.write(last)):
                return  # another worker is writing; retried after the next look
        except Exception as broken:  # a gateway that cannot store it still serves
            self._log_shelf_problem(f"the last snapshot cannot be kept: {broken}")
        else:
            self._shelf_problem = None
        self._kept, self._kept_s = snapshot, self._clock.monotonic()

    def loops(self) -> Mapping[str, Callable[[], Awaitable[None]]]:
        """Return the background loops of the refresh by name; each runs until cancelled.

        There are four, so that a failing one delays none of the others.
        """
        return {
            "policy_and_keys": self._poll,
            "changes": self._listen,
            "last_snapshot": self._save_snapshots,
            "served_version": self._report_versions,
        }

    async def close(self) -> None:
        """Stop the threads of the refresh; its loops have ended."""
        self._postgres.close()

    async def _listen(self) -> None:
        """Wait for Postgres's notifications of changes, and wake the poll at each.

        A separate loop, because a hanging connection must not delay the poll.
        """
        while True:
            try:
                if await self._postgres.ask(lambda: self._source.wait(self._every_s)):
                    self._changed.set()
            except OperatorError:
                await asyncio.sleep(self._every_s)

    async def _poll(self) -> None:
        """Refresh the snapshot at each change, and at least every `every_s` seconds."""
        while True:
            await wait_for(self._changed, self._every_s)
            self._changed.clear()
            await self.refresh()
            self._ended.set()  # wakes the current waiters
            self._ended.clear()

    async def _save_snapshots(self) -> None:
        """Store the snapshot on disk after each refresh."""
        while True:
            await self._looked.wait()
            self._looked.clear()
            await self.keep()

    async def _report_versions(self) -> None:
        """Record the served policy version in Postgres whenever a new snapshot was taken."""
        while True:
            await self._taken.wait()
            self._taken.clear()
            await self.report_version()

    async def report_version(self) -> None:
        """Record the served version in Postgres unless it is recorded already.

        After a failure the next look retries.
        """
        snapshot = self._holder.current
        if snapshot is None or snapshot.policy.version == self._reported:
            return
        version = snapshot.policy.version
        try:
            await self._postgres.ask(lambda: self._report(version))
        except OperatorError:
            return  # the following look reports the problem with Postgres
        self._reported = version

    async def _load_snapshot(self, *, limit_s: float) -> None:
        """Read policy and keys from Postgres once within `limit_s`, and replace the snapshot if
        they changed.
        """
        # Read before Postgres is asked: the answer may be as old as the question.
        good_at, good_s, before = self._clock.now(), self._clock.monotonic(), self._holder.current
        self._asked_s = good_s
        snapshot = await self._postgres.ask_within(limit_s, lambda: self._source.load(before))
        if snapshot is None:
            self._holder.problem = "no policy was applied yet; run: tollgate policy apply FILE"
            return
        self._holder.problem = None
        if self._holder.take(snapshot, good_at=good_at, good_s=good_s):
            self._on_swap(snapshot)
        self._looked.set()
        self._taken.set()

    async def _note_problem(self, problem: OperatorError) -> None:
        """Record why a refresh failed; without any snapshot, load the last stored one."""
        if self._holder.problem is None or self._logged != problem.message:
            log.warning("snapshot_not_refreshed", problem=problem.message)
        self._logged = problem.message
        self._holder.problem = problem.for_callers
        if self._holder.current is None and isinstance(problem, DatabaseUnavailable):
            await self._load_last_snapshot()

    async def _load_last_snapshot(self) -> None:
        """Serve from the snapshot stored on disk for the rest of its lifetime."""
        shelf = self._shelf
        if shelf is None:
            return

        def recalled() -> tuple[LastSnapshot, Snapshot]:
            """Read the stored snapshot and rebuild it; runs in a thread."""
            last = shelf.read()
            return last, self._source.rebuilt(last)

        try:
            last, snapshot = await self._postgres.ask(recalled)
            age_s = usable_age_s(
                last.good_at, now=self._clock.now(), outage_s=self._holder.outage_s
            )
        except (NotUsable, PolicyRejected) as refused:
            self._log_shelf_problem(f"the last snapshot is not used: {refused}")
            return
        self._holder.take(snapshot, good_at=last.good_at, good_s=self._clock.monotonic() - age_s)
        self._on_swap(snapshot)
        log.warning(
            "serving_from_last_snapshot",
            policy_version=last.version,
            age_s=round(age_s),
            left_s=round(self._holder.outage_s - age_s),
        )

    def _log_shelf_problem(self, problem: str) -> None:
        """Log a problem with the stored snapshot once; later tries would repeat it."""
        if self._shelf_problem != problem:
            log.warning("last_snapshot", problem=problem)
        self._shelf_problem = problem
