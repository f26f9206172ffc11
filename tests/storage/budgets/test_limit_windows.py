"""The shared limit windows in a real Postgres: never above the limit, whichever worker asks and
whichever answer is lost.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from random import Random
from uuid import UUID, uuid4

import pytest
from sqlalchemy import text

from gateway.domain.budgets.limits import (
    TICK_MS,
    WINDOW_S,
    LimitAnswer,
    LimitAsk,
    LimitGranted,
    LimitUnit,
)
from gateway.errors import DatabaseUnavailable
from gateway.storage.budgets.limits import LimitWindows
from gateway.storage.postgres.database import Database

TICKS = WINDOW_S * 1000 // TICK_MS
MINUTE_AGO = "UPDATE tollgate.limit_ticks SET tick = tick - :ticks"
USED = (
    "SELECT coalesce(sum(units), 0) FROM tollgate.limit_ticks WHERE limit_id = :limit_id "
    "AND measure = 'requests'"
)
RUNNING = (
    "SELECT used FROM tollgate.limit_windows WHERE limit_id = :limit_id AND measure = 'requests'"
)


class Worker:
    """One worker's numbered exchanges."""

    def __init__(self, database_url: str) -> None:
        self.database = Database(database_url, role="tollgate_gateway")
        self.windows = LimitWindows(self.database)
        self.id: UUID = uuid4()
        self.number = 0

    def exchange(self, *asks: LimitAsk) -> LimitAnswer:
        self.number += 1
        return self.windows.exchange(self.id, self.number, asks)

    def ask(self, most: int, *needs: tuple[int, int], **more: object) -> LimitGranted:
        """Request units of `payments`' request limit; `more` replaces fields of the request."""
        fields = {
            "limit_id": "payments",
            "measure": LimitUnit.REQUESTS,
            "most": most,
            "needs": needs,
        } | more
        return self.exchange(LimitAsk(**fields)).answers[0]  # type: ignore[arg-type]

    def close(self) -> None:
        self.windows.close()
        self.database.close()


@pytest.fixture
def workers(database_url: str) -> Iterator[list[Worker]]:
    """Yield three workers of one database."""
    made = [Worker(database_url) for _ in range(3)]
    yield made
    for worker in made:
        worker.close()


def read(database: Database, query: str, **values: object) -> int:
    with database.begin() as connection:
        return int(connection.execute(text(query), values).scalar_one())


def later(database: Database, seconds: float) -> None:
    """Age the units taken so far by this many seconds."""
    with database.begin() as connection:
        connection.execute(text(MINUTE_AGO), {"ticks": int(seconds * 1000 // TICK_MS)})


def test_workers_share_one_window(workers: list[Worker]) -> None:
    """Five requests a minute are five for all workers together. A refused worker learns when
    units slide out.
    """
    first, second, third = workers
    assert first.ask(5, (1, 2)).granted == 2
    assert second.ask(5, (1, 4)).granted == 3
    refused = third.ask(5, (1, 1))
    assert (refused.granted, refused.used) == (0, 5)
    ((wait_ms, units), *_) = refused.slides
    assert 0 < wait_ms <= 60_000 + TICK_MS
    assert units in (2, 5)


def test_a_need_is_met_whole_or_not_at_all(workers: list[Worker]) -> None:
    """A part of a request's tokens is useless to it and missing elsewhere. A smaller request
    behind it may still fit.
    """
    assert workers[0].ask(1000, (300, 2), (500, 1), (100, 1)).granted == 700


def test_the_nearer_the_limit_the_less_is_taken_ahead(workers: list[Worker]) -> None:
    """All workers together may take an eighth of the rest ahead of need. They take nothing ahead
    if a need was not met.
    """
    for worker in workers:
        worker.exchange()
    assert workers[0].ask(1000, ahead=500).granted == 1000 // 24
    assert workers[1].ask(1000, (1, 940), ahead=500).granted == 940
    assert workers[2].ask(1000, (1, 30), ahead=500).granted == 1000 - 940 - 1000 // 24


def test_units_slide_out_after_a_minute_and_not_before(
    workers: list[Worker], database: Database
) -> None:
    """The limit holds for any 60 seconds; a unit that left early would let a burst through at
    the edge.
    """
    workers[0].ask(5, (1, 5))
    later(database, 59)
    assert workers[1].ask(5, (1, 1)).granted == 0
    later(database, 1.05)
    assert workers[1].ask(5, (1, 5)).granted == 5
    assert read(database, "SELECT count(*) FROM tollgate.limit_ticks") == 1, (
        "old ticks are deleted as they go"
    )


def test_returned_units_are_available_to_others(workers: list[Worker], database: Database) -> None:
    """Units are returned at the tick at which they were taken. The rest of that tick still
    slides out with it.
    """
    taken = workers[0].ask(5, (1, 5))
    workers[0].ask(5, corrections=((taken.tick, -3),))
    assert workers[1].ask(5, (1, 4)).granted == 0 + 3
    assert (
        read(database, USED, limit_id="payments")
        == read(database, RUNNING, limit_id="payments")
        == 5
    )


def test_units_used_without_asking_postgres_count(workers: list[Worker]) -> None:
    """Such units count even beyond the limit, at the tick of their use. Corrections that are too
    old or too large do no harm.
    """
    now = workers[0].ask(5).tick
    answered = workers[0].ask(
        5, corrections=((now - 40, 4), (0, 2), (now - TICKS - 80, 9), (now - 40, -1), (now, -99))
    )
    assert answered.used in (3, 5), "what is given back at the current tick may be what had no tick"
    assert workers[1].ask(3, (1, 1)).granted == 0


def test_the_same_question_has_the_same_answer(workers: list[Worker], database: Database) -> None:
    """If the answer was lost, a second taking would lose units, and a second return would invent
    some.
    """
    ask = LimitAsk(limit_id="payments", measure=LimitUnit.REQUESTS, most=10, needs=((1, 4),))
    first = workers[0].windows.exchange(workers[0].id, 7, [ask])
    again = workers[0].windows.exchange(workers[0].id, 7, [ask])
    assert (again.answers, again.is_repeat, first.is_repeat) == (first.answers, True, False)
    assert read(database, USED, limit_id="payments") == 4


def test_slots_are_shared_and_those_of_a_dead_worker_expire(
    workers: list[Worker], database: Database
) -> None:
    """A dead worker cannot free its slots; a live worker renews its own."""

    def slots(worker: Worker, kept: int, wanted: int) -> LimitGranted:
        return worker.ask(5, (1, wanted), measure=LimitUnit.CONCURRENT, kept=kept)

    assert slots(workers[0], 0, 3).granted == 3
    assert slots(workers[1], 0, 3).granted == 2
    assert slots(workers[0], 1, 1).granted == 2
    assert slots(workers[1], 2, 2).granted == 3
    with database.begin() as connection:
        aged = (
            "UPDATE tollgate.limit_slots SET renewed_at = renewed_at - interval '16 s' "
            "WHERE worker = :worker"
        )
        connection.execute(text(aged), {"worker": workers[0].id})
    assert slots(workers[1], 3, 9).granted == 5
    assert slots(workers[2], 0, 5).granted == 0


def test_workers_with_a_recent_heartbeat_are_counted(
    workers: list[Worker], database: Database
) -> None:
    """While Postgres is away, each worker uses its share of the limit. Only live workers may
    count in that share.
    """
    assert [worker.exchange().workers for worker in workers] == [1, 2, 3]
    with database.begin() as connection:
        connection.execute(
            text("UPDATE tollgate.limit_workers SET heard_at = heard_at - interval '16 s'")
        )
    assert workers[0].exchange().workers == 1


def test_unused_limits_leave_no_rows(workers: list[Worker], database: Database) -> None:
    """Callers choose project names freely, and each name has rows."""
    for number in range(5):
        workers[0].ask(5, (1, 1), limit_id=f"payments/project:{number}")
        workers[0].ask(
            5, (1, 1), limit_id=f"payments/project:{number}", measure=LimitUnit.CONCURRENT
        )
    with database.begin() as connection:
        connection.execute(
            text("UPDATE tollgate.limit_windows SET touched_at = touched_at - interval '3 minutes'")
        )
    workers[1].exchange()
    for table in ("limit_windows", "limit_ticks", "limit_slots"):
        assert read(database, f"SELECT count(*) FROM tollgate.{table}") == 0, table


def test_a_clock_that_was_set_back_does_not_fill_the_window(
    workers: list[Worker], database: Database
) -> None:
    """Ticks in the future would count until their time has passed: an hour if the clock was an
    hour ahead.
    """
    workers[0].ask(5, (1, 5))
    later(database, -3600)
    assert workers[0].ask(5, (1, 5)).granted == 5


def test_many_at_once_are_never_over_and_never_in_each_others_way(
    workers: list[Worker], database: Database, rng: Random
) -> None:
    """Three workers use several limits in any order, with returns in between. The sums hold, and
    Postgres aborts none.
    """
    names = ("a", "b", "c", "d")
    most, problems, net = 60, list[BaseException](), dict.fromkeys(names, 0)
    lock = threading.Lock()

    def work(worker: Worker, random: Random) -> None:
        mine: dict[str, list[tuple[int, int]]] = {name: [] for name in names}
        try:
            for _ in range(150):
                chosen, asks = random.sample(names, k=random.randint(1, 4)), []
                for name in chosen:
                    back = (
                        [(tick, -units) for tick, units in mine[name] if units]
                        if random.random() < 0.4
                        else []
                    )
                    if back:
                        mine[name] = []
                    asks.append(
                        LimitAsk(
                            limit_id=name,
                            measure=LimitUnit.REQUESTS,
                            most=most,
                            needs=((1, random.randint(1, 9)),),
                            ahead=random.randint(0, 5),
                            corrections=tuple(back),
                        )
                    )
                for answered in worker.exchange(*asks).answers:
                    assert answered.used <= most
                    mine[answered.limit_id].append((answered.tick, answered.granted))
        except BaseException as problem:
            problems.append(problem)
        with lock:
            for name in names:
                net[name] += sum(units for _, units in mine[name])

    threads = [
        threading.Thread(target=work, args=(worker, Random(rng.random()))) for worker in workers
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not problems
    for name in names:
        assert (
            read(database, USED, limit_id=name)
            == read(database, RUNNING, limit_id=name)
            == net[name]
            <= most
        )


def test_a_connection_that_broke_is_replaced(workers: list[Worker], database: Database) -> None:
    """After a restart of the server, every request's limit is still checked."""
    workers[0].ask(5, (1, 1))
    with database.begin() as connection:
        connection.execute(
            text(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = "
                "current_database() AND pid <> pg_backend_pid()"
            )
        )
    assert workers[0].ask(5, (1, 1)).used == 2


def test_an_exchange_that_hangs_can_be_broken_off(
    workers: list[Worker], database: Database
) -> None:
    """A row that another session locks must not block the worker's thread."""
    workers[0].ask(5, (1, 1))
    with database.begin() as connection:
        connection.execute(text("SELECT FROM tollgate.limit_windows FOR UPDATE"))
        with pytest.raises(DatabaseUnavailable):
            workers[0].ask(5, (1, 1))
    assert workers[0].ask(5, (1, 1)).granted == 1
