"""The limiter of one worker, or of several on one ledger: from held units, by asking, and
without Postgres.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID, uuid4

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.domain.budgets.limits import (
    TICK_MS,
    WINDOW_S,
    LimitAnswer,
    LimitAsk,
    LimitedBy,
    LimitGranted,
    Limits,
    LimitUnit,
)
from gateway.errors import ConcurrencyLimited, DatabaseUnavailable, RateLimited
from gateway.services.limits.limiter import Limiter, LimitGrant, LimitStatus, LimitUsage
from tests.fakes import FakeClock

Name = tuple[str, LimitUnit]


@dataclass
class FakeWindows:
    """The shared windows as plain lists, with faults. Its clock is far from the workers'."""

    clock: FakeClock
    taken: dict[Name, list[list[int]]] = field(default_factory=dict)  # [tick, units]
    slots: dict[tuple[str, UUID], tuple[int, float]] = field(default_factory=dict)
    last_exchange_s: dict[UUID, float] = field(default_factory=dict)
    last: dict[UUID, tuple[int, LimitAnswer]] = field(default_factory=dict)
    exchanges: list[list[LimitAsk]] = field(default_factory=list)
    is_away: bool = False
    loses_next_reply: bool = False
    admission: threading.Event | None = None

    def exchange(self, worker: UUID, number: int, asks: Sequence[LimitAsk]) -> LimitAnswer:
        self.exchanges.append(list(asks))
        if self.admission is not None:
            self.admission.wait(20)
        if self.is_away:
            raise DatabaseUnavailable("Postgres is away.")
        known = self.last.get(worker)
        if known is not None and known[0] == number:
            before = known[1]
            return LimitAnswer(
                workers=before.workers, now_ms=before.now_ms, answers=before.answers, is_repeat=True
            )
        self.last_exchange_s[worker] = self.clock.monotonic()
        workers = sum(self.clock.monotonic() - at_s < 15 for at_s in self.last_exchange_s.values())
        answers = tuple(
            self._slots(ask, worker, workers)
            if ask.measure is LimitUnit.CONCURRENT
            else self._units(ask, workers)
            for ask in asks
        )
        answer = LimitAnswer(workers=workers, now_ms=self.now_ms, answers=answers)
        self.last[worker] = (number, answer)
        if self.loses_next_reply:
            self.loses_next_reply = False
            raise DatabaseUnavailable("committed, but the answer was lost")
        return answer

    def close(self) -> None:
        pass

    @property
    def now_ms(self) -> int:
        return round(self.clock.monotonic() * 1000) + 77_000_000

    def used(self, limit_id: str, measure: LimitUnit = LimitUnit.REQUESTS) -> int:
        """Units in the last 60 seconds."""
        first = self.now_ms // TICK_MS - WINDOW_S * 1000 // TICK_MS
        return sum(
            units for tick, units in self.taken.get((limit_id, measure), []) if tick >= first
        )

    def _units(self, ask: LimitAsk, workers: int) -> LimitGranted:
        tick = self.now_ms // TICK_MS
        window = self.taken.setdefault((ask.limit_id, ask.measure), [])
        window[:] = [entry for entry in window if entry[0] >= tick - WINDOW_S * 1000 // TICK_MS]
        for at, units in ask.corrections:
            same = [entry for entry in window if entry[0] == at]
            assert units > 0 or not same or sum(entry[1] for entry in same) + units >= 0, (
                "gave back what it had"
            )
            if units > 0 or same:
                window.append([at or tick, units])
        used = sum(units for _, units in window)
        granted = _granted(ask, ask.most - used, workers)
        window.append([tick, granted])
        by_tick = sorted({at for at, _ in window})
        slides = tuple(
            (
                (at + 2401) * TICK_MS - self.now_ms,
                sum(units for other, units in window if other == at),
            )
            for at in by_tick
        )
        return LimitGranted(
            limit_id=ask.limit_id,
            measure=ask.measure,
            tick=tick,
            granted=granted,
            used=used + granted,
            slides=tuple(slide for slide in slides if slide[1]),
        )

    def _slots(self, ask: LimitAsk, worker: UUID, workers: int) -> LimitGranted:
        now_s = self.clock.monotonic()
        others = sum(
            slots
            for (limit_id, other), (slots, at_s) in self.slots.items()
            if limit_id == ask.limit_id and other != worker and now_s - at_s <= 15
        )
        granted = ask.kept + _granted(ask, ask.most - others - ask.kept, workers)
        self.slots[ask.limit_id, worker] = (granted, now_s)
        return LimitGranted(
            limit_id=ask.limit_id,
            measure=ask.measure,
            tick=0,
            granted=granted,
            used=others + granted,
        )


def _granted(ask: LimitAsk, left: int, workers: int) -> int:
    granted, is_whole = 0, True
    for units, times in ask.needs:
        met = min(times, max(left - granted, 0) // units)
        granted += met * units
        is_whole = is_whole and met == times
    return (
        granted + max(min(ask.ahead, (left - granted) // (8 * workers)), 0) if is_whole else granted
    )


class Workers:
    """Some limiters on one ledger, driven by hand."""

    def __init__(self, count: int = 1, *, wait_s: float = 20.0) -> None:
        self.clock = FakeClock()
        self.windows = FakeWindows(self.clock)
        self.limiters = [
            Limiter(self.windows, self.clock, worker=uuid4(), wait_s=wait_s) for _ in range(count)
        ]

    @property
    def one(self) -> Limiter:
        return self.limiters[0]

    async def announce_workers(self) -> None:
        """Let Postgres know of every worker."""
        for limiter in self.limiters * 2:
            await limiter.exchange()

    async def admit(
        self, limited: Sequence[LimitedBy], tokens: int = 0, *, by: int = 0
    ) -> LimitGrant:
        """Admit, with an exchange if the request waits for one."""
        done: LimitGrant | BaseException = (await self.admit_all([(limited, tokens)], by=by))[0]
        if isinstance(done, BaseException):
            raise done
        return done

    async def admit_all(
        self, asks: Sequence[tuple[Sequence[LimitedBy], int]], *, by: int = 0
    ) -> list[Any]:
        limiter = self.limiters[by]
        tasks = [asyncio.create_task(limiter.admit(limited, tokens)) for limited, tokens in asks]
        await asyncio.sleep(0)
        if not all(task.done() for task in tasks):
            await limiter.exchange()
        return await asyncio.gather(*tasks, return_exceptions=True)

    async def pass_s(self, seconds: float) -> None:
        """Let time pass, with an exchange of each worker every tenth of a second."""
        for _ in range(round(seconds * 10)):
            self.clock.advance(0.1)
            for limiter in self.limiters:
                await limiter.exchange()


def per_minute(
    requests: int | None = None, *, tokens: int | None = None, limit_id: str = "payments"
) -> LimitedBy:
    return limit_id, Limits(requests_per_minute=requests, tokens_per_minute=tokens)


def at_once(figure: int) -> LimitedBy:
    return "payments", Limits(concurrent=figure)


async def test_a_small_limit_is_whole_whichever_workers_are_asked() -> None:
    """Three a minute are three: neither three for each worker nor one for each."""
    workers = Workers(3)
    await workers.announce_workers()
    for _ in range(3):
        await workers.admit([per_minute(3)], by=0)
    for by in range(3):
        with pytest.raises(RateLimited) as refused:
            await workers.admit([per_minute(3)], by=by)
    assert refused.value.retry_after_s == pytest.approx(60.0, abs=0.03)
    assert refused.value.message.startswith("payments may use 3 requests in any 60 seconds")
    assert refused.value.message.endswith(
        "ask an admin to raise requests_per_minute of payments in the policy."
    )
    workers.clock.advance(refused.value.retry_after_s or 0)
    await workers.admit([per_minute(3)], by=2)


async def test_a_request_takes_all_its_limits_or_none() -> None:
    """A request that its key's limit refuses must not use up its team's."""
    workers = Workers()
    both = [per_minute(10), per_minute(1, limit_id="payments/key:k1")]
    await workers.admit(both)
    for _ in range(5):
        workers.clock.advance(0.3)
        with pytest.raises(RateLimited, match="payments/key:k1"):
            await workers.admit(both)
    await workers.pass_s(1.2)
    assert workers.windows.used("payments") == 1


async def test_requests_that_wait_share_one_question() -> None:
    """A question for each would be as many round trips as requests."""
    workers = Workers()
    done = await workers.admit_all([([per_minute(30)], 0)] * 40)
    assert sum(isinstance(one, LimitGrant) for one in done) == 30
    assert sum(isinstance(one, RateLimited) for one in done) == 10
    assert [ask.needs for ask in workers.windows.exchanges[0]] == [((1, 40),)]


async def test_busy_workers_use_leased_units_without_asking_postgres() -> None:
    """At thousands of requests a second no request may wait for a database."""
    workers = Workers()
    limited = [per_minute(1_000_000)]
    for _ in range(20):
        await workers.admit_all([(limited, 0)] * 20)
        workers.clock.advance(0.1)
    await workers.one.exchange()
    before = len(workers.windows.exchanges)
    for _ in range(20):
        await workers.one.admit(limited, 0)
    assert len(workers.windows.exchanges) == before


async def test_a_refusal_by_postgres_is_remembered_briefly() -> None:
    """A persistent caller must not load Postgres, but units returned by others are found soon."""
    workers = Workers()
    await workers.admit([per_minute(1)])
    with pytest.raises(RateLimited):
        await workers.admit([per_minute(1)])
    before = len(workers.windows.exchanges)
    for _ in range(50):
        with pytest.raises(RateLimited):
            await workers.one.admit([per_minute(1)], 0)
    assert len(workers.windows.exchanges) == before
    workers.clock.advance(0.3)
    with pytest.raises(RateLimited):
        await workers.admit([per_minute(1)])
    assert len(workers.windows.exchanges) == before + 1


async def test_tokens_that_were_not_used_go_back_once() -> None:
    """They are reserved at the most an answer could have: kept, they would refuse ten callers for
    one.
    """
    workers = Workers()
    admission = await workers.admit([per_minute(tokens=1000)], 900)
    with pytest.raises(RateLimited):
        await workers.admit([per_minute(tokens=1000)], 900)
    admission.settle(100)
    admission.settle(0)
    await workers.one.exchange()
    assert workers.windows.used("payments", LimitUnit.TOKENS) == 100
    await workers.admit([per_minute(tokens=1000)], 900)


async def test_tokens_used_beyond_the_reservation_count_and_unknown_ones_as_reserved() -> None:
    """The true use reduces the next 60 seconds."""
    workers = Workers()
    (await workers.admit([per_minute(tokens=1000)], 100)).settle(300)
    (await workers.admit([per_minute(tokens=1000)], 100)).settle(None)
    await workers.one.exchange()
    assert workers.windows.used("payments", LimitUnit.TOKENS) == 400


async def test_a_settlement_after_its_window_changes_nothing() -> None:
    """A long answer's reservation has slid out: giving it back would make room that is not
    there.
    """
    workers = Workers()
    admission = await workers.admit([per_minute(tokens=1000)], 900)
    workers.clock.advance(61)
    admission.settle(100)
    await workers.admit([per_minute(tokens=1000)], 900)
    assert workers.windows.used("payments", LimitUnit.TOKENS) == 900


async def test_a_request_larger_than_its_limit_gets_its_own_error() -> None:
    """Waiting would not help it."""
    with pytest.raises(RateLimited, match="it will never fit") as refused:
        await Workers().admit([per_minute(tokens=1000)], 1001)
    assert refused.value.retry_after_s is None


async def test_unused_leased_units_are_returned_within_a_second() -> None:
    """They count as used meanwhile: kept, another worker would refuse while fewer were admitted."""
    workers = Workers(2)
    limited = [per_minute(1000)]
    for _ in range(10):
        await workers.admit_all([(limited, 0)] * 5)
        workers.clock.advance(0.1)
        await workers.one.exchange()
    assert workers.windows.used("payments") > 50
    await workers.pass_s(1.1)
    assert workers.windows.used("payments") == 50


async def test_nothing_is_refused_because_postgres_is_away() -> None:
    """Each worker goes on with its part, at least one, and no more than that."""
    workers = Workers(3)
    await workers.announce_workers()
    workers.windows.is_away = True
    limited = [per_minute(30)]
    done = await workers.admit_all([(limited, 0)] * 15)
    assert sum(isinstance(one, LimitGrant) for one in done) == 10
    with pytest.raises(RateLimited) as refused:
        await workers.one.admit(limited, 0)
    assert refused.value.retry_after_s == pytest.approx(60.0, abs=1)
    small = [per_minute(1, limit_id="small")]
    assert isinstance(await workers.one.admit(small, 0), LimitGrant)


async def test_postgres_learns_of_the_admissions_made_without_it() -> None:
    """When it is back it goes on as if it had been there, and nothing needs a restart."""
    workers = Workers(2)
    await workers.announce_workers()
    await workers.admit([per_minute(10, tokens=1000)], 100)
    workers.windows.is_away = True
    first = await workers.admit([per_minute(10, tokens=1000)], 100)
    for _ in range(2):
        await workers.one.admit([per_minute(10, tokens=1000)], 100)
    first.settle(10)
    workers.windows.is_away = False
    await workers.one.exchange()
    await workers.one.exchange()
    assert workers.windows.used("payments") == 4
    assert workers.windows.used("payments", LimitUnit.TOKENS) == 310


async def test_no_request_waits_longer_for_postgres_than_it_may() -> None:
    """A database that hangs must not be felt: those who wait go on, those who come later do not
    wait at all.
    """
    workers = Workers(wait_s=0.01)
    await workers.announce_workers()
    workers.windows.admission = threading.Event()
    asking = asyncio.create_task(workers.one.admit([per_minute(10)], 0))
    await asyncio.sleep(0)
    exchange = asyncio.create_task(workers.one.exchange())
    assert isinstance(await asking, LimitGrant)
    workers.clock.advance(0.02)
    assert isinstance(await workers.one.admit([per_minute(10)], 0), LimitGrant)
    workers.windows.is_away = True
    workers.windows.admission.set()
    await exchange


async def test_a_lost_answer_takes_and_gives_nothing_twice() -> None:
    """Returns that count twice would make room that is not there."""
    workers = Workers()
    admission = await workers.admit([per_minute(tokens=1000)], 900)
    admission.settle(400)
    workers.windows.loses_next_reply = True
    done = await workers.admit_all([([per_minute(tokens=1000)], 300)])
    assert isinstance(done[0], LimitGrant), "by this worker's own part"
    await workers.pass_s(1.0)
    assert workers.windows.used("payments", LimitUnit.TOKENS) == 700


async def test_slots_are_shared_and_come_back_when_a_request_ends() -> None:
    """Two at once are two for all workers together."""
    workers = Workers(2)
    await workers.announce_workers()
    first = await workers.admit([at_once(2)], by=0)
    await workers.admit([at_once(2)], by=1)
    with pytest.raises(ConcurrencyLimited, match="may have 2 requests running at once") as refused:
        await workers.admit([at_once(2)], by=1)
    assert refused.value.retry_after_s == 1.0
    first.settle(None)
    first.settle(None)
    await workers.pass_s(1.2)
    await workers.admit([at_once(2)], by=1)


async def test_a_worker_that_died_does_not_keep_its_slots() -> None:
    """A dead worker cannot return them; a living worker's slots are renewed."""
    workers = Workers(2)
    await workers.announce_workers()
    await workers.admit([at_once(2)], by=0)
    await workers.admit([at_once(2)], by=1)
    workers.limiters = workers.limiters[1:]
    await workers.pass_s(15.2)
    await workers.admit([at_once(2)])
    with pytest.raises(ConcurrencyLimited):
        await workers.admit([at_once(2)])


async def test_slots_in_use_are_reported_again_after_an_outage() -> None:
    """Running requests are not ended; they count again as soon as Postgres can be asked."""
    workers = Workers(2)
    await workers.announce_workers()
    await workers.admit([at_once(2)], by=0)
    workers.windows.is_away = True
    await workers.pass_s(16)
    with pytest.raises(ConcurrencyLimited):
        await workers.one.admit([at_once(2)], 0)
    workers.windows.is_away = False
    await workers.one.exchange()
    await workers.limiters[1].exchange()
    await workers.admit([at_once(2)], by=1)
    with pytest.raises(ConcurrencyLimited):
        await workers.admit([at_once(2)], by=1)


async def test_slots_over_the_limit_are_let_go_while_all_workers_are_busy() -> None:
    """Three workers that each believed themselves alone have three times the limit in use: that
    must end by itself, though each request that ends is followed by the next.
    """
    workers = Workers(3)
    workers.windows.is_away = True
    running = [[await workers.admit([at_once(6)], by=by) for _ in range(6)] for by in range(3)]
    workers.windows.is_away = False
    for _ in range(40):
        for by, mine in enumerate(running):
            if mine:
                mine.pop().settle(None)
            done = await workers.admit_all([([at_once(6)], 0)] * 2, by=by)
            mine += [one for one in done if isinstance(one, LimitGrant)]
        await workers.pass_s(0.3)
    assert sum(len(mine) for mine in running) == 6


async def test_a_caller_that_leaves_while_it_waits_takes_nothing() -> None:
    """A slot without an owner would be lost for ever."""
    workers = Workers()
    asking = asyncio.create_task(workers.one.admit([at_once(1)], 0))
    await asyncio.sleep(0)
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)
    await workers.admit([at_once(1)])


async def test_headers_show_the_state_of_each_limit() -> None:
    """A client that reads them need not run into the limit."""
    workers = Workers()
    limited = [per_minute(10, tokens=1000)]
    assert workers.one.standing(limited)[0].requests == LimitUsage(
        limit=10, remaining=10, reset_s=0.0
    )
    await workers.admit(limited, 300)
    workers.clock.advance(20)
    (standing,) = workers.one.standing(limited)
    assert standing.requests is not None
    assert standing.tokens is not None
    assert (standing.limit_id, standing.requests.remaining, standing.tokens.remaining) == (
        "payments",
        9,
        700,
    )
    assert standing.tokens.reset_s == pytest.approx(40, abs=0.05)
    workers.clock.advance(60)
    assert workers.one.standing(limited)[0].tokens == LimitUsage(
        limit=1000, remaining=1000, reset_s=0.0
    )
    assert workers.one.standing([at_once(3)]) == (
        LimitStatus(limit_id="payments", requests=None, tokens=None),
    )


async def test_a_changed_limit_counts_at_once() -> None:
    """The window stays: use under the old limit counts under the new one."""
    workers = Workers()
    for _ in range(2):
        await workers.admit([per_minute(2)])
    with pytest.raises(RateLimited):
        await workers.admit([per_minute(2)])
    await workers.admit([per_minute(3)])
    with pytest.raises(RateLimited):
        await workers.admit([per_minute(1)])


async def test_unused_limits_are_forgotten() -> None:
    """Callers choose project names freely, so the memory for each must end."""
    workers = Workers()
    for number in range(50):
        await workers.admit([per_minute(5, limit_id=f"payments/project:{number}")])
    assert len(workers.one._known) == 50
    await workers.pass_s(1)
    workers.clock.advance(200)
    await workers.one.exchange()
    assert len(workers.one._known) == 0


async def test_a_stopping_worker_returns_its_units() -> None:
    """A deployment restarts all workers, one after the other: each would leave its lots behind."""
    workers = Workers()
    limited = [("payments", Limits(requests_per_minute=10_000, concurrent=50))]
    for _ in range(10):
        for one in await workers.admit_all([(limited, 0)] * 5):
            one.settle(None)
        workers.clock.advance(0.1)
    assert workers.windows.used("payments") > 50
    await workers.one.close()
    assert workers.windows.used("payments") == 50
    assert {slots for slots, _ in workers.windows.slots.values()} == {0}


async def test_the_loop_asks_by_itself() -> None:
    """Only `run` calls `exchange`: waiting requests and due corrections must wake it."""
    workers = Workers()
    running = asyncio.create_task(workers.one.run())
    await workers.one.admit([per_minute(5)], 0)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert workers.windows.used("payments") == 1


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["admit", "admit", "admit", "settle", "pass", "pass", "lose"]),
        st.integers(0, 2),
        st.integers(1, 6),
    ),
    max_size=60,
)


@settings(max_examples=60)
@given(steps=STEPS, limit=st.integers(1, 12))
def test_whatever_happens_no_minute_has_more_than_the_limit(
    steps: list[tuple[str, int, int]], limit: int
) -> None:
    """Requests, settlements, pauses and lost answers in any order, at three workers: admitted is
    never over the limit, and Postgres never counts less than was admitted.
    """

    both = [("payments", Limits(requests_per_minute=limit, concurrent=limit))]

    async def play() -> None:
        workers, moments, running = Workers(3), list[float](), list[LimitGrant]()
        await workers.announce_workers()
        for what, by, count in steps:
            if what == "admit":
                done = await workers.admit_all([(both, 0)] * count, by=by)
                given_now = [one for one in done if isinstance(one, LimitGrant)]
                running += given_now
                moments += [workers.clock.monotonic()] * len(given_now)
            elif what == "settle" and running:
                running.pop(by % len(running)).settle(None)
            elif what == "pass":
                await workers.pass_s(count / 2)
            elif what == "lose":  # an exchange without waiters
                workers.windows.loses_next_reply = True
                await workers.limiters[by].exchange()
                workers.windows.loses_next_reply = False
                await workers.limiters[by].exchange()
            now_s = workers.clock.monotonic()
            in_window = sum(at_s > now_s - WINDOW_S for at_s in moments)
            assert in_window <= limit
            assert in_window <= workers.windows.used("payments") <= limit
            assert len(running) <= limit

    asyncio.run(play())


async def test_a_worker_without_postgres_asks_callers_to_wait_only_briefly() -> None:
    """Postgres is late, not away: the other workers' remainder is known in a moment, so a
    minute's wait would be wrong.
    """
    workers = Workers(wait_s=0.02)
    workers.windows.admission = threading.Event()
    await workers.one.admit([per_minute(1)], 0)
    with pytest.raises(RateLimited) as refused:
        await workers.one.admit([per_minute(1)], 0)
    workers.windows.admission.set()
    assert refused.value.retry_after_s is not None
    assert refused.value.retry_after_s <= 1
