"""Claims of idempotency keys on a real Postgres: of two equal requests one is sent, and every
claim ends.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import timedelta
from itertools import count
from threading import Barrier
from typing import Any
from uuid import UUID

import hypothesis.strategies as st
import psycopg
import pytest
from hypothesis import settings
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from sqlalchemy import text

from gateway.domain.pricing.tokens import TokenUsage, UsageSource
from gateway.domain.request import idempotency
from gateway.domain.request.idempotency import KEPT, Claim, Earlier
from gateway.errors import DatabaseUnavailable, IdempotencyConflict, Unavailable
from gateway.services.request.idempotency import Claims
from gateway.storage.budgets.idempotency import ClaimTable, close_orphans
from gateway.storage.ledger.documents import encode_event
from gateway.storage.ledger.journals_table import JournalTable
from gateway.storage.ledger.ledger import Ledger
from gateway.storage.postgres.database import Database
from tests.canary import PROMPT, dump
from tests.fakes import FakeClock
from tests.postgres import separate_server
from tests.storage.dropping_proxy import DroppingProxy
from tests.storage.factories import PEPPER, event, request_id
from tests.waiting import eventually

SECRET = idempotency.claim_secret(PEPPER)
OURS, THEIRS = UUID(int=1), UUID(int=2)  # journals
BODY, OTHER_BODY = b"b" * 32, b"o" * 32
# For tests that do not test slowness: the machine may be busy.
PATIENT_MS, PATIENT_S = (
    30_000,
    60.0,
)
WAITING = (
    "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = "
    "'Lock'"
)
UNKNOWN: dict[str, Any] = {
    "usage": TokenUsage(),
    "usage_source": UsageSource.UNKNOWN,
    "lines": (),
    "cost_nusd": None,
    "held_nusd": 9,
}
CHARGED: dict[str, Any] = {}
FREE: dict[str, Any] = {"lines": (), "cost_nusd": 0, "usage_source": UsageSource.NONE}


@pytest.fixture
def gateway(database_url: str) -> Iterator[Database]:
    """Yield the database in the gateway's role, whose rights must be enough for claims."""
    gateway = Database(database_url, role="tollgate_gateway")
    yield gateway
    gateway.close()


@pytest.fixture
def own_server() -> Iterator[str]:
    """Yield the URL of a server whose processes may be stopped without harm to other tests."""
    with separate_server() as url:
        yield url


@pytest.fixture
def table(gateway: Database) -> Iterator[ClaimTable]:
    """Yield the claims table of this test's database."""
    table = ClaimTable(gateway, limit_ms=PATIENT_MS)
    yield table
    table.close()


def a_claim(number: int = 1, *, team: str = "payments", key: str = "k") -> Claim:
    """Return request `number`'s claim of a key."""
    hashed = idempotency.key_hash(team, key, secret=SECRET)
    return Claim(team=team, key_hash=hashed, request_id=request_id(number))


def claim(
    table: ClaimTable, number: int = 1, *, body: bytes = BODY, journal_id: UUID = OURS
) -> Earlier | None:
    """Claim one key for request `number`."""
    return table.claim(a_claim(number), body, journal_id=journal_id)


def claims_of(
    database: Database, journal_id: UUID = OURS, *, patience_s: float = PATIENT_S
) -> Claims:
    """Return a worker's claims."""
    table = ClaimTable(database, limit_ms=PATIENT_MS)
    return Claims(table, FakeClock(), secret=SECRET, journal_id=journal_id, patience_s=patience_s)


def rows(database: Database) -> list[tuple[UUID, str]]:
    with database.begin() as connection:
        statement = "SELECT request_id, state FROM tollgate.idempotency_claims ORDER BY request_id"
        return [(row.request_id, row.state) for row in connection.execute(text(statement))]


def is_waiting(database: Database) -> bool:
    """Return True if a session waits for a lock. Each call uses a new transaction, because
    within one Postgres shows one moment.
    """
    with database.begin() as connection:
        return connection.execute(text(WAITING)).first() is not None


def run(database: Database, statement: str, **values: object) -> None:
    with database.begin() as connection:
        connection.execute(text(statement), values)


def age(database: Database, by: timedelta, *, number: int | None = None) -> None:
    """Age the claims, or only the claim of one request."""
    run(
        database,
        "UPDATE tollgate.idempotency_claims SET claimed_at = claimed_at - CAST(:by AS interval) "
        "WHERE request_id = coalesce(CAST(:id AS uuid), request_id)",
        by=by,
        id=None if number is None else request_id(number),
    )


def end_journal(database: Database, journal_id: UUID, *, state: str, closes: bool = True) -> None:
    """Mark a journal drained or lost, as its table does; `closes` also closes its claims in that
    transaction.
    """
    with database.begin() as connection:
        connection.execute(
            text(
                "INSERT INTO tollgate.journals (id, replica, state) VALUES (:id, 'r', :state) "
                "ON CONFLICT (id) DO UPDATE SET state = excluded.state"
            ),
            {"id": journal_id, "state": state},
        )
        if closes:
            close_orphans(connection, journal_id, is_lost=state == "lost")


def running(number: int, *, is_same_body: bool = True) -> Earlier:
    return Earlier(request_id=request_id(number), is_same_body=is_same_body, is_finished=False)


def finished(number: int, *, is_same_body: bool = True) -> Earlier:
    return Earlier(request_id=request_id(number), is_same_body=is_same_body, is_finished=True)


# ---- claiming, finishing, releasing, expiring


def test_a_key_is_claimed_once(table: ClaimTable) -> None:
    """The second of two requests learns which request holds the key, and whether the bodies are
    the same.
    """
    assert claim(table, 1) is None
    assert claim(table, 2) == running(1)
    assert claim(table, 2, body=OTHER_BODY) == running(1, is_same_body=False)


def test_teams_do_not_meet(table: ClaimTable) -> None:
    """The same hash under another team is another key."""
    assert claim(table, 1) is None
    assert table.claim(replace(a_claim(2), team="search"), BODY, journal_id=OURS) is None


def test_a_finished_claim_stays_for_a_day(table: ClaimTable, database: Database) -> None:
    """A request that may have been charged must not be sent again."""
    claim(table, 1)
    table.end([(a_claim(1), True)])
    age(database, KEPT - timedelta(minutes=1))
    assert claim(table, 2) == finished(1)
    assert claim(table, 2, body=OTHER_BODY) == finished(1, is_same_body=False)
    assert table.forget() == 0


@pytest.mark.parametrize("was_charged", [None, True])
def test_a_claim_ends_after_a_day(
    table: ClaimTable, database: Database, was_charged: bool | None
) -> None:
    """Its row may still exist; the next request takes it over with any body."""
    claim(table, 1)
    if was_charged:
        table.end([(a_claim(1), True)])
    age(database, KEPT)
    assert claim(table, 2, body=OTHER_BODY) is None
    assert claim(table, 3, body=OTHER_BODY) == running(2)
    table.end([(a_claim(1), True)])
    assert rows(database) == [(request_id(2), "running")], (
        "the first request's late end is not the second's"
    )


def test_a_released_key_is_free(table: ClaimTable, database: Database) -> None:
    """A repeat of a request that cost nothing is a new try."""
    claim(table, 1)
    table.end([(a_claim(1), False)])
    assert rows(database) == []
    assert claim(table, 2, body=OTHER_BODY) is None


def test_ends_are_harmless_twice_and_out_of_turn(table: ClaimTable, database: Database) -> None:
    """Ends are written again whenever an answer of Postgres is lost."""
    claim(table, 1)
    table.end([(a_claim(1), True)])
    table.end(
        [
            (a_claim(1), True),
            (a_claim(1), False),
            (a_claim(2), False),
            (a_claim(3, key="never"), False),
        ]
    )
    assert rows(database) == [(request_id(1), "finished")]


@pytest.mark.parametrize(
    ("cost", "state"), [(CHARGED, "finished"), (UNKNOWN, "finished"), (FREE, None)]
)
def test_a_ledger_event_outranks_a_release(
    table: ClaimTable, database: Database, cost: dict[str, Any], state: str | None
) -> None:
    """A release by mistake would cause a second charge."""
    claim(table, 1)
    Ledger(database).write([event(1, **FREE), event(1, attempt=2, **cost)])
    table.end([(a_claim(1), False)])
    assert rows(database) == ([(request_id(1), state)] if state else [])


def test_old_claims_are_forgotten_in_batches(table: ClaimTable, database: Database) -> None:
    """A day of keyed traffic is deleted while requests go on claiming."""
    run(
        database,
        "INSERT INTO tollgate.idempotency_claims (team, key_hash, body_hash, request_id, "
        "journal_id, claimed_at) SELECT 'bulk', sha256(n::text::bytea), sha256(''), "
        "gen_random_uuid(), gen_random_uuid(), now() - :kept FROM generate_series(1, 2500) AS n",
        kept=KEPT,
    )
    claim(table, 1)
    assert table.forget() == 2500
    assert rows(database) == [(request_id(1), "running")]


# ---- twins


def test_of_a_thousand_pairs_of_twins_exactly_one_each_is_sent(database_url: str) -> None:
    """Two workers receive the same click at the same moment, each on its own connection."""
    pairs, barrier = 1000, Barrier(2)

    def worker(which: int) -> list[Earlier | None]:
        own = Database(database_url, role="tollgate_gateway")
        table, answers = ClaimTable(own, limit_ms=PATIENT_MS), []
        for pair in range(pairs):
            barrier.wait(timeout=60)
            asks = a_claim(2 * pair + which, key=f"k{pair}")
            answers.append(table.claim(asks, BODY, journal_id=UUID(int=which)))
        table.close()
        own.close()
        return answers

    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(worker, (0, 1))
    for pair, both in enumerate(zip(first, second, strict=True)):
        loser = 0 if both[1] is None else 1
        assert both[1 - loser] is None
        assert both[loser] == running(2 * pair + 1 - loser), f"pair {pair}"


def test_of_twins_that_find_an_orphan_or_an_old_claim_one_is_sent(
    table: ClaimTable, database: Database
) -> None:
    """Taking a claim over must be as atomic as making one."""
    end_journal(database, THEIRS, state="drained", closes=False)
    for number in range(0, 300, 3):
        claimed = a_claim(number, key=f"k{number}")
        assert table.claim(claimed, BODY, journal_id=THEIRS if number % 2 else OURS) is None
        if number % 2 == 0:
            age(database, KEPT, number=number)
        with ThreadPoolExecutor(2) as pool:
            asked = [replace(claimed, request_id=request_id(number + n)) for n in (1, 2)]
            answers = list(pool.map(lambda one: table.claim(one, BODY, journal_id=OURS), asked))
        assert sorted(answer is None for answer in answers) == [False, True], number


def test_a_repeat_during_the_final_write_gets_one_consistent_answer(table: ClaimTable) -> None:
    """The answer must never be that the key is free if the request was charged."""
    for number in range(0, 200, 2):
        claimed = a_claim(number, key=f"k{number}")
        table.claim(claimed, BODY, journal_id=OURS)
        with ThreadPoolExecutor(2) as pool:
            ending = pool.submit(table.end, [(claimed, True)])
            again = pool.submit(
                table.claim,
                replace(claimed, request_id=request_id(number + 1)),
                BODY,
                journal_id=OURS,
            )
            ending.result()
            assert again.result() in (running(number), finished(number))


# ---- a worker that dies


CLAIM_AND_DIE = """
import os, signal, sys
from uuid import UUID
from gateway.domain.request.idempotency import Claim
from gateway.storage.postgres import migrations
from gateway.storage.postgres.database import Database
from gateway.storage.ledger.documents import encode_event
from gateway.storage.postgres.embedded import EmbeddedPostgres
from gateway.storage.budgets.idempotency import ClaimTable
url, team, key_hash, request_id, journal_id = sys.argv[1:]
claim = Claim(team=team, key_hash=bytes.fromhex(key_hash), request_id=UUID(request_id))
table = ClaimTable(Database(url, role="tollgate_gateway"))
assert table.claim(claim, b"b" * 32, journal_id=UUID(journal_id)) is None
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("closes", [True, False])
def test_a_claim_of_a_killed_worker_is_released_by_its_journal(
    table: ClaimTable, database: Database, database_url: str, closes: bool
) -> None:
    """If the worker dies right after its claim, nothing was sent.

    The claim may also come after the end of the journal.
    """
    claimed = a_claim(1)
    died = subprocess.run(
        [
            sys.executable,
            "-c",
            CLAIM_AND_DIE,
            database_url,
            claimed.team,
            claimed.key_hash.hex(),
            str(claimed.request_id),
            str(THEIRS),
        ],
        check=False,
        timeout=60,
    )
    assert died.returncode == -signal.SIGKILL
    assert claim(table, 2) == running(1), "while its journal may hold events"
    end_journal(database, THEIRS, state="drained", closes=closes)
    assert claim(table, 2) is None
    assert rows(database) == [(request_id(2), "running")]


@pytest.mark.parametrize("closes", [True, False])
@pytest.mark.parametrize(
    ("events", "is_charged"),
    [
        ([], False),
        ([FREE], False),
        ([FREE, CHARGED], True),
        ([UNKNOWN], True),
        ([FREE, UNKNOWN, FREE], True),
    ],
)
def test_the_ledger_decides_the_claims_of_a_drained_journal(
    table: ClaimTable,
    database: Database,
    events: list[dict[str, Any]],
    is_charged: bool,
    closes: bool,
) -> None:
    """The worker died before it ended its claims; its events in the ledger decide instead."""
    claim(table, 1, journal_id=THEIRS)
    claim(table, 9, journal_id=THEIRS)
    others = a_claim(3, key="others")
    table.claim(others, BODY, journal_id=OURS)
    Ledger(database).write(
        [event(1, attempt=n, **changes) for n, changes in enumerate(events, start=1)]
    )
    end_journal(database, THEIRS, state="drained", closes=closes)
    assert claim(table, 2, body=BODY if is_charged else OTHER_BODY) == (
        finished(1) if is_charged else None
    )
    first = (request_id(1), "finished") if is_charged else (request_id(2), "running")
    assert rows(database) == [first, (request_id(3), "running")], (
        "and closed in the table, another worker's alone not"
    )


@pytest.mark.parametrize("closes", [True, False])
def test_an_event_that_the_ledger_could_not_take_may_have_cost(
    table: ClaimTable, database: Database, closes: bool
) -> None:
    """A dead letter may contain a cost, so a person has to check it first."""
    claim(table, 1, journal_id=THEIRS)
    odd = event(1, cost_nusd=2**70)
    assert Ledger(database).write_documents([encode_event(odd)], journal_id=THEIRS).dead == 1
    end_journal(database, THEIRS, state="drained", closes=closes)
    assert claim(table, 2) == finished(1)


@pytest.mark.parametrize("closes", [True, False])
def test_a_lost_journals_claims_may_all_have_cost(
    table: ClaimTable, database: Database, closes: bool
) -> None:
    """The contents of a lost journal are unknown."""
    claim(table, 1, journal_id=THEIRS)
    end_journal(database, THEIRS, state="lost", closes=closes)
    assert claim(table, 2) == finished(1)
    assert rows(database) == [(request_id(1), "finished")]
    end_journal(database, THEIRS, state="drained")
    assert claim(table, 2) == finished(1), "also where it turned up after all"


def test_a_silent_workers_claim_is_finished_by_a_charge_and_by_nothing_else(
    table: ClaimTable, database: Database
) -> None:
    """Its volume may come back with more events, so a missing charge in the ledger proves
    nothing yet.
    """
    claim(table, 1, journal_id=THEIRS)
    run(database, "INSERT INTO tollgate.journals (id, replica) VALUES (:id, 'r')", id=THEIRS)
    Ledger(database).write([event(1)])
    assert claim(table, 2) == running(1), "a live worker may be at its second attempt"
    run(database, "UPDATE tollgate.journals SET heartbeat = now() - interval '2 minutes'")
    assert claim(table, 2) == finished(1)
    free = a_claim(3, key="free")
    table.claim(free, BODY, journal_id=THEIRS)
    Ledger(database).write([event(3, **FREE)])
    assert table.claim(replace(free, request_id=request_id(4)), BODY, journal_id=OURS) == running(3)


def test_orphans_are_closed_with_the_note_or_not_at_all(
    table: ClaimTable, database: Database
) -> None:
    """Both happen in one transaction, so a drained journal has no claim in state `running`."""
    claim(table, 1, journal_id=THEIRS)
    with database.engine.connect() as connection:
        close_orphans(connection, THEIRS)
        connection.rollback()
    assert rows(database) == [(request_id(1), "running")]


def test_the_note_of_a_drained_journal_closes_its_claims(
    table: ClaimTable, database: Database
) -> None:
    """Without this the next claimant decides the same, but until then the table shows `running`
    for an ended claim.
    """
    claim(table, 1, journal_id=THEIRS)
    table.claim(a_claim(3, key="free"), BODY, journal_id=THEIRS)
    Ledger(database).write([event(1), event(3, **FREE)])
    JournalTable(database).drained(THEIRS)
    assert rows(database) == [(request_id(1), "finished")]


# ---- Postgres away, slow, or its answer lost


def test_a_claim_whose_commit_answer_was_lost_finds_itself(
    gateway: Database, database_url: str
) -> None:
    """On a kept connection the claim is made again at once and finds itself."""
    proxy = DroppingProxy(database_url)
    through = Database(proxy.url, role="tollgate_gateway")
    table = ClaimTable(through, limit_ms=PATIENT_MS)
    try:
        table.forget()  # opens the connection
        proxy.lose_commit()
        assert claim(table, 1) is None
        assert proxy.lost == 1
        assert claim(table, 2) == running(1)
    finally:
        table.close()
        through.close()
        proxy.close()


async def test_an_unconfirmed_claim_is_released(database: Database, database_url: str) -> None:
    """The caller received an answer that nothing was sent. Its repeat, at another worker, must
    be a new try.
    """
    proxy = DroppingProxy(database_url)
    through, direct = Database(proxy.url), Database(database_url)
    one = claims_of(through, THEIRS)
    other = claims_of(direct)
    try:
        proxy.lose_commit()
        with pytest.raises(Unavailable):
            await one.claim("payments", "k", endpoint="/", body=b"", request_id=request_id(1))
        assert (proxy.lost, rows(database)) == (1, [(request_id(1), "running")])
        with pytest.raises(IdempotencyConflict):
            await other.claim("payments", "k", endpoint="/", body=b"", request_id=request_id(2))
        assert await one.run_once()
        await other.claim("payments", "k", endpoint="/", body=b"", request_id=request_id(3))
        assert rows(database) == [(request_id(3), "running")]
    finally:
        await one.close()
        await other.close()
        through.close()
        direct.close()
        proxy.close()


def test_a_release_waits_for_a_claim_on_its_way(
    table: ClaimTable, database: Database, database_url: str
) -> None:
    """A release that overtakes its claim's commit would delete nothing, and the key would be
    blocked for a day.
    """
    late = a_claim(1)
    with psycopg.connect(database_url) as connection, ThreadPoolExecutor(1) as pool:
        connection.execute(
            "INSERT INTO tollgate.idempotency_claims (team, key_hash, body_hash, request_id, "
            "journal_id) VALUES (%s, %s, %s, %s, %s)",
            (late.team, late.key_hash, BODY, late.request_id, OURS),
        )
        releasing = pool.submit(table.end, [(late, False)])
        eventually(lambda: is_waiting(database), "the release at the claim's row")
        connection.commit()
        releasing.result(timeout=30)
    assert rows(database) == []


def test_a_slow_postgres_ends_a_claim_by_itself(
    table: ClaimTable, gateway: Database, database: Database
) -> None:
    """A long lock, such as a migration's, must not hold requests. The next claim is served."""
    hasty = ClaimTable(gateway, limit_ms=50)
    with database.engine.connect() as upgrade:
        upgrade.execute(text("LOCK TABLE tollgate.idempotency_claims IN ACCESS EXCLUSIVE MODE"))
        with pytest.raises(DatabaseUnavailable, match="took longer than its limit"):
            claim(hasty, 1)
        upgrade.rollback()
    hasty.close()
    assert claim(table, 2) is None


async def test_a_postgres_that_hangs_is_cut_off(own_server: str) -> None:
    """The server neither answers nor closes the connection, so Postgres's own timeouts cannot
    end this.
    """
    gateway, database = Database(own_server, role="tollgate_gateway"), Database(own_server)
    claims = claims_of(gateway, patience_s=2)
    await claims.claim("payments", "first", endpoint="/", body=b"", request_id=request_id(1))
    with database.begin() as connection:
        others = (
            "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND pid "
            "<> pg_backend_pid()"
        )
        (pid,) = connection.execute(text(others)).scalars()
    os.kill(pid, signal.SIGSTOP)
    try:
        with pytest.raises(Unavailable):
            await claims.claim("payments", "k", endpoint="/", body=b"", request_id=request_id(2))
    finally:
        os.kill(pid, signal.SIGCONT)
    made = await claims.claim("payments", "k", endpoint="/", body=b"", request_id=request_id(3))
    claims.finish(made, was_charged=True)
    assert await claims.run_once()
    assert rows(database) == [(request_id(1), "running"), (request_id(3), "finished")]
    await claims.close()
    gateway.close()
    database.close()


# ---- the stored form


async def test_neither_key_nor_body_is_stored(
    table: ClaimTable, database: Database, database_url: str
) -> None:
    """A caller may put a secret into a key, and prompts are never stored."""
    gateway = Database(database_url, role="tollgate_gateway")
    claims = claims_of(gateway)
    key, body = "canary-key-5f0e", f'{{"prompt": "{PROMPT}"}}'.encode()
    for number in (1, 2):
        made = await claims.claim(
            "payments", f"{key}-{number}", endpoint="/v1", body=body, request_id=UUID(int=number)
        )
        claims.finish(made, was_charged=True)
        if number == 1:
            assert await claims.run_once()
    stored = dict(dump(database_url))
    assert stored["tollgate.idempotency_claims"].count(b"payments") == 2
    for secret in (key, PROMPT):
        for form in (secret.encode(), secret.encode().hex().encode()):  # bytea is shown in hex
            assert all(form not in content for content in stored.values())
    await claims.close()
    gateway.close()


# ---- a model


ENDS = (None, FREE, CHARGED, UNKNOWN)  # the ledger's entry for a request that is over


@dataclass
class Modelled:
    """The model's state of one key: its request, its body, its worker, and whether the claim has
    ended.
    """

    number: int
    body: bytes
    worker: int
    is_finished: bool = False


class ClaimsMachine(RuleBasedStateMachine):
    """A machine with two workers that claim, end, crash and age claims in any order, against a
    plain dictionary.
    """

    def __init__(self, database: Database, numbers: Iterator[int]) -> None:
        super().__init__()
        self.database, self.numbers = database, numbers
        run(database, "TRUNCATE tollgate.idempotency_claims, tollgate.journals")
        self.table, self.ledger = ClaimTable(database, limit_ms=PATIENT_MS), Ledger(database)
        self.model: dict[tuple[str, str], Modelled] = {}
        self.journals = [UUID(int=next(numbers)), UUID(int=next(numbers))]

    def teardown(self) -> None:
        self.table.close()
        self.ledger.close()

    def running(self) -> list[tuple[tuple[str, str], Modelled]]:
        return [(place, one) for place, one in self.model.items() if not one.is_finished]

    @rule(
        worker=st.integers(0, 1),
        team=st.sampled_from(["a", "b"]),
        key=st.sampled_from(["k", "l"]),
        body=st.sampled_from([BODY, OTHER_BODY]),
    )
    def claim(self, worker: int, team: str, key: str, body: bytes) -> None:
        number = next(self.numbers)
        made = a_claim(number, team=team, key=key)
        found = self.table.claim(made, body, journal_id=self.journals[worker])
        held = self.model.get((team, key))
        if held is None:
            assert found is None
            self.model[team, key] = Modelled(number, body, worker)
        else:
            expected = running(held.number, is_same_body=held.body == body)
            assert found == replace(expected, is_finished=held.is_finished)

    @precondition(lambda self: self.running())
    @rule(data=st.data(), twice=st.booleans())
    def end(self, data: st.DataObject, twice: bool) -> None:
        """End a claim as charged or not charged.

        Its event may be in the ledger already, or may never come.
        """
        place, one = data.draw(st.sampled_from(self.running()))
        costs = self._settle(one, data.draw(st.sampled_from(ENDS)))
        made = a_claim(one.number, team=place[0], key=place[1])
        for _ in range(1 + twice):
            self.table.end([(made, costs)])
        self._close(place, one, costs=costs)

    @precondition(lambda self: self.running())
    @rule(
        data=st.data(), fate=st.sampled_from(["drained", "drained", "lost"]), closes=st.booleans()
    )
    def crash(self, data: st.DataObject, fate: str, closes: bool) -> None:
        """End a worker, write its journal and mark it. If `closes` is False, its claims came
        after that.
        """
        _, first = data.draw(st.sampled_from(self.running()))
        left = [(place, one) for place, one in self.running() if one.worker == first.worker]
        costs = [self._settle(one, data.draw(st.sampled_from(ENDS))) for _, one in left]
        end_journal(self.database, self.journals[first.worker], state=fate, closes=closes)
        for (place, one), was_charged in zip(left, costs, strict=True):
            self._close(place, one, costs=fate == "lost" or was_charged)
        self.journals[first.worker] = UUID(int=next(self.numbers))

    @precondition(lambda self: self.model)
    @rule(data=st.data(), is_whole=st.booleans(), forgets=st.booleans())
    def grow_old(self, data: st.DataObject, is_whole: bool, forgets: bool) -> None:
        """Age one claim by a day, which ends it, or by a minute, which changes nothing."""
        place, one = data.draw(
            st.sampled_from(sorted(self.model.items(), key=lambda item: item[0]))
        )
        age(self.database, KEPT if is_whole else timedelta(minutes=1), number=one.number)
        if is_whole:
            del self.model[place]
        if forgets:
            self.table.forget()

    @invariant()
    def charged_requests_keep_their_keys(self) -> None:
        kept = {str(number) for number, _ in rows(self.database)}
        assert {
            str(request_id(one.number)) for one in self.model.values() if one.is_finished
        } <= kept

    def _settle(self, one: Modelled, changes: dict[str, Any] | None) -> bool:
        """Write an event or nothing. Return True if the attempt may have cost something."""
        if changes is None:
            return False
        self.ledger.write([event(one.number, **changes)])
        return changes is not FREE

    def _close(self, place: tuple[str, str], one: Modelled, *, costs: bool) -> None:
        if costs:
            one.is_finished = True
        else:
            del self.model[place]


def test_any_order_of_claims_ends_crashes_and_days_is_as_the_model_says(database: Database) -> None:
    """A request that may have been charged is never sent twice. A request that was not charged
    never blocks its key.
    """
    numbers = count(10)  # never reuse an id: events are permanent
    run_state_machine_as_test(
        lambda: ClaimsMachine(database, numbers),
        settings=settings(max_examples=settings().max_examples // 4, stateful_step_count=30),
    )


def test_claims_are_counted_while_their_loop_goes_on(gateway: Database) -> None:
    """Forty requests at once go through four slots, and each gets its own answer."""

    async def at_once() -> list[object]:
        claims = claims_of(gateway)
        asked = [
            claims.claim("payments", f"k{n % 20}", endpoint="/", body=b"", request_id=request_id(n))
            for n in range(40)
        ]
        answers = await asyncio.gather(*asked, return_exceptions=True)
        await claims.close()
        return list(answers)

    answers = asyncio.run(at_once())
    assert sum(isinstance(answer, Claim) for answer in answers) == 20
    assert sum(isinstance(answer, IdempotencyConflict) for answer in answers) == 20
