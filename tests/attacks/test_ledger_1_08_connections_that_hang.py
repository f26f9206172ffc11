"""Ledger 1.8: hung connections to a healthy Postgres stopped the writer and the policy
permanently.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from uuid import uuid4

import httpx2
import pytest

from gateway.domain.budgets.budgets import LeasesLost
from gateway.errors import DatabaseUnavailable
from gateway.services.ledger.writer import EventWriter
from gateway.storage.budgets.budgets import BudgetLeaseTable
from gateway.storage.ledger.event_journal import LeftJournals, open_own
from gateway.storage.ledger.journals_table import JournalTable
from gateway.storage.ledger.ledger import Ledger
from gateway.storage.policy.keys import KeyStore
from gateway.storage.postgres.change_notifications import ChangeFeed
from gateway.storage.postgres.database import Database
from gateway.storage.postgres.leadership import Leadership
from gateway.storage.postgres.locks import TableLock
from tests import plain_http
from tests.fakes import FakeClock
from tests.gateway_process import FakeUpstreamProcess, Gateway, StartGateway
from tests.integration.policy import small
from tests.integration.postgres_gate import PostgresGate
from tests.storage.factories import event
from tests.waiting import eventually, without_hanging

LIMIT_S = 2.0  # limit of a transaction, in the tests that wait for it
HEALED_WITHIN_S = 45.0


@pytest.fixture
def behind(admission: PostgresGate) -> Iterator[Database]:
    """Yield a serving process's database behind the gate, with a limit that a test can wait for."""
    database = Database(admission.url, limit_s=LIMIT_S)
    yield database
    database.close()


STEPS: dict[str, Callable[[Database], Callable[[], object]]] = {
    "register": lambda database: lambda: JournalTable(database).register(uuid4(), replica="one"),
    "drained": lambda database: lambda: JournalTable(database).drained(uuid4()),
    "keys": lambda database: lambda: KeyStore(database).live(),
    "write": lambda database: _writing(Ledger(database, limit_s=LIMIT_S)),
    "exchange": lambda database: _exchanging(BudgetLeaseTable(database, limit_s=LIMIT_S)),
    "leadership": lambda database: Leadership(database, TableLock.LEADER_ENGINES).is_mine,
    "changes": lambda database: _listening(ChangeFeed(database)),
}


def _writing(ledger: Ledger) -> Callable[[], object]:
    return lambda: ledger.write([event(time.monotonic_ns())])


def _exchanging(leases: BudgetLeaseTable) -> Callable[[], object]:
    journal_id = uuid4()

    def exchange() -> object:
        try:
            return leases.exchange(journal_id, ())
        except LeasesLost:
            return None

    return exchange


def _listening(feed: ChangeFeed) -> Callable[[], object]:
    return lambda: feed.wait(0.1)


@pytest.mark.parametrize("step", STEPS)
def test_no_question_waits_for_a_frozen_connection(
    admission: PostgresGate, behind: Database, step: str
) -> None:
    """Each step of the writer and of the refresher blocked its thread forever; now it fails once
    and then works.
    """
    ask = STEPS[step](behind)
    ask()
    admission.freeze()
    with suppress(DatabaseUnavailable):
        without_hanging(ask)
    without_hanging(ask)


async def test_a_writer_that_was_frozen_writes_again(
    admission: PostgresGate, behind: Database, tmp_path: Path
) -> None:
    """Registering, writing and draining share one thread: if one step hung, nothing was ever
    written again.
    """
    own = open_own(
        tmp_path,
        max_bytes=32 * 2**20,
        syncs=False,
        on_failed_sync=lambda error: None,
        on_synced=lambda seconds: None,
    )
    written: list[int] = []
    writer = EventWriter(
        own,
        LeftJournals(tmp_path).adopt,
        Ledger(behind, limit_s=LIMIT_S),
        JournalTable(behind),
        FakeClock(),
        every_s=0.01,
        on_written=lambda progress: written.append(progress.written.inserted),
        on_failure=lambda: None,
    )
    assert await writer.write_all()
    for _ in range(2):
        admission.freeze()
        tries = 0
        while not await writer.write_all():
            tries += 1
            assert tries < 3, "one step failed for each frozen connection"
    own.finish(is_recorded=True)


@pytest.fixture
def gateway(
    admission: PostgresGate, start_gateway: StartGateway, fake_upstream: FakeUpstreamProcess
) -> Gateway:
    """Return a gateway that reaches Postgres through the gate."""
    return start_gateway(small(fake_upstream.url), database_url=admission.url)


def ask(gateway: Gateway, key: str) -> httpx2.Response:
    """Send one small request."""
    body = {"model": "vllm", "messages": [{"role": "user", "content": "hello"}]}
    headers = {"authorization": f"Bearer {key}"}
    return plain_http.post(
        f"{gateway.base_url}/chat/completions", json=body, headers=headers, timeout=30
    )


def test_a_gateway_continues_when_only_new_connections_work(
    gateway: Gateway, admission: PostgresGate
) -> None:
    """After a failover whose old host hangs, the event is written and a revoked key is refused,
    without a restart.
    """
    fresh = gateway.make_key("payments")
    eventually(lambda: ask(gateway, fresh).status_code == 200, "the new key")
    admission.freeze()
    request_id = ask(gateway, gateway.key).headers["x-request-id"]
    gateway.revoke_key(fresh)
    eventually(
        lambda: ask(gateway, fresh).status_code == 401, "the revocation", within_s=HEALED_WITHIN_S
    )
    count = "SELECT count(*) FROM tollgate.usage_events WHERE request_id = %s"
    eventually(
        lambda: gateway.query(count, request_id)[0]["count"] == 1,
        "the event",
        within_s=HEALED_WITHIN_S,
    )


@pytest.mark.parametrize("state", ["freeze", "accept_without_answering", "shut"])
def test_a_stop_ends_whatever_postgres_does(
    gateway: Gateway, admission: PostgresGate, state: str
) -> None:
    """The process still existed after 75 s, because threads that hung in Postgres kept it from
    ending.
    """
    assert ask(gateway, gateway.key).status_code == 200
    getattr(admission, state)()
    assert ask(gateway, gateway.key).status_code == 200
    try:
        gateway.stop(signal.SIGTERM)  # waits a minute at most
    finally:
        admission.open()  # the gateway's fixture reads the database
