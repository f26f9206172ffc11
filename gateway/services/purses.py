"""Money at hand: holds on budgets out of what this worker has leased, without asking Postgres for each.

Everything here runs on the event loop, but for the exchange with Postgres: that is one question at a time, in a
thread, for all purses together. An answer that was lost is asked for again in the same words, and Postgres answers a
turn once: so no slice is taken or given back twice (docs/decisions/0009).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import datetime
from uuid import UUID

import structlog

from gateway.domain import budget_words
from gateway.domain.budgets import Account, AsksRefused, Hold, LeasesLost, SliceAsk, SliceGranted
from gateway.errors import BudgetExhausted, DatabaseUnavailable, Unavailable
from gateway.services.ports import BudgetLeases, Clock
from gateway.services.purse import LOOK_EVERY_S, Purse, Waiter

log = structlog.get_logger()

WAIT_S = 0.05  # for a word of Postgres; a slow database is no reason to make a caller wait longer
LAST_WORD_S = 10.0  # while Postgres is slow: its last word says no, rather than that it said nothing
MOST_WAIT_S = 1.0  # for a slice while Postgres answers, but others are before us
SILENT_AFTER_S = 0.25  # readiness says it then
AWAY_AFTER_S = 1.0  # without an answer: then it is not slow but away
FIRST_PAUSE_S, MAX_PAUSE_S = 0.05, 1.0


class Purses:
    """The purses of one worker. `worker` is its journal: Postgres gives back what is leased when that is drained."""

    def __init__(
        self, leases: BudgetLeases, clock: Clock, *, worker: UUID, lease_s: float, wait_s: float = WAIT_S
    ) -> None:
        self._leases, self._clock, self._worker = leases, clock, worker
        # Until when all that this worker settled is in Postgres; the writer knows, and is made later.
        self.written_until_s: Callable[[], float] = lambda: float("-inf")
        self._lease_s, self._wait_s = lease_s, wait_s
        self._purses: dict[tuple[str, int], Purse] = {}
        self._current: dict[str, Purse] = {}
        self._wanted = asyncio.Event()
        self._turn = 0
        self._unanswered: Sequence[SliceAsk] = ()
        self._refused: set[tuple[str, int]] = set()  # purses whose last question Postgres refused
        self._asking_since_s: float | None = None
        self._away_since_s: float | None = None
        self._heard_s = 0.0  # when Postgres last answered, by the event loop's clock
        self._pause_s = FIRST_PAUSE_S
        self._thread = ThreadPoolExecutor(1, "budget-leases")

    @property
    def away_s(self) -> float | None:
        """For how long Postgres has given no answer; None where it answers or was not asked."""
        now_s = self._clock.monotonic()
        if self._away_since_s is not None:
            return now_s - self._away_since_s
        asking_s = now_s - (self._asking_since_s or now_s)
        return asking_s if asking_s > AWAY_AFTER_S else None

    @property
    def silent_s(self) -> float | None:
        """For how long a question has waited for Postgres, sooner than it counts as away: requests are refused."""
        if self._away_since_s is not None:
            return self.away_s
        asking_s = 0.0 if self._asking_since_s is None else self._clock.monotonic() - self._asking_since_s
        return asking_s if asking_s > SILENT_AFTER_S else None

    async def hold(self, accounts: Sequence[Account], amount_nusd: int, *, moment: datetime) -> tuple[Hold, ...]:
        """Reserve an amount on every account, or on none. `moment` says in which period.

        Raises `BudgetExhausted` where Postgres says that there is no room, `Unavailable` where it cannot be asked.
        """
        moment_s, now_s = moment.timestamp(), self._clock.monotonic()
        purses = [self._purse(account, moment, moment_s) for account in accounts]
        deadline_s = 0.0
        while short := [purse for purse in purses if not purse.can_hold(amount_nusd, now_s)]:
            for purse in short:
                if amount_nusd > purse.limit_nusd and purse.refuses(amount_nusd, now_s):
                    raise _exhausted(purse, amount_nusd)
            deadline_s = deadline_s or asyncio.get_running_loop().time() + MOST_WAIT_S
            if not await self._answered(short, amount_nusd, deadline_s):
                return self._without_postgres(purses, amount_nusd)
            for purse in short:
                if purse.room_nusd < amount_nusd:
                    raise _exhausted(purse, amount_nusd)
            now_s = self._clock.monotonic()
        holds = []
        for purse in purses:
            holds.append(purse.hold(amount_nusd, now_s))
            if purse.is_low:
                self._wanted.set()
        return tuple(holds)

    def settle(self, holds: Iterable[Hold], cost_nusd: int | None) -> None:
        """Replace holds by the true cost, None where it is unknown: then the hold stands. No await."""
        for hold in holds:
            purse = self._purses.get((hold.account_id, hold.starts_s))
            if purse is None or not hold.held_nusd:
                continue  # nothing is reserved of a soft budget
            taken_nusd = held_nusd = hold.held_nusd
            if cost_nusd is not None and cost_nusd < held_nusd:
                taken_nusd = cost_nusd
            if hold.is_overdraft:
                purse.settle_overdraft(held_nusd, taken_nusd, now_s=self._clock.monotonic())
            else:
                purse.settle(held_nusd, taken_nusd)

    def remaining_nusd(self, holds: Iterable[Hold]) -> int | None:
        """What the tightest hard budget of an attempt has room for, as last known; None where it has none."""
        least_nusd: int | None = None
        for hold in holds:
            purse = self._purses.get((hold.account_id, hold.starts_s))
            if purse is not None and purse.is_hard and (least_nusd is None or purse.room_nusd < least_nusd):
                least_nusd = purse.room_nusd
        return least_nusd

    async def run(self) -> None:
        """Ask Postgres for what is needed, and give back what is idle, until cancelled.

        The connection is opened at once, so that no caller waits for that.
        """
        loop = asyncio.get_running_loop()
        opening = loop.run_in_executor(self._thread, self._leases.exchange, self._worker, ())
        opening.add_done_callback(lambda opened: opened.exception())  # asked again when something is wanted
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOK_EVERY_S):  # `wait_for` would swallow a cancellation (Python 3.11)
                    await self._wanted.wait()
            self._wanted.clear()
            if not await self.exchange():
                await asyncio.sleep(self._pause_s)
                self._pause_s = min(self._pause_s * 2, MAX_PAUSE_S)

    async def exchange(self) -> bool:
        """Ask once for all that is wanted now, one call at a time; False where Postgres gave no answer."""
        now_s = self._clock.monotonic()
        asks = self._unanswered or self._asks(now_s)
        if not asks:
            return True
        self._unanswered, self._asking_since_s = asks, now_s
        is_answered = False
        try:
            await self._ask(asks, until_s=now_s + self._lease_s)
            is_answered = True
        except DatabaseUnavailable as problem:
            self._note_away(now_s, problem.message)
        finally:
            self._asking_since_s = None
            if not is_answered:
                self._note_away(now_s, "the exchange failed, see the log")
                for purse in self._purses.values():
                    self._tell(purse, is_answered=False)
        if any(purse.still_waiting for purse in self._purses.values()):
            self._wanted.set()
        return is_answered

    async def close(self) -> None:
        """End. What is still leased comes back with the journal, and so does what a question under way is granted."""
        self._thread.shutdown(wait=False)

    def _purse(self, account: Account, moment: datetime, moment_s: float) -> Purse:
        purse = self._current.get(account.account_id)
        if purse is not None and purse.account.rule is account.rule and moment_s < purse.ends_s:
            return purse
        span = account.rule.period_at(moment)
        purse = self._purses.get((account.account_id, span.starts_s))
        if purse is None:
            purse = Purse(account, span, now_s=self._clock.monotonic(), lease_s=self._lease_s)
            self._purses[purse.key] = purse
        purse.use_rule_of(account)
        self._current[account.account_id] = purse
        return purse

    async def _answered(self, short: Sequence[Purse], amount_nusd: int, deadline_s: float) -> bool:
        """Wait until Postgres was asked for so much; False where it has been silent for too long."""
        loop = asyncio.get_running_loop()
        if loop.time() >= deadline_s or self.away_s is not None:
            return False
        answered: asyncio.Future[bool] = loop.create_future()
        waiter = Waiter(amount_nusd, short, answered)
        for purse in short:
            purse.waiting.append(waiter)
        self._wanted.set()
        try:
            while not (await asyncio.wait({answered}, timeout=self._wait_s))[0]:
                if loop.time() >= min(deadline_s, self._heard_s + self._wait_s):
                    return False
            return answered.result()
        finally:
            for purse in short:
                if waiter in purse.waiting:
                    purse.waiting.remove(waiter)

    def _tell(self, purse: Purse, *, is_answered: bool) -> None:
        """Tell those who wait whether Postgres has spoken of a purse."""
        for waiter in purse.waiting:
            waiter.hear(purse.key, is_answered=is_answered)

    def _without_postgres(self, purses: Sequence[Purse], amount_nusd: int) -> tuple[Hold, ...]:
        """Hold what can be held without an answer. Raises `Unavailable`: we cannot know, so we do not say no."""
        now_s, is_away = self._clock.monotonic(), self.away_s is not None
        short = [purse for purse in purses if not purse.can_hold(amount_nusd, now_s)]
        for purse in short:
            purse.note_written(self.written_until_s())
            if is_away and purse.overdraft_nusd + amount_nusd <= purse.account.rule.overdraft_nusd:
                continue
            if not is_away and purse.refuses(amount_nusd, now_s, within_s=LAST_WORD_S):
                raise _exhausted(purse, amount_nusd)
            raise Unavailable(self._why(purse, is_away=is_away), retry_after_s=2 if is_away else 1)
        for purse in short:
            if not purse.overdraft_nusd:
                log.warning("budget_overdraft_begun", budget=purse.account.account_id)
        return tuple(
            purse.overdraw(amount_nusd) if purse in short else purse.hold(amount_nusd, now_s) for purse in purses
        )

    def _why(self, purse: Purse, *, is_away: bool) -> str:
        if is_away:
            return budget_words.away(purse.account)
        if purse.key in self._refused:
            return budget_words.refused(purse.account)
        return budget_words.slow(purse.account, self._wait_s)

    def _asks(self, now_s: float) -> Sequence[SliceAsk]:
        now, self._turn = self._clock.now(), self._turn + 1
        for purse in [purse for purse in self._purses.values() if purse.is_done(now_s)]:
            del self._purses[purse.key]
            self._refused.discard(purse.key)
            if self._current.get(purse.account.account_id) is purse:
                del self._current[purse.account.account_id]
        found = [purse.ask(now=now, now_s=now_s, turn=self._turn) for purse in self._purses.values()]
        return [ask for ask in found if ask is not None]

    async def _ask(self, asks: Sequence[SliceAsk], *, until_s: float) -> None:
        """Ask Postgres and take what it grants. Raises `DatabaseUnavailable`: then the same is asked again.

        A question that Postgres refuses is dropped, and nothing but it: of several each is asked alone.
        """
        granted: Sequence[SliceGranted] = ()
        try:
            granted = await self._exchanged(asks)
        except AsksRefused as refused:
            if len(asks) > 1:
                for ask in asks:
                    await self._ask([ask], until_s=until_s)
            else:
                self._drop(asks[0], str(refused))
        except LeasesLost:
            log.error("leases_lost", journal=str(self._worker))
            for purse in self._purses.values():
                purse.lose()
        self._unanswered = ()
        self._heard_s = asyncio.get_running_loop().time()
        self._away_since_s, self._pause_s = None, FIRST_PAUSE_S
        now_s = self._clock.monotonic()
        for slice_ in granted:
            purse = self._purses[slice_.account_id, slice_.starts_s]
            purse.take(slice_, until_s=until_s, now_s=now_s)
            purse.note_written(self.written_until_s())
            self._refused.discard(purse.key)
        for ask in asks:
            self._tell(self._purse_of(ask), is_answered=True)

    async def _exchanged(self, asks: Sequence[SliceAsk]) -> Sequence[SliceGranted]:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._thread, self._leases.exchange, self._worker, asks)

    def _drop(self, ask: SliceAsk, problem: str) -> None:
        """Forget a question that Postgres refuses, and tell those who wait for it."""
        purse = self._purse_of(ask)
        log.error("budget_ask_refused", budget=ask.account_id, problem=problem, waiting=len(purse.waiting))
        purse.take_back(ask)
        self._refused.add(purse.key)
        self._tell(purse, is_answered=False)

    def _purse_of(self, ask: SliceAsk) -> Purse:
        return self._purses[ask.account_id, int(ask.starts_at.timestamp())]

    def _note_away(self, now_s: float, problem: str) -> None:
        if self._away_since_s is None:
            self._away_since_s = now_s
            log.warning("budgets_not_reached", problem=problem)


def _exhausted(purse: Purse, amount_nusd: int) -> BudgetExhausted:
    return BudgetExhausted(
        budget_words.exhausted(
            purse.account, purse.span, limit_nusd=purse.limit_nusd, spent_nusd=purse.spent_nusd,
            held_nusd=purse.leased_nusd, hold_nusd=amount_nusd,
        )
    )  # fmt: skip
