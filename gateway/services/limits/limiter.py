"""Admits or refuses requests by rate and concurrency limits that all workers share: from units held
here, else by asking Postgres, else from its own share.

All waiting requests share one exchange, and a worker runs one exchange at a time. If Postgres is
away or slow, the worker continues with its own share of each limit. A slow database is never a
reason to refuse a request.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol
from uuid import UUID

import structlog
from msgspec import Struct

from gateway.domain.budgets.limits import LimitAnswer, LimitAsk, LimitedBy, Limits, LimitUnit
from gateway.errors import RequestError
from gateway.services.database_exchange import DatabaseExchange, wait_for
from gateway.services.limits.limit_refusals import never_fits, refusal
from gateway.services.limits.limit_units import (
    GIVE_BACK_AFTER_S,
    LimitWindow,
    Pool,
    WorkerLimit,
    grouped,
    tick_at,
)
from gateway.services.ports import Clock

log = structlog.get_logger()

WAIT_S = 0.05  # seconds that a request waits for Postgres at most
SPACING_S = 0.02  # seconds between two exchanges, so that many requests share one
RETRY_S = 0.5
LATE_RETRY_S = 1.0
HEARTBEAT_S = 5.0  # seconds; Postgres counts the workers that reported in the last 15 s
FORGET_AFTER_S = 150.0
FORGET_EVERY_S = 5.0
TURNS = 8  # turns of the event loop between a thread's end and its waiters
MOST_KNOWN = 20_000  # bounds memory: callers choose the names of projects
MOST_ASKS = 500  # in one exchange


class LimitStore(Protocol):
    """The limits' windows in Postgres, which all workers share.

    `storage.budgets.limits.LimitWindows` implements it. `exchange` is called in a thread.
    """

    def exchange(self, worker: UUID, number: int, asks: Sequence[LimitAsk]) -> LimitAnswer:
        """Send all of a worker's asks to Postgres at once; repeating a number changes nothing.

        Raises `DatabaseUnavailable`.
        """

    def close(self) -> None:
        """Close the connection to Postgres."""


class LimitUsage(Struct, frozen=True, kw_only=True, gc=False):
    """The last known use of one limit. Some of the used units return in `reset_s` seconds."""

    limit: int
    remaining: int
    reset_s: float


class LimitStatus(Struct, frozen=True, kw_only=True, gc=False):
    """The use of each limit for the response headers; None for a measure without a limit."""

    limit_id: str
    requests: LimitUsage | None
    tokens: LimitUsage | None


Claim = list[tuple[Pool, int]]


class LimitGrant:
    """The part of the limits granted to one request. Settle it once, however the request ends."""

    __slots__ = ("_limiter", "_taken", "_taken_s", "_tokens", "is_alone")

    def __init__(
        self,
        limiter: Limiter,
        taken: list[tuple[Pool, int]],
        *,
        taken_s: float,
        tokens: int,
        is_alone: bool = False,
    ) -> None:
        """Record a grant; `is_alone` if Postgres was not asked or did not answer in time."""
        self._limiter, self._taken, self._taken_s, self._tokens = limiter, taken, taken_s, tokens
        self.is_alone = is_alone

    def settle(self, used_tokens: int | None) -> None:
        """Correct the reserved tokens to the used ones (if unknown, None, all reserved tokens
        count), and free the slot.

        A second call does nothing.
        """
        taken, self._taken = self._taken, []
        unused = 0 if used_tokens is None else self._tokens - used_tokens
        if taken:
            self._limiter._settle(taken, taken_s=self._taken_s, unused=unused)


class _Waiter:
    """A request that waits for units from Postgres."""

    __slots__ = ("claim", "future", "is_asked", "tokens")

    def __init__(self, claim: Claim, tokens: int, future: asyncio.Future[LimitGrant]) -> None:
        """Record a waiting request; `future` gets its grant or its refusal."""
        self.claim, self.tokens, self.future = claim, tokens, future
        self.is_asked = False


class Limiter:
    """One worker's limiter. It lives on the event loop, and `run` must be running.

    Finish one `exchange` before the first request: until then a worker assumes that it is alone.
    """

    def __init__(
        self, store: LimitStore, clock: Clock, *, worker: UUID, wait_s: float = WAIT_S
    ) -> None:
        """Make a limiter; `worker` is a new name at each start, `wait_s` bounds a request's wait
        for Postgres.
        """
        self._store, self._clock, self._worker, self._wait_s = store, clock, worker, wait_s
        self._known: dict[str, WorkerLimit] = {}
        self._listed: list[Pool] = []  # pools with held units or corrections to send
        self._waiters: dict[_Waiter, None] = {}
        self.admitted_alone = 0  # requests admitted without Postgres since the start
        self._workers = 1
        self._offset_ms: float | None = None  # offset of the database's clock to ours
        self._number = 1  # of the next exchange, or of one still without an answer
        self._forgot_s = clock.monotonic()
        self._began_s = clock.monotonic() - HEARTBEAT_S
        self._due_s = clock.monotonic()
        self._stirred = asyncio.Event()
        self._postgres = DatabaseExchange("limiter", clock)

    @property
    def is_alone(self) -> bool:
        """Return True while Postgres does not answer; the worker then keeps to its own share of
        each limit.
        """
        return self._postgres.is_away or self._is_late

    # ---- admit

    async def admit(
        self, limited: Sequence[LimitedBy], tokens: int, *, takes_slots: bool = True
    ) -> LimitGrant:
        """Take one request, `tokens` tokens and one slot of every applicable limit: all of them or
        none.

        Raises `RateLimited` or `ConcurrencyLimited`. Waits only if this worker holds too few units.
        """
        now_s = self._clock.monotonic()
        claim = self._claim(limited, tokens, now_s, takes_slots=takes_slots)
        for pool, units in claim:
            if pool.free - pool.waiting < units:
                break
        else:
            return self._grant_held(claim, tokens, now_s)
        if self._is_late:
            await self._yield_until(lambda: not self._is_late)
        if self.is_alone:
            return self._take_alone(claim, tokens, now_s)
        for pool, units in claim:
            if pool.refuses(units, now_s):
                raise _refusal(pool, units, now_s)
        return await self._wait_for_grant(claim, tokens)

    async def admit_read(self, limited: Sequence[LimitedBy]) -> LimitGrant:
        """Take one request of every request limit, for reads that are answered here and not
        forwarded.

        Raises `RateLimited`. Reads take no slots: a team whose streams use all slots can still see
        its figures.
        """
        return await self.admit(limited, 0, takes_slots=False)

    def standing(self, limited: Sequence[LimitedBy]) -> tuple[LimitStatus, ...]:
        """Return the last known use of each limit, without the use by other workers since then."""
        now_s = self._clock.monotonic()
        return tuple(self._status_of(limit_id, limits, now_s) for limit_id, limits in limited)

    def _status_of(self, limit_id: str, limits: Limits, now_s: float) -> LimitStatus:
        """Return one limit's last known use, for response headers."""
        known = self._known.get(limit_id) or WorkerLimit(limit_id, limits)
        return LimitStatus(
            limit_id=limit_id,
            requests=_figures(known.requests, limits.requests_per_minute, now_s),
            tokens=_figures(known.tokens, limits.tokens_per_minute, now_s),
        )

    def _claim(
        self, limited: Sequence[LimitedBy], tokens: int, now_s: float, *, takes_slots: bool
    ) -> Claim:
        """Return the windows and slots that a request needs, with its units of each. Raises
        `RateLimited` if it can never fit.
        """
        claim: Claim = []
        for limit_id, limits in limited:
            known = self._known.get(limit_id)
            if known is None:
                if len(self._known) >= MOST_KNOWN:
                    self._forget(now_s, unused_s=0)
                known = self._known[limit_id] = WorkerLimit(limit_id, limits)
            elif known.limits is not limits and known.limits != limits:
                known.use_figures(limits)
            known.used_s = now_s
            if limits.requests_per_minute is not None:
                claim.append((known.requests, 1))
            if limits.tokens_per_minute is not None and tokens > 0:
                if tokens > limits.tokens_per_minute:
                    raise never_fits(limit_id, limits.tokens_per_minute, tokens)
                claim.append((known.tokens, tokens))
            if limits.concurrent is not None and takes_slots:
                claim.append((known.slots, 1))
        return claim

    def _grant_held(self, claim: Claim, tokens: int, now_s: float) -> LimitGrant:
        """Grant a request from the units that this worker holds. The caller has checked that they
        suffice.
        """
        taken = []
        for pool, units in claim:
            taken.append((pool, pool.take(units, now_s)))
            if not pool.is_wanted and pool.is_low:
                pool.is_wanted = True
                self._list_for_ask(pool)
                self._ask_by(max(now_s, self._began_s + SPACING_S))
        return LimitGrant(self, taken, taken_s=now_s, tokens=tokens)

    def _take_alone(self, claim: Claim, tokens: int, now_s: float) -> LimitGrant:
        """While Postgres is away or late, take the claim from this worker's own share of each
        limit. Postgres learns of it later.
        """
        for pool, units in claim:
            if not pool.can_take_alone(units, now_s=now_s, workers=self._workers):
                wait_s = pool.share_ready_s(units, now_s=now_s, workers=self._workers) - now_s
                # A late Postgres answers soon, and only it knows the units that the other workers
                # left.
                wait_s = wait_s if self._postgres.is_away else min(wait_s, LATE_RETRY_S)
                raise refusal(pool.limit_id, pool.measure, pool.limit, wait_s=wait_s)
        self.admitted_alone += 1
        tick, taken = tick_at(now_s, self._offset_ms), []
        for pool, units in claim:
            taken.append((pool, pool.take_alone(units, now_s=now_s, tick=tick)))
            self._schedule_report(pool, now_s)
        return LimitGrant(self, taken, taken_s=now_s, tokens=tokens, is_alone=True)

    def _settle(self, taken: Iterable[tuple[Pool, int]], *, taken_s: float, unused: int) -> None:
        """Return a request's units to its windows and slots; `unused` is its reserved tokens minus
        its used ones.
        """
        now_s = self._clock.monotonic()
        for pool, tick in taken:
            part = unused if pool.measure is LimitUnit.TOKENS else 0
            if pool.settle(tick, taken_s=taken_s, unused=part, now_s=now_s):
                self._schedule_report(pool, now_s)

    # ---- wait

    async def _wait_for_grant(self, claim: Claim, tokens: int) -> LimitGrant:
        """Wait briefly for Postgres's next answer, and grant the claim from it, or from this
        worker's own share.
        """
        waiter = _Waiter(claim, tokens, asyncio.get_running_loop().create_future())
        self._waiters[waiter] = None
        for pool, units in claim:
            pool.waiting += units
            self._list_for_ask(pool)
        self._ask_by(max(self._clock.monotonic(), self._began_s + SPACING_S))
        future = waiter.future
        try:
            await asyncio.wait({future}, timeout=self._wait_s)
            await self._yield_until(future.done)
        except asyncio.CancelledError:
            if future.done() and future.exception() is None:
                future.result().settle(0)
            raise
        finally:
            self._drop_waiter(waiter)
        return (
            future.result()
            if future.done()
            else self._take_alone(claim, tokens, self._clock.monotonic())
        )

    async def _yield_until(self, is_enough: Callable[[], bool]) -> None:
        """Let the event loop take a few turns until `is_enough`, so that an answer that has already
        arrived counts as in time.
        """
        for _ in range(TURNS):
            if is_enough():
                return
            await asyncio.sleep(0)

    def _drop_waiter(self, waiter: _Waiter) -> None:
        """Remove a request that no longer waits, and its units from the demand."""
        if waiter in self._waiters:
            del self._waiters[waiter]
            for pool, units in waiter.claim:
                pool.waiting -= units

    @property
    def _is_late(self) -> bool:
        """Return True if the current exchange with Postgres has taken longer than a request may
        wait.
        """
        return self._postgres.asking_s > self._wait_s

    # ---- ask

    async def run(self) -> None:
        """Exchange limit units with Postgres until cancelled: whenever units, corrections or
        renewals are due.
        """
        while True:
            self._stirred.clear()
            pause_s = self._due_s - self._clock.monotonic()
            if pause_s <= 0:
                await self.exchange()
                continue
            await wait_for(self._stirred, pause_s)

    async def close(self) -> None:
        """Give all held units back to Postgres. `run` has ended and no more requests are
        admitted.
        """
        if not self._postgres.is_away:
            for pool in self._listed:
                pool.give_all_back()
            await self.exchange()
        self._postgres.close()
        self._store.close()

    async def exchange(self) -> None:
        """Exchange everything needed or due with Postgres once, and serve the waiting requests.

        Only one call runs at a time.
        """
        self._began_s = now_s = self._clock.monotonic()
        self._due_s = now_s + HEARTBEAT_S
        pools = self._due_pools(now_s)
        await self._postgres.turn(
            self._exchanged(pools, self._asks(pools, now_s), asked_s=now_s),
            on_failure=self._serve_alone,
        )

    async def _exchanged(
        self, pools: Sequence[Pool], asks: Sequence[LimitAsk], *, asked_s: float
    ) -> None:
        """Send the asks of the windows and slots to Postgres, and apply the answer."""
        answer = await self._postgres.ask(self._store.exchange, self._worker, self._number, asks)
        self._note_answer(answer, pools, asked_s=asked_s)

    def _due_pools(self, now_s: float) -> list[Pool]:
        """Return the windows and slots that must ask Postgres now or soon, at most `MOST_ASKS`."""
        soon_s = now_s + SPACING_S
        due = [
            pool
            for pool in self._listed
            if pool.needs_asking or (pool.due_s is not None and pool.due_s <= soon_s)
        ]
        return due[:MOST_ASKS]

    def _asks(self, pools: Sequence[Pool], now_s: float) -> list[LimitAsk]:
        """Return the next ask of each window or slots, with the units of the waiting requests."""
        needs: dict[Pool, list[int]] = {pool: [] for pool in pools}
        for waiter in self._waiters:
            waiter.is_asked = all(
                pool in needs or pool.free >= pool.waiting for pool, _ in waiter.claim
            )
            for pool, units in waiter.claim:
                if waiter.is_asked and pool in needs:
                    needs[pool].append(units)
        return [
            pool.next_ask(grouped(needs[pool]), now_s=now_s, workers=self._workers)
            for pool in pools
        ]

    def _note_answer(self, answer: LimitAnswer, pools: Sequence[Pool], *, asked_s: float) -> None:
        """Apply Postgres's answer to the windows and slots, serve the waiting requests and plan the
        next exchange.
        """
        now_s = self._clock.monotonic()
        if self._postgres.is_away:
            log.info("limits_shared_again")
        self._postgres.note_answer()
        self._number += 1
        self._workers, self._offset_ms = max(answer.workers, 1), answer.now_ms - now_s * 1000
        answered = {(one.limit_id, one.measure): one for one in answer.answers}
        for pool in pools:
            own = answered.get((pool.limit_id, pool.measure))
            if own is None:
                pool.requeue_corrections()
            else:
                pool.apply_answer(
                    own,
                    asked_s=asked_s,
                    now_s=now_s,
                    workers=self._workers,
                    is_repeat=answer.is_repeat,
                )
        if not answer.is_repeat:
            self._serve(now_s)
        self._forget(now_s)
        self._schedule(now_s)

    def _serve(self, now_s: float) -> None:
        """Grant or refuse the waiting requests whose needs were in the exchange; the others wait
        for the next one.
        """
        for waiter in [
            waiter for waiter in self._waiters if waiter.is_asked and not waiter.future.done()
        ]:
            self._drop_waiter(waiter)
            short = next(((pool, units) for pool, units in waiter.claim if pool.free < units), None)
            if short is None:
                waiter.future.set_result(self._grant_held(waiter.claim, waiter.tokens, now_s))
            else:
                waiter.future.set_exception(_refusal(*short, now_s))

    def _serve_alone(self, problem: str) -> None:
        """Grant or refuse all waiting requests from this worker's own share of each limit, after
        Postgres failed to answer.
        """
        if self._postgres.failures == 1:
            log.warning("limits_not_shared", problem=problem)
        self._due_s = self._clock.monotonic() + RETRY_S
        for waiter in [waiter for waiter in self._waiters if not waiter.future.done()]:
            self._drop_waiter(waiter)
            try:
                waiter.future.set_result(
                    self._take_alone(waiter.claim, waiter.tokens, self._clock.monotonic())
                )
            except RequestError as refused:
                waiter.future.set_exception(refused)

    def _schedule(self, now_s: float) -> None:
        """Schedule the next exchange, and unlist windows and slots without held units or
        corrections.
        """
        listed: list[Pool] = []
        for pool in self._listed:
            pool.due_s = self._began_s + SPACING_S if pool.needs_asking else pool.due_at_s(now_s)
            pool.is_listed = pool.due_s is not None or pool.waiting > 0
            if pool.is_listed:
                listed.append(pool)
            if pool.due_s is not None:
                self._due_s = min(self._due_s, pool.due_s)
        self._listed = listed

    def _ask_by(self, at_s: float) -> None:
        """Wake the exchange so that it asks Postgres at the time `at_s` at the latest."""
        if self._postgres.is_away:
            return  # asked at the next retry
        if at_s < self._due_s:
            self._due_s = at_s
            self._stirred.set()

    def _schedule_report(self, pool: Pool, now_s: float) -> None:
        """Mark a window or slots for a report to Postgres soon."""
        self._list_for_ask(pool)
        if pool.due_s is None or pool.due_s > now_s + GIVE_BACK_AFTER_S:
            pool.due_s = now_s + GIVE_BACK_AFTER_S
        self._ask_by(pool.due_s)

    def _list_for_ask(self, pool: Pool) -> None:
        """List a window or slots for the next exchange with Postgres."""
        if not pool.is_listed:
            pool.is_listed = True
            self._listed.append(pool)

    def _forget(self, now_s: float, *, unused_s: float = FORGET_AFTER_S) -> None:
        """Drop limits from memory that no request used for `unused_s`, at most every 5 s; Postgres
        keeps its own.
        """
        if now_s - self._forgot_s >= FORGET_EVERY_S:
            self._forgot_s = now_s
            self._known = {
                limit_id: known
                for limit_id, known in self._known.items()
                if not known.is_idle or now_s - known.used_s < unused_s
            }


def _figures(window: LimitWindow, limit: int | None, now_s: float) -> LimitUsage | None:
    """Return one window's last known use of its limit, None without a limit."""
    if limit is None:
        return None
    remaining, reset_s = window.remaining(now_s)
    return LimitUsage(limit=limit, remaining=min(remaining, limit), reset_s=reset_s)


def _refusal(pool: Pool, units: int, now_s: float) -> RequestError:
    """Return the error for a request whose units do not fit, with the time to retry from Postgres's
    last answer.
    """
    return refusal(
        pool.limit_id, pool.measure, pool.limit, wait_s=pool.ready_s(units, now_s) - now_s
    )
