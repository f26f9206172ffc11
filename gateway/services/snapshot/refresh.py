"""Keeps a worker's snapshot fresh: told of changes by the database, and looking by itself
besides.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TypeVar

import structlog

from gateway.domain.policy.last_snapshot import LastSnapshot, NotUsable, usable_age_s
from gateway.errors import BadUsage, DatabaseUnavailable, OperatorError, PolicyRejected
from gateway.services.ports import Clock
from gateway.services.snapshot.snapshot import (
    Snapshot,
    SnapshotHolder,
    SnapshotShelf,
    SnapshotSource,
)

log = structlog.get_logger()
T = TypeVar("T")

FIRST_LOOK_S = 3.0  # then a start goes on with what was kept
HUNG_AFTER_S = (
    20.0  # Postgres neither answers nor breaks the connection: the next look takes another one
)
RENEW_AFTER_S = 60.0
CONFIRMED_WITHIN_S = 1.0  # a caller waits for it
# One listens, one may be kept waiting by a disk, one says what is served, and two looks may hang.
# No others' work can use these threads up.
_THREADS = 5


def _tell_nobody(version: int) -> None:
    pass


class Refresher:
    """Swaps the snapshot when policy or keys change.

    A failed look keeps the last good one, until it is too old.

    On `shelf` the last good snapshot outlives this process; None: nothing does. `tell` notes in
    Postgres which version is served: only once it is, and apart from serving, which does not wait
    for it.
    """

    def __init__(
        self,
        source: SnapshotSource,
        holder: SnapshotHolder,
        *,
        every_s: float,
        clock: Clock,
        on_swap: Callable[[Snapshot], None],
        shelf: SnapshotShelf | None = None,
        first_look_s: float = FIRST_LOOK_S,
        hung_after_s: float = HUNG_AFTER_S,
        confirmed_within_s: float = CONFIRMED_WITHIN_S,
        tell: Callable[[int], None] = _tell_nobody,
    ) -> None:
        self._tell, self._told = tell, 0
        self._taken = asyncio.Event()
        self._source, self._holder, self._shelf, self._clock = source, holder, shelf, clock
        self._every_s, self._first_look_s, self._hung_after_s = every_s, first_look_s, hung_after_s
        self._on_swap = on_swap
        self._threads = ThreadPoolExecutor(_THREADS, "snapshot")
        self._changed, self._looked, self._ended = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self._confirmed_within_s = confirmed_within_s
        holder.confirm = self.confirm
        self._kept: Snapshot | None = None
        self._kept_s = 0.0
        self._shelf_problem: str | None = None

    async def start(self) -> None:
        """Look for the first time.

        Postgres is not waited for long: what was kept serves where it does not answer.

        Raises `BadUsage` where what is stored there cannot be ours.
        """
        try:
            await self._look(limit_s=self._first_look_s)
        except BadUsage:
            raise
        except OperatorError as problem:
            await self._note(problem)

    async def refresh(self) -> None:
        """Look once."""
        is_done = False
        try:
            await self._look(limit_s=self._hung_after_s)
            is_done = True
        except OperatorError as problem:
            await self._note(problem)
            is_done = True
        finally:
            if not is_done:
                self._holder.problem = "the gateway failed on what it read; its log says how"

    async def confirm(self) -> bool:
        """Have Postgres asked once more; whether it has answered, soon. Needs `loops`.

        One look is for all who wait.
        """
        asked_s, holder = self._clock.monotonic(), self._holder
        self._changed.set()
        with suppress(TimeoutError):
            async with asyncio.timeout(self._confirmed_within_s):
                while (
                    holder.refreshed_s is None or holder.refreshed_s < asked_s
                ) and holder.problem is None:
                    await self._ended.wait()
        return (
            holder.problem is None
            and holder.refreshed_s is not None
            and holder.refreshed_s >= asked_s
        )

    async def keep(self) -> None:
        """Keep the current snapshot where it is another one, or the time it was good at has moved
        on.
        """
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
            if not await self._in_thread(lambda: shelf.write(last)):
                return  # another worker is writing: after the next look again
        except Exception as broken:  # a gateway that cannot keep it serves all the same
            self._say_of_shelf(f"the last snapshot cannot be kept: {broken}")
        else:
            self._shelf_problem = None
        self._kept, self._kept_s = snapshot, self._clock.monotonic()

    def loops(self) -> Mapping[str, Callable[[], Awaitable[None]]]:
        """What goes on until it is cancelled.

        Four loops, so that one which fails holds up none of the others.
        """
        return {
            "policy_and_keys": self._poll,
            "changes": self._listen,
            "last_snapshot": self._keep_on,
            "served_version": self._tell_on,
        }

    async def close(self) -> None:
        """End the threads; the loops have ended."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _listen(self) -> None:
        """Wake the poll when something changed.

        Apart from it: a connection that hangs must not hold it up.
        """
        while True:
            try:
                if await self._in_thread(lambda: self._source.wait(self._every_s)):
                    self._changed.set()
            except OperatorError:
                await asyncio.sleep(self._every_s)

    async def _poll(self) -> None:
        while True:
            # Not `wait_for`: until Python 3.12 it swallows a cancellation that comes together with
            # the result.
            with suppress(TimeoutError):
                async with asyncio.timeout(self._every_s):
                    await self._changed.wait()
            self._changed.clear()
            await self.refresh()
            self._ended.set()  # wakes those who wait now
            self._ended.clear()

    async def _keep_on(self) -> None:
        while True:
            await self._looked.wait()
            self._looked.clear()
            await self.keep()

    async def _tell_on(self) -> None:
        while True:
            await self._taken.wait()
            self._taken.clear()
            await self.tell_version()

    async def tell_version(self) -> None:
        """Say which version is served, unless that was said.

        What cannot be said is said after the next look.
        """
        snapshot = self._holder.current
        if snapshot is None or snapshot.policy.version == self._told:
            return
        version = snapshot.policy.version
        try:
            await self._in_thread(lambda: self._tell(version))
        except OperatorError:
            return  # the look that follows says what is wrong with Postgres
        self._told = version

    async def _look(self, *, limit_s: float) -> None:
        # Before Postgres is asked: what it says may be as old as the question.
        good_at, good_s, before = self._clock.now(), self._clock.monotonic(), self._holder.current
        try:
            async with asyncio.timeout(limit_s):  # what a thread finds after that is dropped
                snapshot = await self._in_thread(lambda: self._source.load(before))
        except TimeoutError:
            raise DatabaseUnavailable(
                f"Postgres has not answered within {limit_s:.0f} s."
            ) from None
        if snapshot is None:
            self._holder.problem = "no policy was applied yet; run: tollgate policy apply FILE"
            return
        self._holder.problem = None
        if self._holder.take(snapshot, good_at=good_at, good_s=good_s):
            self._on_swap(snapshot)
        self._looked.set()
        self._taken.set()

    async def _note(self, problem: OperatorError) -> None:
        if self._holder.problem != problem.message:
            log.warning("snapshot_not_refreshed", problem=problem.message)
        self._holder.problem = problem.message
        if self._holder.current is None and isinstance(problem, DatabaseUnavailable):
            await self._recall()

    async def _recall(self) -> None:
        """Serve from what was kept, for what is left of its time."""
        shelf = self._shelf
        if shelf is None:
            return

        def recalled() -> tuple[LastSnapshot, Snapshot]:
            last = shelf.read()
            return last, self._source.rebuilt(last)

        try:
            last, snapshot = await self._in_thread(recalled)
            age_s = usable_age_s(
                last.good_at, now=self._clock.now(), outage_s=self._holder.outage_s
            )
        except (NotUsable, PolicyRejected) as refused:
            self._say_of_shelf(f"the last snapshot is not used: {refused}")
            return
        self._holder.take(snapshot, good_at=last.good_at, good_s=self._clock.monotonic() - age_s)
        self._on_swap(snapshot)
        log.warning(
            "serving_from_last_snapshot",
            policy_version=last.version,
            age_s=round(age_s),
            left_s=round(self._holder.outage_s - age_s),
        )

    def _say_of_shelf(self, problem: str) -> None:
        """Once: the next tries find the same."""
        if self._shelf_problem != problem:
            log.warning("last_snapshot", problem=problem)
        self._shelf_problem = problem

    def _in_thread(self, work: Callable[[], T]) -> asyncio.Future[T]:
        return asyncio.get_running_loop().run_in_executor(self._threads, work)
