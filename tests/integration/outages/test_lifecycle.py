"""A gateway that stops and a database that is away: nothing is lost, and a database error is no
authentication error.
"""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx2
import pytest
from sqlalchemy import text

from gateway.domain.calendar_months import last_partitioned_month, last_required_month
from gateway.storage.postgres import migrations, partitions
from gateway.storage.postgres.database import Database
from gateway.storage.postgres.embedded import EmbeddedPostgres
from tests import factories, plain_http
from tests.gateway_process import REPOSITORY, FakeUpstreamProcess, Gateway, StartGateway
from tests.integration.edge.test_sdk import MESSAGES, check_event
from tests.integration.policy import small
from tests.waiting import eventually

BODY: dict[str, Any] = {"model": "vllm", "messages": MESSAGES}


def post(gateway: Gateway, key: str | None = None, **members: Any) -> httpx2.Response:
    headers = {"authorization": f"Bearer {key or gateway.key}"}
    return plain_http.post(
        f"{gateway.base_url}/chat/completions",
        json={**BODY, **members},
        headers=headers,
        timeout=60,
    )


def begin_streams(
    gateway: Gateway, pool: ThreadPoolExecutor, count: int, spec: str
) -> tuple[list[Any], list[str]]:
    """Start streams and wait until each has its first bytes; return their futures and request
    ids.
    """
    ids: list[str] = []

    def run() -> str:
        headers = {"authorization": f"Bearer {gateway.key}"}
        with plain_http.stream(
            "POST",
            f"{gateway.base_url}/chat/completions",
            json={**BODY, "stream": True, "fake": spec},
            headers=headers,
            timeout=60,
        ) as answer:
            ids.append(answer.headers["x-request-id"])
            text = ""
            try:
                for piece in answer.iter_text():
                    text += piece
            except httpx2.HTTPError:
                text += "<cut>"
            return text

    futures = [pool.submit(run) for _ in range(count)]
    eventually(lambda: len(ids) == count, f"{count} streams")
    return futures, ids


@pytest.mark.parametrize("stop", [signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT])
def test_a_stop_lets_live_streams_finish(
    start_gateway: StartGateway, fake_upstream: FakeUpstreamProcess, stop: signal.Signals
) -> None:
    """After a stop no new request is accepted. Running ones get their time, and every event is
    in the ledger before the process ends. Signals that ask for something else end nothing.
    """
    gateway = start_gateway(small(fake_upstream.url), drain_s=20)
    with ThreadPoolExecutor(20) as pool:
        futures, ids = begin_streams(gateway, pool, 20, "out=40,tps=40")
        assert gateway.process is not None
        for other in (signal.SIGUSR1, signal.SIGUSR2):
            gateway.process.send_signal(other)
        gateway.process.send_signal(stop)
        texts = [future.result(60) for future in futures]
    assert gateway.process.wait(60) == 0
    assert all(text.endswith("data: [DONE]\n\n") for text in texts)
    for request_id in ids:
        (event,) = gateway.events(request_id)
        check_event(event, fake_upstream.entry(request_id))


def test_a_stop_that_cannot_wait_loses_no_event(
    start_gateway: StartGateway, fake_upstream: FakeUpstreamProcess
) -> None:
    """Streams that exceed the remaining time end with an error event, and their generated part
    is in the ledger.
    """
    gateway = start_gateway(small(fake_upstream.url), drain_s=1)
    with ThreadPoolExecutor(20) as pool:
        futures, ids = begin_streams(gateway, pool, 20, "out=100000,tps=20")
        assert gateway.process is not None
        gateway.process.send_signal(signal.SIGTERM)
        assert gateway.process.wait(60) == 0
        texts = [future.result(60) for future in futures]
    assert not any("[DONE]" in text or "<cut>" in text for text in texts)
    assert all('"code":"unavailable"' in text.rpartition("data: ")[2] for text in texts)
    for request_id in ids:
        (event,) = gateway.events(request_id)
        generated = fake_upstream.entry(request_id)["generated"]
        assert event["usage_source"] == "derived"
        assert 0 < event["output_tokens"] <= generated


def test_a_running_gateway_makes_the_months_to_come(
    database: Database,
    database_url: str,
    start_gateway: StartGateway,
    fake_upstream: FakeUpstreamProcess,
) -> None:
    """The gateway's role cannot create tables, but a replica that is left alone for months must
    still get its partitions.
    """
    today = datetime.now(UTC).date()
    until = last_partitioned_month(today)
    assert partitions.missing(database, until=last_required_month(today)) == []
    with database.begin() as connection:
        names = connection.execute(
            text("SELECT tablename FROM pg_tables WHERE tablename LIKE 'usage_events_2%'")
        )
        last = max(names.scalars())
        connection.execute(text(f"DROP TABLE tollgate.{last}"))
    start_gateway(small(fake_upstream.url), database_url=database_url)
    eventually(
        lambda: partitions.missing(database, until=until) == [],
        "the missing partition",
    )


@pytest.fixture
def own_postgres() -> Any:
    """Yield a server that a test may stop and start again."""
    home = Path(tempfile.mkdtemp(prefix="tollgate-test-", dir="/tmp"))
    home.chmod(0o711)
    server = EmbeddedPostgres(home)
    url = server.start()
    database = Database(url)
    migrations.upgrade(database)
    database.close()
    yield server, url
    server.stop()
    shutil.rmtree(home)


def test_a_database_that_is_away_is_no_auth_fault(
    own_postgres: Any, start_gateway: StartGateway, fake_upstream: FakeUpstreamProcess
) -> None:
    """Known keys keep working and wrong keys stay wrong. A key that cannot be checked gets 503
    instead of 401.
    """
    server, url = own_postgres
    gateway = start_gateway(small(fake_upstream.url), database_url=url)
    before = post(gateway)
    gateway.events(before.headers["x-request-id"])

    server.stop()
    during = [post(gateway, stream=is_stream) for is_stream in (False, True, False)]
    assert [answer.status_code for answer in during] == [200, 200, 200]
    assert post(gateway, key="tg_typo").status_code == 401
    # A well-formed unknown key is first just unknown. Once the snapshot is stale, its validity
    # cannot be known.
    stranger = factories.key(5)
    assert post(gateway, key=stranger).status_code in (401, 503)
    eventually(
        lambda: post(gateway, key=stranger).status_code == 503,
        "503 for a key nobody can check",
        within_s=30,
    )
    assert post(gateway, key=stranger).json()["error"]["code"] == "unavailable"
    assert post(gateway).status_code == 200
    receipts = [
        plain_http.get(
            f"{gateway.base_url}/requests/{answer.headers['x-request-id']}",
            headers={"authorization": f"Bearer {gateway.key}"},
            timeout=60,
        )
        for answer in during
    ]
    # Written by the worker that settled them.
    assert [receipt.status_code for receipt in receipts] == [200, 200, 200]

    assert server.start() == url
    for answer in during:
        (event,) = gateway.events(answer.headers["x-request-id"])
        check_event(event, fake_upstream.entry(answer.headers["x-request-id"]))
    eventually(lambda: post(gateway, key=stranger).status_code == 401, "401 again", within_s=30)


def test_a_new_policy_is_in_force_within_seconds(
    start_gateway: StartGateway, fake_upstream: FakeUpstreamProcess
) -> None:
    """No restart is needed. A request keeps its first version, and its event names it."""
    document = small(fake_upstream.url)
    gateway = start_gateway(document)
    assert post(gateway).headers["x-tollgate-policy"] == "1"
    gateway.apply(
        document.replace("name: vllm, deployments", 'name: vllm, aliases: ["gpt-*"], deployments')
    )
    eventually(
        lambda: post(gateway, model="gpt-9").status_code == 200, "the new alias", within_s=10
    )
    answer = post(gateway, model="gpt-9")
    assert answer.headers["x-tollgate-policy"] == "2"
    (event,) = gateway.events(answer.headers["x-request-id"])
    assert event["policy_version"] == 2


def test_without_a_policy_it_is_alive_and_not_ready(
    start_gateway: StartGateway, fake_upstream: FakeUpstreamProcess
) -> None:
    """A gateway may start before its first policy; `/readyz` names the missing part and a remedy
    that works.
    """
    gateway = start_gateway(None)
    ready = plain_http.get(f"http://127.0.0.1:{gateway.port}/readyz")
    assert ready.status_code == 503
    assert "tollgate policy apply" in ready.json()["problems"][0]
    refused = post(gateway, key=factories.key())
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "unavailable")
    gateway.apply(small(fake_upstream.url))
    key = gateway.make_key("payments")
    eventually(lambda: post(gateway, key=key).status_code == 200, "the first policy", within_s=10)


def test_it_does_not_start_if_it_cannot_meter(
    start_gateway: StartGateway, fake_upstream: FakeUpstreamProcess
) -> None:
    """A port in use is reported with its setting, not with a stack trace."""
    gateway = start_gateway(small(fake_upstream.url))
    ended = subprocess.run(
        [sys.executable, "-m", "gateway.main", "serve"],
        env=dict(gateway.variables),
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ended.returncode == 2
    assert "TOLLGATE_PORT" in ended.stderr
    assert "Traceback" not in ended.stderr
