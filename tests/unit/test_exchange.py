"""The exchange with Postgres by itself: turns, deadlines, back-off, and work that outlives its
waiter.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import pytest

from gateway.errors import DatabaseUnavailable
from gateway.services.database_exchange import FAILED, DatabaseExchange, wait_for
from tests.fakes import FakeClock


class Postgres:
    """A question that takes until `answer` is called, or fails."""

    def __init__(self) -> None:
        self.is_asked, self._may_end = threading.Event(), threading.Event()
        self.answers: list[str] = []

    def ask(self) -> str:
        """Run in the exchange's thread."""
        self.is_asked.set()
        assert self._may_end.wait(30), "the test forgot to answer"
        self.answers.append("here")
        return "here"

    def answer(self) -> None:
        """Let the question end."""
        self._may_end.set()


class Problems:
    """The problems that reach a part of the services."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    def note(self, problem: str) -> None:
        """Keep a problem."""
        self.seen.append(problem)


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def exchange(clock: FakeClock) -> Iterator[DatabaseExchange]:
    made = DatabaseExchange("test", clock, pauses_s=(1, 5))
    yield made
    made.close()


async def answers() -> None:
    """A turn that Postgres answers."""


async def is_away() -> None:
    """A turn without an answer."""
    raise DatabaseUnavailable("Postgres is away.")


async def breaks() -> None:
    """A turn with a mistake of our own."""
    raise ZeroDivisionError


async def test_a_turn_with_an_answer_leaves_nothing_behind(exchange: DatabaseExchange) -> None:
    """Whoever waits for money asks whether Postgres is away; it is not."""
    problems = Problems()
    assert await exchange.turn(answers(), on_failure=problems.note)
    assert (exchange.is_away, exchange.away_s) == (False, None)
    assert (exchange.asking_s, exchange.failures, problems.seen) == (0.0, 0, [])


async def test_the_outage_is_counted_from_the_first_failed_turn(
    exchange: DatabaseExchange, clock: FakeClock
) -> None:
    """Readiness reports its length, so a later failure must not start it again."""
    problems = Problems()
    for _ in range(3):
        assert not await exchange.turn(is_away(), on_failure=problems.note)
        clock.advance(10)
    assert (exchange.away_s, exchange.failures) == (30, 3)
    assert problems.seen == ["Postgres is away."] * 3


async def test_an_outage_begins_with_the_question_that_got_no_answer(
    exchange: DatabaseExchange, clock: FakeClock
) -> None:
    """The writer's turn takes a whole backlog: for its length Postgres was there."""

    async def backlog() -> None:
        for _ in range(3):
            await exchange.ask(clock.advance, 200)
        await exchange.ask(list)
        clock.advance(1)
        raise DatabaseUnavailable("Postgres is away.")

    assert not await exchange.turn(backlog(), on_failure=lambda problem: None)
    assert exchange.away_s == 1


async def test_each_failure_doubles_the_pause_and_an_answer_resets_it(
    exchange: DatabaseExchange,
) -> None:
    """A database that comes back must not be met by every worker at once."""
    pauses = []
    for _ in range(4):
        await exchange.turn(is_away(), on_failure=lambda problem: None)
        pauses.append(exchange.pause_s)
    assert pauses == [1, 2, 4, 5]
    assert await exchange.turn(answers(), on_failure=lambda problem: None)
    assert (exchange.pause_s, exchange.is_away) == (1, False)


async def test_a_mistake_of_ours_passes_on_after_the_waiters_know(
    exchange: DatabaseExchange, clock: FakeClock
) -> None:
    """The supervisor logs it and restarts the loop; waiting requests must not hang meanwhile."""
    problems = Problems()
    with pytest.raises(ZeroDivisionError):
        await exchange.turn(breaks(), on_failure=problems.note)
    clock.advance(3)
    assert (problems.seen, exchange.is_away, exchange.asking_s) == ([FAILED], True, 0)


async def test_another_kind_of_failure_can_end_a_turn_quietly(exchange: DatabaseExchange) -> None:
    """The writer also reads a journal from disk."""

    async def disk() -> None:
        raise OSError("Input/output error")

    problems = Problems()
    assert not await exchange.turn(
        disk(), on_failure=problems.note, failures=(DatabaseUnavailable, OSError)
    )
    assert problems.seen == ["Input/output error"]


async def test_a_cancelled_turn_is_a_turn_without_an_answer(
    exchange: DatabaseExchange, clock: FakeClock
) -> None:
    """A stop must release the requests that wait for the answer."""
    problems, postgres = Problems(), Postgres()
    turn = asyncio.ensure_future(
        exchange.turn(exchange.ask(postgres.ask), on_failure=problems.note)
    )
    await asyncio.to_thread(postgres.is_asked.wait)
    clock.advance(3)
    assert exchange.asking_s == 3
    turn.cancel()
    with pytest.raises(asyncio.CancelledError):
        await turn
    assert (problems.seen, exchange.asking_s) == ([FAILED], 0)
    postgres.answer()


async def test_the_length_of_a_question_is_known_while_it_runs(
    exchange: DatabaseExchange, clock: FakeClock
) -> None:
    """Requests are refused with 503 before Postgres counts as away."""
    postgres = Postgres()
    turn = asyncio.ensure_future(
        exchange.turn(exchange.ask(postgres.ask), on_failure=lambda problem: None)
    )
    await asyncio.to_thread(postgres.is_asked.wait)
    clock.advance(3)
    assert (exchange.asking_s, exchange.is_away) == (3, False)
    postgres.answer()
    assert await turn
    assert exchange.asking_s == 0


async def test_work_ends_although_its_waiter_gave_up(exchange: DatabaseExchange) -> None:
    """Its transaction may commit, so it is never interrupted; the late answer is dropped."""
    postgres = Postgres()
    with pytest.raises(DatabaseUnavailable, match=r"has not answered within 0\.01 s"):
        await exchange.ask_within(0.01, postgres.ask)
    assert postgres.answers == []
    postgres.answer()
    assert await exchange.ask(lambda: postgres.answers) == ["here"], "the thread is free again"


async def test_work_that_waits_for_a_thread_leaves_with_its_waiter(
    exchange: DatabaseExchange,
) -> None:
    """While Postgres hangs, questions without a waiter must not pile up behind it."""
    postgres, late = Postgres(), Postgres()
    running = exchange.ask(postgres.ask)
    with pytest.raises(DatabaseUnavailable):
        await exchange.ask_within(0.01, late.ask)
    postgres.answer()
    assert await running == "here"
    assert await exchange.ask(list) == []
    assert not late.is_asked.is_set()


async def test_an_error_of_the_question_reaches_its_waiter(exchange: DatabaseExchange) -> None:
    """The caller decides about it, not the exchange."""

    def refuse() -> None:
        raise DatabaseUnavailable("Postgres refused the connection.")

    with pytest.raises(DatabaseUnavailable, match="refused the connection"):
        await exchange.ask_within(30, refuse)


async def test_closing_drops_questions_that_wait(clock: FakeClock) -> None:
    """A stop has its own deadline; the running question ends by the session's."""
    exchange, postgres = DatabaseExchange("test", clock), Postgres()
    running, waiting = exchange.ask(postgres.ask), exchange.ask(postgres.ask)
    await asyncio.to_thread(postgres.is_asked.wait)
    exchange.close()
    postgres.answer()
    assert await running == "here"
    with pytest.raises(asyncio.CancelledError):
        await waiting


async def test_waiting_ends_with_the_event_or_with_the_time() -> None:
    """Both wake the loop that waits."""
    event = asyncio.Event()
    await wait_for(event, 0)
    assert not event.is_set()
    event.set()
    await wait_for(event, 30)
