"""Background loops that end by themselves: restarted, counted, and reported to readiness if they
stay down.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from structlog.testing import capture_logs

from gateway.domain.checks import Status
from gateway.services.supervisor import (
    DOWN_AFTER_S,
    FIRST_PAUSE_S,
    MAX_PAUSE_S,
    STEADY_S,
    Loop,
    Supervisor,
)
from tests.fakes import FakeClock
from tests.waiting import soon


class World:
    """A supervisor on a clock that stands still, and its counts."""

    def __init__(self) -> None:
        self.clock, self.failures = FakeClock(), Counter[str]()
        self.supervisor = Supervisor(
            self.clock, on_failure=lambda loop: self.failures.update([loop])
        )

    @asynccontextmanager
    async def running(self, **loops: Loop) -> AsyncIterator[None]:
        self.supervisor.start(loops)
        try:
            yield
        finally:
            await self.supervisor.cancel()

    @property
    def status(self) -> Status:
        (check,) = self.supervisor.checks()
        return check.status


class Dying:
    """A loop that dies so many times, in one of three ways, and then goes on for ever."""

    def __init__(self, times: int, how: BaseException | None = None) -> None:
        self.times, self.how, self.starts, self.is_running = times, how, 0, False

    async def run(self) -> None:
        self.starts += 1
        if self.starts <= self.times:
            if self.how is not None:
                raise self.how
            return
        self.is_running = True
        await asyncio.Event().wait()


@pytest.mark.parametrize("how", [ZeroDivisionError("a bug"), asyncio.CancelledError(), None])
async def test_a_loop_that_ends_is_started_again(how: BaseException | None) -> None:
    """With an error, cancelled from inside, or by returning: nothing did its work then, until the
    next restart.
    """
    world, loop = World(), Dying(1, how)
    with capture_logs() as logs:
        async with world.running(rollups=loop.run):
            await soon(lambda: loop.is_running, "the second start")
            assert (world.failures, world.status) == ({"rollups": 1}, Status.WARN)
            world.clock.advance(STEADY_S)
            assert (world.status, world.supervisor.problems()) == (Status.OK, [])
    ended = [line for line in logs if line["event"] == "background_loop_ended"]
    assert [(line["loop"], line["retry_s"]) for line in ended] == [("rollups", FIRST_PAUSE_S)]
    assert ("a bug" in ended[0]["problem"]) == isinstance(how, ZeroDivisionError)


async def test_a_loop_that_stays_down_turns_readiness_off_and_on_again() -> None:
    """Its work is not done here although the process lives; the problem names the loop and the
    remedy.
    """
    world, loop = World(), Dying(3, KeyError("x"))
    async with world.running(budgets=loop.run, limits=Dying(0).run):
        await soon(lambda: loop.starts == 3, "three starts")
        world.clock.advance(DOWN_AFTER_S)
        (problem,) = world.supervisor.problems()
        assert "'budgets' (KeyError('x')) stays down" in problem
        assert "docs/runbooks/background-loop.md" in problem
        assert world.status is Status.FAIL
        await soon(lambda: loop.is_running, "the fourth start")
        world.clock.advance(STEADY_S)
        assert (world.status, world.supervisor.problems()) == (Status.OK, [])
    assert world.failures == {"budgets": 3}


async def test_restarts_come_later_and_later() -> None:
    """A loop that fails at once must not take a core, nor fill the log."""
    world, loop = World(), Dying(4, KeyError("x"))
    with capture_logs() as logs:
        async with world.running(months=loop.run):
            await soon(lambda: loop.is_running, "the fifth start")
    pauses = [line["retry_s"] for line in logs if line["event"] == "background_loop_ended"]
    assert pauses == [FIRST_PAUSE_S, 2 * FIRST_PAUSE_S, 4 * FIRST_PAUSE_S, 8 * FIRST_PAUSE_S]
    assert max(pauses) < MAX_PAUSE_S < STEADY_S < DOWN_AFTER_S, (
        "a loop that fails at once is never steady"
    )


async def test_a_loop_that_ends_at_the_stop_is_no_failure() -> None:
    """The writer returns when it has had the last word, and an error of its last word starts it no
    more.
    """
    for how in (None, KeyError("the last word")):
        world, loop = World(), Dying(1, how)
        world.supervisor.start({"writer": loop.run})
        await world.supervisor.cancel(but=["writer"])
        await world.supervisor.ended("writer")
        assert (world.failures, loop.starts) == ({}, 1)


async def test_a_lost_cancellation_is_repeated() -> None:
    """Roll-ups raised Postgres's error in its place, and the process never ended."""
    world, cancelled = World(), 0

    async def loses_the_first() -> None:
        nonlocal cancelled
        while True:
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                cancelled += 1
                if cancelled > 1:
                    raise

    async with world.running(loses=loses_the_first):
        await asyncio.sleep(0)
    assert cancelled == 2
