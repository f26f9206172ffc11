"""Postgres is lost under a running gateway and under a starting one: only known keys work, and
only for the stated time.
"""

from __future__ import annotations

import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import psycopg
import pytest

from gateway.api.authenticate import authenticate, caller_of
from gateway.domain.checks import Status
from gateway.errors import RequestError
from gateway.services.snapshot.refresh import Refresher
from gateway.services.snapshot.snapshot import SnapshotHolder, problems, snapshot_checks
from gateway.services.snapshot.source import StoredSnapshots
from gateway.services.supervisor import Supervisor
from gateway.storage.deployments.ejections import EjectionStore
from gateway.storage.policy.keys import KeyStore
from gateway.storage.policy.last_snapshot import SnapshotFile
from gateway.storage.policy.policies import PolicyStore
from gateway.storage.policy.price_list import builtin_price
from gateway.storage.policy.prices import PriceStore
from gateway.storage.postgres.change_notifications import ChangeFeed
from gateway.storage.postgres.database import Database
from tests import plain_http
from tests.factories import PEPPER, key, key_record
from tests.fakes import FakeClock
from tests.gateway_process import FakeUpstreamProcess, Gateway, StartGateway
from tests.integration.policy import small
from tests.integration.postgres_gate import PostgresGate
from tests.waiting import eventually, soon

MINE, REVOKED, UNKNOWN = key(1), key(2), key(9)
OUTAGE_S = 600.0
LONG_S = 3600.0  # so rare that a poll would come too late for any test
REVOKED_WITHIN_S = 5.0  # promised, in seconds


@pytest.fixture
def keys(key_store: KeyStore) -> KeyStore:
    """Return the key store of a database with a policy and two keys of team payments."""
    for each in (MINE, REVOKED):
        key_store.create(key_record(each), created_by="ada")
    return key_store


@dataclass
class Replica:
    """A worker's snapshot as `main` assembles it, without the gateway around it."""

    database: Database
    home: Path
    every_s: float = 0.05
    clock: FakeClock = field(default_factory=FakeClock)
    first_look_s: float = 3.0

    def __post_init__(self) -> None:
        database = self.database
        source = StoredSnapshots(
            policies=PolicyStore(database),
            keys=KeyStore(database),
            ejections=EjectionStore(database),
            prices=PriceStore(database),
            wait_for_change=ChangeFeed(database).wait,
            peppers={PEPPER.pepper_id: PEPPER},
            builtin=builtin_price,
            clock=self.clock,
        )
        self.path = self.home / "snapshot"
        self.holder = SnapshotHolder(clock=self.clock, outage_s=OUTAGE_S)
        self.refresher = Refresher(
            source,
            self.holder,
            every_s=self.every_s,
            clock=self.clock,
            on_swap=lambda snapshot: None,
            shelf=SnapshotFile(self.path, (PEPPER,), now=self.clock.now),
            first_look_s=self.first_look_s,
        )

    def answer(self, sent: str) -> str:
        """Return the team of a key, or the code of its refusal."""
        headers = [(b"authorization", f"Bearer {sent}".encode())]
        try:
            return authenticate(headers, self.holder, now=self.clock.now, allows_demo=False).team
        except RequestError as error:
            return error.code

    async def result_for(self, sent: str) -> str:
        """Return the same for a caller: Postgres is queried once more if that can change the
        answer.
        """
        try:
            headers = [(b"api-key", sent.encode())]
            return (
                await caller_of(headers, self.holder, now=self.clock.now, allows_demo=False)
            ).team
        except RequestError as error:
            return error.code

    def answers(self) -> list[str]:
        return [self.answer(each) for each in (MINE, REVOKED, UNKNOWN)]


@asynccontextmanager
async def running(*replicas: Replica) -> AsyncIterator[None]:
    """Run replicas in the background, as a gateway does."""
    supervisors = [Supervisor(replica.clock, on_failure=lambda loop: None) for replica in replicas]
    for replica, supervisor in zip(replicas, supervisors, strict=True):
        supervisor.start(replica.refresher.loops())
    try:
        yield
    finally:
        for replica, supervisor in zip(replicas, supervisors, strict=True):
            await supervisor.cancel()
            await replica.refresher.close()


@pytest.fixture
def replicas(admission: PostgresGate, tmp_path: Path) -> Iterator[list[Replica]]:
    """Yield two workers of two machines in the gateway's role."""
    databases = [Database(admission.url, role="tollgate_gateway") for _ in range(2)]
    yield [Replica(database, tmp_path / str(number)) for number, database in enumerate(databases)]
    for database in databases:
        database.close()


async def test_a_revoked_key_stops_on_every_replica_by_notice_alone(
    admission: PostgresGate, keys: KeyStore, tmp_path: Path
) -> None:
    """Polling is off, so only the notification can bring the revocation. The snapshot file must
    forget the key as well.
    """
    databases = [Database(admission.url, role="tollgate_gateway") for _ in range(2)]
    two = [
        Replica(database, tmp_path / str(number), every_s=LONG_S)
        for number, database in enumerate(databases)
    ]
    async with running(*two):
        await soon(lambda: all(one.answer(REVOKED) == "payments" for one in two), "the keys")
        assert keys.revoke(key_record(REVOKED).key_id, revoked_by="ada")
        await soon(
            lambda: all(
                one.answers() == ["payments", "invalid_api_key", "invalid_api_key"] for one in two
            ),
            "the revocation",
            within_s=REVOKED_WITHIN_S,
        )
        shelves = [SnapshotFile(one.path, (PEPPER,), now=one.clock.now) for one in two]
        mine = {key_record(MINE).key_id}
        await soon(
            lambda: all(
                {record.key_id for record in shelf.read().keys} == mine for shelf in shelves
            ),
            "the file",
        )
        admission.shut()  # otherwise the threads would listen for their whole timeout
    for database in databases:
        database.close()


async def test_a_new_key_works_at_once_and_no_key_is_invalid_in_an_outage(
    admission: PostgresGate, keys: KeyStore, tmp_path: Path
) -> None:
    """Polling is off and no notification is awaited. Official SDKs never retry after a 401, so a
    valid key must not get one.
    """
    database = Database(admission.url, role="tollgate_gateway")
    replica = Replica(database, tmp_path, every_s=LONG_S)
    await replica.refresher.start()
    async with running(replica):
        assert replica.answer(MINE) == "payments"
        replica.clock.advance(1)
        keys.create(key_record(UNKNOWN), created_by="ada")
        assert await replica.result_for(UNKNOWN) == "payments"
        replica.clock.advance(1)
        assert await replica.result_for(key(10)) == "invalid_api_key"
        replica.clock.advance(1)
        admission.shut()
        assert await replica.result_for(key(10)) == "unavailable"
        assert await replica.result_for(MINE) == "payments"
    database.close()


async def test_a_revoked_key_stops_while_listen_is_broken(
    keys: KeyStore, replicas: list[Replica], database_url: str
) -> None:
    """The listening connection breaks again and again, so both replicas must poll."""
    end = (
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() "
        "AND query LIKE 'LISTEN %'"
    )
    with psycopg.connect(database_url, autocommit=True) as administrator:

        def is_seen(expected: str) -> bool:
            administrator.execute(end)
            return all(replica.answer(REVOKED) == expected for replica in replicas)

        async with running(*replicas):
            await soon(lambda: is_seen("payments"), "the keys")
            assert keys.revoke(key_record(REVOKED).key_id, revoked_by="ada")
            await soon(
                lambda: is_seen("invalid_api_key"), "the revocation", within_s=REVOKED_WITHIN_S
            )
            assert [replica.answer(MINE) for replica in replicas] == ["payments", "payments"]


async def test_known_keys_serve_through_an_outage_and_no_longer_than_stated(
    admission: PostgresGate, keys: KeyStore, replicas: list[Replica]
) -> None:
    """Unknown keys are called unavailable, wrong ones invalid. After the stated time every key
    is unavailable until Postgres is back; no restart is needed.
    """
    replica = replicas[0]
    forged = MINE[:14] + key(4)[14:]
    async with running(replica):
        await soon(
            lambda: replica.answers() == ["payments", "payments", "invalid_api_key"], "the keys"
        )
        admission.shut()
        await soon(
            lambda: replica.answers() == ["payments", "payments", "unavailable"], "the outage"
        )
        assert replica.answer(forged) == "invalid_api_key"
        assert problems(replica.holder, is_full=False, is_gone=False, is_draining=False) == []
        assert snapshot_checks(replica.holder)[0].status is Status.WARN
        replica.clock.advance(OUTAGE_S + 1)
        assert replica.answers() == ["unavailable"] * 3
        assert (
            "no restart is needed"
            in problems(replica.holder, is_full=False, is_gone=False, is_draining=False)[0]
        )
        admission.open()
        await soon(
            lambda: replica.answers() == ["payments", "payments", "invalid_api_key"], "Postgres"
        )
        assert snapshot_checks(replica.holder)[0].status is Status.OK


@pytest.mark.parametrize("dead", ["shut", "accept_without_answering"])
async def test_a_restart_in_an_outage_serves_known_keys_for_the_remaining_time(
    admission: PostgresGate, keys: KeyStore, replicas: list[Replica], dead: str
) -> None:
    """A restart must not extend the stated time or accept a revoked key, whether Postgres is
    down or hangs.
    """
    before = replicas[0]
    async with running(before):
        await soon(lambda: before.answer(REVOKED) == "payments", "the keys")
        assert keys.revoke(key_record(REVOKED).key_id, revoked_by="ada")
        shelf = SnapshotFile(before.path, (PEPPER,), now=before.clock.now)
        await soon(lambda: before.path.exists() and len(shelf.read().keys) == 1, "the file")
    getattr(admission, dead)()
    before.clock.advance(OUTAGE_S - 100)
    after = Replica(before.database, before.home, clock=before.clock, first_look_s=0.2)
    await after.refresher.start()
    assert after.answers() == ["payments", "unavailable", "unavailable"]
    after.clock.advance(101)
    assert after.answers() == ["unavailable"] * 3
    admission.open()
    async with running(after):
        await soon(
            lambda: after.answers() == ["payments", "invalid_api_key", "invalid_api_key"],
            "Postgres",
        )


async def test_a_start_long_after_does_not_use_the_snapshot_file(
    admission: PostgresGate, keys: KeyStore, replicas: list[Replica]
) -> None:
    """A machine that was off overnight must not trust its old snapshot."""
    before = replicas[0]
    async with running(before):
        await soon(before.path.exists, "the file")
    admission.shut()
    before.clock.advance(OUTAGE_S + 1)
    after = Replica(before.database, before.home, clock=before.clock)
    await after.refresher.start()
    assert after.answers() == ["unavailable"] * 3


def test_a_gateway_restarted_in_an_outage_goes_on(
    admission: PostgresGate, start_gateway: StartGateway, fake_upstream: FakeUpstreamProcess
) -> None:
    """Known keys are answered, unknown ones get 503, and a new key works when Postgres is back."""
    gateway = start_gateway(small(fake_upstream.url), database_url=admission.url)
    assert ask(gateway, gateway.key) == 200
    eventually((gateway.home / "snapshot").exists, "the file")
    admission.shut()
    assert ask(gateway, gateway.key) == 200
    gateway.stop(signal.SIGKILL)
    gateway.start()
    assert (ask(gateway, gateway.key), ask(gateway, UNKNOWN)) == (200, 503)
    admission.open()
    fresh = gateway.make_key("payments")
    eventually(lambda: ask(gateway, fresh) == 200, "the new key")
    assert ask(gateway, UNKNOWN) == 401
    gateway.revoke_key(fresh)
    eventually(lambda: ask(gateway, fresh) == 401, "the revocation", within_s=REVOKED_WITHIN_S)


def ask(gateway: Gateway, sent: str) -> int:
    """Return the status of one small request."""
    body = {"model": "vllm", "messages": [{"role": "user", "content": "hello"}]}
    headers = {"authorization": f"Bearer {sent}"}
    return plain_http.post(
        f"{gateway.base_url}/chat/completions", json=body, headers=headers, timeout=30
    ).status_code
