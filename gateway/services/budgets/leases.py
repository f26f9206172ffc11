"""Holds each attempt's maximum cost on this worker's budget leases, replaces it by the true cost,
and exchanges leased money with Postgres in the background.

Everything here runs on the event loop except the exchange with Postgres. One exchange at a time
runs in a thread and covers all leases. After a lost answer the worker repeats the same numbered
ask, and Postgres carries out each number once. So no slice is granted or returned twice
(docs/decisions/0009).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from uuid import UUID

import structlog

from gateway.domain.budgets import messages
from gateway.domain.budgets.budgets import (
    Account,
    AsksRefused,
    Hold,
    LeasesLost,
    SliceAsk,
    SliceGranted,
)
from gateway.domain.budgets.health import MOST_SKEW_S
from gateway.errors import BudgetExhausted, Unavailable
from gateway.services.budgets.lease import LOOK_EVERY_S, BudgetLease, Waiter
from gateway.services.budgets.postgres_time import PostgresTime
from gateway.services.database_exchange import DatabaseExchange, wait_for
from gateway.services.ports import BudgetLeaseStore, Clock

log = structlog.get_logger()

# Seconds for an answer of Postgres: a slow database should not make a caller wait longer. For one
# that is far away it is this many times the shortest of its recent answers.
WAIT_S = 0.05
WAITS_FOR_ANSWERS = 3
RECENT_ANSWERS = 4
LAST_WORD_S = 10.0  # while Postgres is slow, its last refusal counts instead of "no answer"
MOST_WAIT_S = 1.0  # seconds for a slice if Postgres answers but other requests are first
SILENT_AFTER_S = 0.25  # seconds; after that readiness reports it
AWAY_AFTER_S = 1.0  # seconds without an answer; then Postgres counts as away, not slow
PAUSES_S = 0.05, 1.0  # after failed exchanges: the first and the longest


class BudgetLeases:
    """Holds money for attempts on the budget leases of one worker.

    `worker` is its journal: Postgres reclaims the leased money once the journal is drained.
    """

    def __init__(
        self,
        leases: BudgetLeaseStore,
        clock: Clock,
        *,
        worker: UUID,
        lease_s: float,
        wait_s: float = WAIT_S,
    ) -> None:
        """Make the leases of one worker, all empty; `lease_s` is a lease's duration, `wait_s` a
        request's longest wait.
        """
        self._store, self._clock, self._worker = leases, clock, worker
        # The time up to which Postgres has all settled events. The writer knows it, and is made
        # later.
        self.written_until_s: Callable[[], float] = lambda: float("-inf")
        self._lease_s, self._least_wait_s = lease_s, wait_s
        self._answered_in_s: deque[float] = deque(maxlen=RECENT_ANSWERS)
        self._leases: dict[tuple[str, int], BudgetLease] = {}
        self._current: dict[str, BudgetLease] = {}
        self._wanted = asyncio.Event()
        self._turn = 0
        self._unanswered: Sequence[SliceAsk] = ()
        self._refused: set[tuple[str, int]] = set()  # leases whose last ask Postgres refused
        self._last_answer_s = 0.0  # when Postgres last answered, by the event loop's clock
        self._postgres = DatabaseExchange("budget-leases", clock, pauses_s=PAUSES_S)
        self._time = PostgresTime(clock)

    @property
    def away_s(self) -> float | None:
        """Return the seconds since Postgres last answered; None if it answers or was not asked."""
        return self._silent_for(AWAY_AFTER_S)

    @property
    def silent_s(self) -> float | None:
        """Return the seconds that an ask has waited for Postgres. Requests are refused before
        Postgres counts as away.
        """
        return self._silent_for(SILENT_AFTER_S)

    @property
    def clock_skew_s(self) -> float | None:
        """Return the seconds by which this machine's clock is ahead of Postgres's; None if Postgres
        has not stated its time yet.
        """
        return self._time.skew_s

    @property
    def _wait_s(self) -> float:
        """Return the longest wait of a request for Postgres, in seconds. The first one of a worker
        waits for a connection too, and nothing tells yet how far away Postgres is.
        """
        if not self._answered_in_s:
            return MOST_WAIT_S
        shortest_s = min(self._answered_in_s)
        return min(max(self._least_wait_s, WAITS_FOR_ANSWERS * shortest_s), MOST_WAIT_S)

    def _silent_for(self, least_s: float) -> float | None:
        """Return the seconds of Postgres's silence if it is away or silent for more than `least_s`,
        else None.
        """
        if self._postgres.is_away:
            return self._postgres.away_s
        asking_s = self._postgres.asking_s
        return asking_s if asking_s > least_s else None

    async def hold(
        self, accounts: Sequence[Account], amount_nusd: int, *, moment: datetime
    ) -> tuple[Hold, ...]:
        """Hold an amount on the budget of every account, or on none.

        `moment` is the present by this machine's clock. Postgres's time selects the period; the
        moment does until Postgres has stated its time.

        Raises `BudgetExhausted` if Postgres has no room, `Unavailable` if Postgres cannot be asked
        or this machine's clock is wrong.
        """
        now_s = self._clock.monotonic()
        budget_leases = self._leases_at(accounts, moment, now_s)
        deadline_s = 0.0
        while short := [
            budget_lease
            for budget_lease in budget_leases
            if not budget_lease.can_hold(amount_nusd, now_s)
        ]:
            for budget_lease in short:
                if amount_nusd > budget_lease.limit_nusd and budget_lease.refuses(
                    amount_nusd, now_s
                ):
                    raise _exhausted(budget_lease, amount_nusd)
            deadline_s = deadline_s or asyncio.get_running_loop().time() + MOST_WAIT_S
            if not await self._wait_for_answer(short, amount_nusd, deadline_s):
                return self._without_postgres(budget_leases, amount_nusd)
            now_s = self._clock.monotonic()
            # The answer states the time: before the first one the period may have been another.
            budget_leases = self._leases_at(accounts, moment, now_s)
            for budget_lease in short:
                if budget_lease in budget_leases and budget_lease.room_nusd < amount_nusd:
                    raise _exhausted(budget_lease, amount_nusd)
        holds = []
        for budget_lease in budget_leases:
            holds.append(budget_lease.hold(amount_nusd, now_s))
            if budget_lease.is_low:
                self._wanted.set()
        return tuple(holds)

    def settle(self, holds: Iterable[Hold], cost_nusd: int | None) -> None:
        """Replace holds by the true cost. If the cost is unknown (None), the holds stay.

        Never awaits.
        """
        for hold in holds:
            budget_lease = self._leases.get((hold.account_id, hold.starts_s))
            if budget_lease is None or not hold.held_nusd:
                continue  # a soft budget reserves nothing
            taken_nusd = held_nusd = hold.held_nusd
            if cost_nusd is not None and cost_nusd < held_nusd:
                taken_nusd = cost_nusd
            if hold.is_overdraft:
                budget_lease.settle_overdraft(held_nusd, taken_nusd, now_s=self._clock.monotonic())
            else:
                budget_lease.settle(held_nusd, taken_nusd)

    def remaining_nusd(self, holds: Iterable[Hold]) -> int | None:
        """Return the last known room of an attempt's tightest hard budget; None if it has no hard
        budget.
        """
        least_nusd: int | None = None
        for hold in holds:
            budget_lease = self._leases.get((hold.account_id, hold.starts_s))
            if (
                budget_lease is not None
                and budget_lease.is_hard
                and (least_nusd is None or budget_lease.room_nusd < least_nusd)
            ):
                least_nusd = budget_lease.room_nusd
        return least_nusd

    async def run(self) -> None:
        """Exchange money with Postgres until cancelled: ask for the needed part, return the idle
        part.

        Opens the connection at once, so that no caller waits for it, and learns Postgres's time.
        """
        opening = self._postgres.ask(self._store.exchange, self._worker, ())
        opening.add_done_callback(self._note_opening)
        while True:
            await wait_for(self._wanted, LOOK_EVERY_S)
            self._wanted.clear()
            if not await self.exchange():
                await asyncio.sleep(self._postgres.pause_s)

    async def exchange(self) -> bool:
        """Ask Postgres once for all money needed now, or for its time alone if that is old. Return
        False if it gave no answer.

        Only one call runs at a time.
        """
        now_s = self._clock.monotonic()
        asks = self._unanswered or self._drop_done_and_ask(now_s)
        if not asks and not self._time.is_old(now_s):
            return True
        self._unanswered = asks
        is_answered = await self._postgres.turn(
            self._ask(asks, until_s=now_s + self._lease_s), on_failure=self._note_silence
        )
        if any(budget_lease.still_waiting for budget_lease in self._leases.values()):
            self._wanted.set()
        return is_answered

    async def close(self) -> None:
        """Stop asking Postgres; no leased money is returned here.

        The leased money returns to the budget with the journal, and so does any grant still under
        way.
        """
        self._postgres.close()

    def _leases_at(
        self, accounts: Sequence[Account], moment: datetime, now_s: float
    ) -> list[BudgetLease]:
        """Return this worker's lease on each account's present period, by Postgres's time.

        Raises `Unavailable` for a hard budget if this machine's clock is wrong: the events would
        carry a wrong time, and so belong to no certain period.
        """
        moment_s, there_s = moment.timestamp(), self._time.at_s(now_s)
        if there_s is not None:
            if not -MOST_SKEW_S <= moment_s - there_s <= MOST_SKEW_S:
                hard = [account for account in accounts if account.rule.is_hard]
                if hard:
                    raise Unavailable(messages.wrong_clock(hard[0]), retry_after_s=60)
            moment_s = there_s
        return [self._lease(account, moment_s) for account in accounts]

    def _lease(self, account: Account, moment_s: float) -> BudgetLease:
        """Return this worker's lease on an account's period at a moment; make an empty one at its
        first use.
        """
        budget_lease = self._current.get(account.account_id)
        if (
            budget_lease is not None
            and budget_lease.account.rule is account.rule
            and moment_s < budget_lease.ends_s
        ):
            return budget_lease
        span = account.rule.period_at(datetime.fromtimestamp(moment_s, UTC))
        budget_lease = self._leases.get((account.account_id, span.starts_s))
        if budget_lease is None:
            budget_lease = BudgetLease(
                account, span, now_s=self._clock.monotonic(), lease_s=self._lease_s
            )
            self._leases[budget_lease.key] = budget_lease
        budget_lease.use_rule_of(account)
        self._current[account.account_id] = budget_lease
        return budget_lease

    async def _wait_for_answer(
        self, short: Sequence[BudgetLease], amount_nusd: int, deadline_s: float
    ) -> bool:
        """Wait until Postgres answered for the leases that lack the amount. Return False after too
        long a silence.
        """
        loop = asyncio.get_running_loop()
        if loop.time() >= deadline_s or self.away_s is not None:
            return False
        answered: asyncio.Future[bool] = loop.create_future()
        waiter = Waiter(amount_nusd, short, answered)
        now_s = self._clock.monotonic()
        for budget_lease in short:
            budget_lease.waiting.append(waiter)
            # A slice that comes after this wait is kept for the next try: a Postgres that is far
            # away answers late.
            budget_lease.used_s = now_s
        self._wanted.set()
        try:
            while not (await asyncio.wait({answered}, timeout=self._wait_s))[0]:
                if loop.time() >= min(deadline_s, self._last_answer_s + self._wait_s):
                    return False
            return answered.result()
        finally:
            for budget_lease in short:
                if waiter in budget_lease.waiting:
                    budget_lease.waiting.remove(waiter)

    def _notify_waiters(self, budget_lease: BudgetLease, *, is_answered: bool) -> None:
        """Notify the requests that wait on a lease whether Postgres answered for it."""
        for waiter in budget_lease.waiting:
            waiter.note_answer(budget_lease.key, is_answered=is_answered)

    def _without_postgres(
        self, budget_leases: Sequence[BudgetLease], amount_nusd: int
    ) -> tuple[Hold, ...]:
        """Hold an amount while Postgres gives no answer: from the leases' free money, else as an
        overdraft that the policy allows.

        Raises `Unavailable`: the budget's state is unknown, so the request is not refused as
        exhausted.
        """
        now_s, is_away = self._clock.monotonic(), self.away_s is not None
        short = [
            budget_lease
            for budget_lease in budget_leases
            if not budget_lease.can_hold(amount_nusd, now_s)
        ]
        for budget_lease in short:
            budget_lease.note_written(self.written_until_s())
            if (
                is_away
                and budget_lease.overdraft_nusd + amount_nusd
                <= budget_lease.account.rule.overdraft_nusd
            ):
                continue
            if not is_away and budget_lease.refuses(amount_nusd, now_s, within_s=LAST_WORD_S):
                raise _exhausted(budget_lease, amount_nusd)
            raise Unavailable(
                self._refusal_text(budget_lease, is_away=is_away), retry_after_s=2 if is_away else 1
            )
        for budget_lease in short:
            if not budget_lease.overdraft_nusd:
                log.warning("budget_overdraft_begun", budget=budget_lease.account.account_id)
        return tuple(
            budget_lease.overdraw(amount_nusd)
            if budget_lease in short
            else budget_lease.hold(amount_nusd, now_s)
            for budget_lease in budget_leases
        )

    def _refusal_text(self, budget_lease: BudgetLease, *, is_away: bool) -> str:
        """Return the message for a request whose lease lacks money, by the reason: away, refused or
        slow.
        """
        if is_away:
            return messages.away(budget_lease.account)
        if budget_lease.key in self._refused:
            return messages.ask_refused(budget_lease.account)
        return messages.slow(budget_lease.account)

    def _drop_done_and_ask(self, now_s: float) -> Sequence[SliceAsk]:
        """Drop unused leases, and return the next asks of the others to Postgres."""
        there_s, self._turn = self._time.at_s(now_s), self._turn + 1
        now = self._clock.now() if there_s is None else datetime.fromtimestamp(there_s, UTC)
        for budget_lease in [
            budget_lease for budget_lease in self._leases.values() if budget_lease.is_done(now_s)
        ]:
            del self._leases[budget_lease.key]
            self._refused.discard(budget_lease.key)
            if self._current.get(budget_lease.account.account_id) is budget_lease:
                del self._current[budget_lease.account.account_id]
        found = [
            budget_lease.next_ask(now=now, now_s=now_s, turn=self._turn)
            for budget_lease in self._leases.values()
        ]
        return [ask for ask in found if ask is not None]

    async def _ask(self, asks: Sequence[SliceAsk], *, until_s: float) -> None:
        """Send the asks to Postgres and apply its grants.

        Raises `DatabaseUnavailable`; the next exchange then repeats the asks without an answer.

        If Postgres refuses one ask, only that one is dropped: after an error each ask is sent
        alone.
        """
        granted: Sequence[SliceGranted] = ()
        try:
            granted = await self._exchanged(asks)
        except AsksRefused as refused:
            if len(asks) > 1:
                for ask in asks:
                    await self._ask([ask], until_s=until_s)
            else:
                self._drop_ask(asks[0], str(refused))
        except LeasesLost:
            log.error("leases_lost", journal=str(self._worker))
            for budget_lease in self._leases.values():
                budget_lease.lose()
        self._unanswered = [one for one in self._unanswered if one not in asks]
        self._last_answer_s = asyncio.get_running_loop().time()
        self._postgres.note_answer()
        now_s = self._clock.monotonic()
        for slice_ in granted:
            budget_lease = self._leases[slice_.account_id, slice_.starts_s]
            budget_lease.apply_answer(slice_, until_s=until_s, now_s=now_s)
            budget_lease.note_written(self.written_until_s())
            self._refused.discard(budget_lease.key)
        for ask in asks:
            self._notify_waiters(self._lease_of(ask), is_answered=True)

    async def _exchanged(self, asks: Sequence[SliceAsk]) -> Sequence[SliceGranted]:
        """Send the asks to Postgres in a thread, note its time, and return its grants."""
        asked_s = asyncio.get_running_loop().time()
        granted = await self._postgres.ask(self._store.exchange, self._worker, asks)
        self._answered_in_s.append(asyncio.get_running_loop().time() - asked_s)
        self._note_time()
        return granted

    def _note_opening(self, opened: asyncio.Future[Sequence[SliceGranted]]) -> None:
        """Note Postgres's time as the opening exchange stated it. If that failed, Postgres is asked
        again when money is needed.
        """
        if not opened.cancelled() and opened.exception() is None:
            self._note_time()

    def _note_time(self) -> None:
        """Note the time that Postgres stated in the exchange that ended just now."""
        if self._store.last_stated is not None:
            self._time.note(self._store.last_stated)

    def _drop_ask(self, ask: SliceAsk, problem: str) -> None:
        """Undo an ask that Postgres refuses, note its lease as refused, and notify the waiting
        requests.
        """
        budget_lease = self._lease_of(ask)
        log.error(
            "budget_ask_refused",
            budget=ask.account_id,
            problem=problem,
            waiting=len(budget_lease.waiting),
        )
        budget_lease.undo_ask(ask)
        self._refused.add(budget_lease.key)
        self._notify_waiters(budget_lease, is_answered=False)

    def _lease_of(self, ask: SliceAsk) -> BudgetLease:
        """Return this worker's lease that an ask is about."""
        return self._leases[ask.account_id, int(ask.starts_at.timestamp())]

    def _note_silence(self, problem: str) -> None:
        """Log the first failed ask to Postgres, and notify all waiting requests that no answer
        came.
        """
        if self._postgres.failures == 1:
            log.warning("budgets_not_reached", problem=problem)
        for budget_lease in self._leases.values():
            self._notify_waiters(budget_lease, is_answered=False)


def _exhausted(budget_lease: BudgetLease, amount_nusd: int) -> BudgetExhausted:
    """Return the error for a budget without room for the amount, with its figures."""
    error = BudgetExhausted(
        messages.exhausted(
            budget_lease.account,
            budget_lease.span,
            limit_nusd=budget_lease.limit_nusd,
            spent_nusd=budget_lease.spent_nusd,
            held_nusd=budget_lease.leased_nusd,
            hold_nusd=amount_nusd,
        )
    )
    error.rules = (budget_lease.account.account_id,)
    return error
