"""Sends the statements of closed months by their schedules, with retries, and gives one up after a
day, as alerts are.

One worker does it for all. Postgres stores each delivery before its first try, so a killed worker
loses none. A delivery whose record was lost may then arrive twice, with the same id and bytes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Protocol

import structlog

from gateway.domain.alerts.delivery import (
    GIVE_UP_AFTER,
    AlertMessage,
    AttachedFile,
    NotDelivered,
    retry_pause_s,
)
from gateway.domain.reports.schedule import (
    DueStatement,
    Receiver,
    ReceiverKind,
    SentStatement,
    message_of,
)
from gateway.errors import OperatorError
from gateway.services.ports import Clock

log = structlog.get_logger()

LOOK_EVERY_S = 10.0
STAND_BY_S = 30.0  # a worker that does not lead opens a new connection for each question
# Making the statements of a large month reads its events; a leader that lost its job meanwhile must
# not be overtaken.
LONGEST_TRY_S = 600.0
TAKEN_FOR = timedelta(seconds=2 * LONGEST_TRY_S)

# Makes the statements of a closed month; raises `NotDelivered`.
Make = Callable[[DueStatement], Awaitable[Sequence[AttachedFile]]]
# Sends a message to a receiver; returns the refused part in words. Raises `NotDelivered`.
SendTo = Callable[[AlertMessage, Receiver], Awaitable[str | None]]


class StatementStore(Protocol):
    """Stores deliveries; `storage.reports.schedules.StatementDeliveries` implements it.

    Called in threads; each method raises `DatabaseUnavailable`.
    """

    def open(self, *, now: datetime) -> None:
        """Note each closed version of a month that a schedule has not begun to send."""

    def take(self, *, now: datetime, until: datetime) -> DueStatement | None:
        """Return the next delivery, or None. No other worker gets it before `until`."""

    def record(self, sent: SentStatement) -> None:
        """Record the result of a try; a repeated call changes nothing."""


class StatementJob:
    """Sends the statements of closed months.

    `is_leader` returns True in the one worker that does this for all. `draw` returns a number from
    0 to 1. `on_given_up` is called for each delivery that is no longer tried.
    """

    def __init__(
        self,
        *,
        store: StatementStore,
        make: Make,
        senders: Mapping[ReceiverKind, SendTo],
        is_leader: Callable[[], bool],
        clock: Clock,
        draw: Callable[[], float],
        on_given_up: Callable[[], None],
    ) -> None:
        """Make the job; `run` starts it."""
        self._store, self._make, self._senders = store, make, senders
        self._is_leader, self._clock, self._draw = is_leader, clock, draw
        self._on_given_up = on_given_up
        self._unwritten: SentStatement | None = None  # the last try, perhaps not recorded yet

    async def run(self) -> None:
        """Send the due deliveries, round after round, until cancelled."""
        while True:
            leads = await self.run_once()
            await asyncio.sleep(LOOK_EVERY_S if leads else STAND_BY_S)

    async def run_once(self) -> bool:
        """Send each due delivery once. Return False if this worker does not lead, or could not
        finish.
        """
        try:
            await self._record_last()
            if not await asyncio.to_thread(self._is_leader):
                return False
            await asyncio.to_thread(self._store.open, now=self._clock.now())
            while (due := await self._take()) is not None:
                self._unwritten = await self._try(due)
                await self._record_last()
        except OperatorError as problem:
            log.warning("statements_not_sent", problem=problem.message)
            return False
        return True

    async def _take(self) -> DueStatement | None:
        """Claim the next due delivery."""
        now = self._clock.now()
        return await asyncio.to_thread(self._store.take, now=now, until=now + TAKEN_FOR)

    async def _record_last(self) -> None:
        """Record the last try, if that is not done yet: the statements were sent all the same."""
        if self._unwritten is not None:
            await asyncio.to_thread(self._store.record, self._unwritten)
            self._unwritten = None

    async def _try(self, due: DueStatement) -> SentStatement:
        """Send one delivery once, and return the result: delivered, to be retried, or given up."""
        tries = due.tries + 1
        try:
            async with asyncio.timeout(LONGEST_TRY_S):
                message = message_of(due, await self._make(due))
                refused = await self._senders[due.receiver.kind](message, due.receiver)
        except (NotDelivered, TimeoutError) as problem:
            return self._failed(due, tries, str(problem) or "It took longer than ten minutes.")
        say = log.info if refused is None else log.warning
        self._note(say, "statements_sent", due, tries=tries, problem=refused)
        return SentStatement(
            delivery_id=due.delivery_id,
            tries=tries,
            error=refused,
            delivered_at=self._clock.now(),
        )

    def _failed(self, due: DueStatement, tries: int, problem: str) -> SentStatement:
        """Return the record of a failed try: when to try again, or that it is given up."""
        now = self._clock.now()
        is_over = now - due.opened_at >= GIVE_UP_AFTER
        pause_s = retry_pause_s(tries, draw=self._draw())
        say, event = (
            (log.error, "statements_given_up") if is_over else (log.warning, "statements_not_sent")
        )
        self._note(say, event, due, tries=tries, problem=problem)
        if is_over:
            self._on_given_up()
        return SentStatement(
            delivery_id=due.delivery_id,
            tries=tries,
            error=problem,
            next_try_at=None if is_over else now + timedelta(seconds=pause_s),
            given_up_at=now if is_over else None,
        )

    def _note(
        self, say: Callable[..., None], event: str, due: DueStatement, **figures: object
    ) -> None:
        """Write a log line about one delivery."""
        say(
            event,
            schedule=due.schedule,
            month=f"{due.month:%Y-%m}",
            version=due.version,
            to=due.receiver.shown,
            **{name: value for name, value in figures.items() if value is not None},
        )
