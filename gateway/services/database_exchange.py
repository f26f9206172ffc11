"""Runs one service's calls to Postgres in threads of its own, and tracks turns, failures and the
back-off after them; the service decides when to ask.

A question runs in a thread, because storage is synchronous (docs/decisions/0022). Each part has an
exchange of its own, so a slow question delays no other part.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from math import inf
from typing import TypeVar

from gateway.errors import DatabaseUnavailable, TollgateError
from gateway.services.ports import Clock

T = TypeVar("T")
FAILED = "the exchange failed, see the log"


class DatabaseExchange:
    """One service's exchange with Postgres: its threads, one turn at a time, and its back-off.

    `pauses_s` are the first and the longest pause after failed turns; each failure doubles it.
    """

    def __init__(
        self, name: str, clock: Clock, *, threads: int = 1, pauses_s: tuple[float, float] = (1, 1)
    ) -> None:
        """Make an exchange with its own threads, as if Postgres had just answered."""
        self._clock, self._threads = clock, ThreadPoolExecutor(threads, name)
        self._first_pause_s, self._longest_pause_s = pauses_s
        self.pause_s = self._first_pause_s  # before the next turn, if the last one failed
        self.failures = 0  # turns without an answer since the last one
        self._asking_since_s: float | None = None
        self._asked_s = -inf  # when the last question began
        self._away_since_s: float | None = None

    @property
    def asking_s(self) -> float:
        """Return the seconds since the current turn began; 0 between turns."""
        began_s = self._asking_since_s
        return 0.0 if began_s is None else self._clock.monotonic() - began_s

    @property
    def is_away(self) -> bool:
        """Return True if the last turn that ended got no answer."""
        return self.failures > 0

    @property
    def away_s(self) -> float | None:
        """Return the seconds since the first question without an answer; None if Postgres answers.

        A turn may ask for long before it fails: the writer's writes a whole backlog.
        """
        since_s = self._away_since_s
        return None if since_s is None else self._clock.monotonic() - since_s

    def ask(self, work: Callable[..., T], *arguments: object) -> asyncio.Future[T]:
        """Start `work`, a question to Postgres, in a thread. Once begun it runs to its end, also if
        its waiter leaves; before that it leaves with its waiter.
        """
        self._asked_s = self._clock.monotonic()
        return asyncio.get_running_loop().run_in_executor(self._threads, work, *arguments)

    async def ask_within(self, seconds: float, work: Callable[[], T]) -> T:
        """Return the result of `work`, a question to Postgres, if it comes within `seconds`. A
        later result is dropped.

        Raises the errors of `work`, or `DatabaseUnavailable` if it takes longer.
        """
        try:
            async with asyncio.timeout(seconds):
                return await self.ask(work)
        except TimeoutError:
            raise DatabaseUnavailable(f"Postgres has not answered within {seconds:g} s.") from None

    async def turn(
        self,
        exchanging: Awaitable[object],
        *,
        on_failure: Callable[[str], None],
        failures: tuple[type[Exception], ...] = (DatabaseUnavailable,),
    ) -> bool:
        """Await one turn of questions and return True if Postgres answered. Only one turn runs at a
        time.

        `on_failure` gets the problem of any other end, `FAILED` for an error that is none of
        `failures`. That error is then raised again, and whoever catches it logs it.
        """
        began_s = self._asking_since_s = self._clock.monotonic()
        problem: str | None = FAILED
        try:
            await exchanging
            problem = None
        except failures as failed:
            problem = failed.message if isinstance(failed, TollgateError) else str(failed)
        finally:
            self._asking_since_s = None
            if problem is None:
                self.note_answer()
            else:
                self._note_failure(max(began_s, self._asked_s))
                on_failure(problem)
        return problem is None

    def note_answer(self) -> None:
        """Record that Postgres answered, which ends the back-off. A turn of several questions notes
        each answer.
        """
        self.failures, self._away_since_s, self.pause_s = 0, None, self._first_pause_s

    def _note_failure(self, asked_s: float) -> None:
        """Count a turn without an answer, and double the pause before the next one up to its
        maximum.
        """
        self.failures += 1
        if self._away_since_s is None:
            self._away_since_s = asked_s
        else:
            self.pause_s = min(self.pause_s * 2, self._longest_pause_s)

    def close(self) -> None:
        """Take no more questions for Postgres. Running ones end by themselves; waiting ones are
        dropped.
        """
        self._threads.shutdown(wait=False, cancel_futures=True)


async def wait_for(event: asyncio.Event, within_s: float) -> None:
    """Wait until an event is set, for `within_s` seconds at most.

    `asyncio.wait_for` may swallow a cancellation that comes together with the event (Python 3.11).
    """
    with suppress(TimeoutError):
        async with asyncio.timeout(within_s):
            await event.wait()
