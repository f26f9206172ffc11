"""Runs the thread that commits once for all callers waiting at that time; it calls given functions
and touches no file.

It handles futures, not files.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from queue import Empty, SimpleQueue

# Seconds until an append without a waiting caller is synced. At 50 requests a second the next
# intent's sync includes it, so settlements need no syncs of their own.
NOTE_DELAY_S = 0.02
IDLE_S = 1.0  # seconds without work after which `on_idle` is called, and again
STOP_LIMIT_S = 10.0
KEPT_TIMES = 256

Job = Callable[[], None]


class GroupCommit:
    """A thread that runs `commit` repeatedly, each time for all callers that came before the run
    began.

    The first failure ends the thread after `on_failure(error)`. Waiting futures then never resolve:
    after a failed sync the kernel may mark lost pages clean, and a second sync would report them as
    durable.
    """

    def __init__(
        self,
        commit: Job,
        *,
        on_failure: Callable[[OSError], None],
        on_idle: Job,
        on_synced: Callable[[float], None] | None = None,
    ) -> None:
        """Start the commit thread; `on_failure` gets the disk's error, `on_synced` the seconds of
        each commit. `on_idle` is called in the thread, once each `IDLE_S` without work.
        """
        self.has_failed = False
        self._commit = commit
        self._on_idle = on_idle
        self._on_failure = on_failure
        self._on_synced = on_synced or (lambda _: None)
        self._times_s = [0.0] * KEPT_TIMES
        self._count = 0
        self._waiting: list[asyncio.Future[None]] = []
        self._is_noted = False
        self._is_asleep = False
        self._queue: SimpleQueue[list[asyncio.Future[None]] | Job | None] = SimpleQueue()
        # A daemon thread: a disk that hangs must not keep the process from ending.
        self._thread = threading.Thread(target=self._run, name="journal-sync", daemon=True)
        self._thread.start()

    def wait(self) -> asyncio.Future[None]:
        """Return a future of the running loop that resolves after a commit that begins from now on;
        never, if a commit fails.
        """
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()
        if not self._waiting:
            # One wake-up of the thread for all callers in one turn of the loop. A wake-up for each
            # of 64 callers would commit for the first one alone, and the two threads would compete
            # for the interpreter lock.
            loop.call_soon(self._hand_over)
        self._waiting.append(future)
        return future

    def request_commit(self) -> None:
        """Request a commit within `NOTE_DELAY_S`, without waiting for it."""
        self._is_noted = True
        if self._is_asleep:
            self._queue.put(None)

    def after_commit(self, job: Job) -> None:
        """Run a job in the thread, after a commit that begins from now on."""
        self._queue.put(job)

    def fail(self, error: OSError) -> None:
        """Report the disk's failure once; from now on no waiting caller's future resolves."""
        if not self.has_failed:
            self.has_failed = True
            self._on_failure(error)

    def stop(self, limit_s: float) -> bool:
        """Commit once more and end the commit thread.

        Returns False if the disk did not let it end in time.
        """
        self._hand_over()
        self._queue.put(self._end)
        self._thread.join(limit_s)
        return not self._thread.is_alive()

    def times_s(self) -> list[float]:
        """Return the durations of the last commits, shortest first."""
        return sorted(self._times_s[: min(self._count, KEPT_TIMES)])

    def _run(self) -> None:
        """Commit for all waiting callers until the last job or a failure; runs in the commit
        thread.
        """
        is_running = True
        while is_running:
            waiting, jobs = self._gather()
            self._is_noted = False  # before the commit: a later note asks for another commit
            is_running = self._end not in jobs
            try:
                self._commit_timed()
                if self.has_failed:
                    return
                _resolve(waiting)
                for job in jobs:
                    job()
            except OSError as error:
                self.fail(error)
                return
            except Exception as error:  # a defect of ours: callers would wait for ever
                self.fail(OSError(f"the journal's thread ended: {error!r}"))
                raise

    def _commit_timed(self) -> None:
        """Run one commit and record its duration."""
        began_s = time.perf_counter()
        self._commit()
        took_s = time.perf_counter() - began_s
        self._times_s[self._count % KEPT_TIMES] = took_s
        self._count += 1
        self._on_synced(took_s)

    def _gather(self) -> tuple[list[asyncio.Future[None]], list[Job]]:
        """Wait for a caller, a job, or a note that is `NOTE_DELAY_S` old; return all waiting
        callers and jobs.
        """
        items = [self._next()]
        for _ in range(self._queue.qsize()):
            items.append(self._queue.get_nowait())
        waiting = [future for item in items if isinstance(item, list) for future in item]
        return waiting, [item for item in items if item is not None and not isinstance(item, list)]

    def _next(self) -> list[asyncio.Future[None]] | Job | None:
        """Return the queue's next item, or None for a note that is due.

        A note wakes the thread only if it has slept for long.
        """
        with suppress(Empty):
            return self._queue.get(timeout=NOTE_DELAY_S)
        # Set before the note is read: a note made in between is seen here or arrives as an item.
        self._is_asleep = True
        item: list[asyncio.Future[None]] | Job | None = None
        while not self._is_noted:
            try:
                item = self._queue.get(timeout=IDLE_S)
                break
            except Empty:
                self._on_idle()
        self._is_asleep = False
        return item

    def _hand_over(self) -> None:
        """Give the callers that wait now to the commit thread."""
        waiting, self._waiting = self._waiting, []
        self._queue.put(waiting)

    def _end(self) -> None:
        """Do nothing: this job in the queue tells the commit thread to end after it."""


def _resolve(waiting: list[asyncio.Future[None]]) -> None:
    """Resolve all waiting callers' futures with one wake-up of their loop."""
    if waiting:
        with suppress(RuntimeError):  # the loop was closed, so there is no caller left
            waiting[0].get_loop().call_soon_threadsafe(_set_results, waiting)


def _set_results(waiting: list[asyncio.Future[None]]) -> None:
    """Resolve the futures, in their loop's thread, except those of cancelled callers."""
    for future in waiting:
        if not future.done():  # its caller may have been cancelled
            future.set_result(None)
