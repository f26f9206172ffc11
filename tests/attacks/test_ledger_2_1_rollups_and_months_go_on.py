"""Ledger section 2, bullet 1: an unexpected error ended the jobs for roll-ups and months
permanently.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

import psycopg
import pytest
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError

from gateway.errors import DatabaseUnavailable
from gateway.services.ledger.partitions import PartitionKeeper
from gateway.services.ledger.rollups import RollupKeeper
from gateway.services.supervisor import Supervisor
from gateway.storage.postgres.database import Database
from tests.fakes import FakeClock
from tests.waiting import soon

RAISES = "DO $$ BEGIN RAISE EXCEPTION USING ERRCODE = '{}', MESSAGE = 'told to'; END $$"


def raising(database: Database, state: str) -> None:
    with database.begin() as connection:
        connection.execute(text(RAISES.format(state)))


def failing_once(database: Database, state: str, done: list[str]) -> Callable[..., int]:
    """Return a step that fails once with an error of this SQL state and then succeeds."""

    def step(*arguments: object) -> int:
        done.append(state)
        if len(done) == 1:
            raising(database, state)
        return 0

    return step


@pytest.mark.parametrize("state", ["53200", "XX000", "58030", "25P02", "40001"])
def test_a_state_of_the_server_is_no_defect_of_ours(database: Database, state: str) -> None:
    """An out-of-memory or internal error came as the driver's own error, which no loop caught."""
    with pytest.raises(DatabaseUnavailable, match="told to"):
        raising(database, state)


@pytest.mark.parametrize("name", ["rollups", "months"])
async def test_a_refused_step_ends_neither_roll_ups_nor_months(
    database: Database, name: str
) -> None:
    """A refused statement (22003) is a defect: it is counted, and the loop continues with its
    next turn.
    """
    done: list[str] = []
    failures: list[str] = []
    step, clock = failing_once(database, "22003", done), FakeClock()
    loops = {
        "rollups": RollupKeeper(step, lambda: 0, lambda: 0, clock).run,
        "months": PartitionKeeper(
            lambda first, last: [""] * step(), clock, on_made=lambda: None
        ).run,
    }
    supervisor = Supervisor(clock, on_failure=failures.append)
    supervisor.start({name: loops[name]})
    await soon(lambda: len(done) == 2, "the next turn")
    assert failures == [name]
    await supervisor.cancel()


async def test_a_refused_sum_keeps_no_hold_from_its_end(database: Database) -> None:
    """The steps of one job ran one after the other, so a failing step blocked the later ones
    forever.
    """
    done: list[str] = []

    def noting(name: str) -> Callable[[], int]:
        return lambda: done.append(name) or 0  # type: ignore[func-returns-value]

    keeper = RollupKeeper(
        failing_once(database, "22003", []), noting("expire"), noting("lose"), FakeClock()
    )
    with pytest.raises(DBAPIError) as refused:
        await keeper.run_once()
    assert isinstance(refused.value.orig, psycopg.DataError)
    assert done == ["expire", "lose"]


async def test_a_stop_ends_roll_ups_whatever_a_later_step_raises() -> None:
    """If a step was cancelled, the next step's error replaced the cancellation, so SIGTERM did
    not end the job.
    """
    begun, may_go = threading.Event(), threading.Event()

    def held() -> int:
        begun.set()
        may_go.wait()
        return 0

    def away() -> int:
        raise DatabaseUnavailable("away")

    looking = asyncio.create_task(RollupKeeper(held, away, away, FakeClock()).run())
    await asyncio.to_thread(begun.wait)
    looking.cancel()
    await asyncio.wait([looking], timeout=5)
    may_go.set()
    assert looking.cancelled()
