"""The policy's life with real gateways: a plan's predicted cost, the time when an apply is live,
and no mixed request.
"""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import httpx2
import psycopg
import pytest

from gateway.storage.postgres.locks import TableLock
from tests import plain_http
from tests.gateway_process import REPOSITORY, FakeUpstreamProcess, Gateway, StartGateway, free_port
from tests.waiting import eventually


def document(
    upstream: str, *, order: str, dear: str = "9.8765432", teams: str = "[chat, plain]"
) -> str:
    """Return a policy with two deployments at odd prices behind two routes; `legal` may use one
    of them.
    """
    return f"""\
version: 1
regions: {{eu: [eu-de, eu-fr], us: [us-east]}}
classes: {{internal: {{regions: [any]}}, confidential: {{regions: [eu]}}}}
deployments:
  - {{name: cheap, model: "fake/out:7+in:1001+cached:333", provider: openai_compatible, region: eu-de,
     base_url: "{upstream}/v1",
     price: {{input_usd_per_mtok: 0.0333, cached_input_usd_per_mtok: 0.0077, output_usd_per_mtok: 0.4445}}}}
  - {{name: dear, model: "fake/out:7+in:1001+cached:333", provider: openai_compatible, region: us-east,
     base_url: "{upstream}/v1",
     price: {{input_usd_per_mtok: 1.2345678, cached_input_usd_per_mtok: 0.1111111, output_usd_per_mtok: {dear}}}}}
routes:
  - {{name: chat, deployments: {order}}}
  - {{name: plain, deployments: [cheap]}}
teams:
  - {{name: payments, cost_centre: CC-1, data_class: internal, routes: {teams}}}
  - {{name: legal, cost_centre: CC-2, data_class: confidential, routes: [chat]}}
"""  # noqa: E501


def ask_many(gateway: Gateway, count: int) -> int:
    """Request answers of many lengths as two teams; return how many were answered."""

    def ask(number: int) -> int:
        team = "legal" if number % 5 == 0 else "payments"
        route = "plain" if number % 7 == 0 and team == "payments" else "chat"
        body = {
            "model": route,
            "messages": [{"role": "user", "content": "x" * (number % 50)}],
            "max_tokens": 300,
            "stream": number % 3 == 0,
        }
        headers = {
            "authorization": f"Bearer {gateway.keys[team]}",
            "x-fake": f"out={1 + number % 97}",
        }
        return client.post("/chat/completions", json=body, headers=headers).status_code

    with (
        httpx2.Client(
            verify=plain_http.NO_CERTIFICATES, base_url=gateway.base_url, timeout=30
        ) as client,
        ThreadPoolExecutor(8) as pool,
    ):
        statuses = list(pool.map(ask, range(count)))
    assert set(statuses) <= {200, 403}, statuses
    return statuses.count(200)


def spent_nusd(gateway: Gateway, version: int, count: int) -> int:
    """Return the cost of one policy version's events, once there are that many."""

    def there() -> list[dict[str, Any]]:
        rows = gateway.query(
            "SELECT count(*) AS attempts, CAST(sum(cost_usd) * 1000000000 AS bigint) AS nusd "
            "FROM finance.usage_events WHERE policy_version = %s",
            version,
        )
        return rows if rows[0]["attempts"] == count else []

    return int(eventually(there, f"{count} events of version {version}")[0]["nusd"])


def test_a_plan_foretells_the_cost_to_the_nano_dollar(
    start_gateway: StartGateway, fake_upstream: FakeUpstreamProcess, tmp_path: Path
) -> None:
    """An admin relies on the plan's figure before applying. The same requests, run afterwards,
    must cost exactly that.
    """
    gateway = start_gateway(document(fake_upstream.url, order="[cheap, dear]"))
    answered = ask_many(gateway, 200)
    assert answered == 200
    before = spent_nusd(gateway, 1, 200)
    new = tmp_path / "new.yaml"
    new.write_text(document(fake_upstream.url, order="[dear, cheap]", dear="9.1234567"))
    planned = json.loads(
        gateway.tollgate("policy", "plan", str(new), "--replay", "1d", "--format", "json")
    )
    replay = planned["replay"]
    foretold = round(replay["cost_after_usd"] * 10**9)
    assert (replay["requests"], round(replay["cost_before_usd"] * 10**9)) == (200, before)
    legal = next(row for row in replay["rows"] if row["team"] == "legal")
    assert legal["moved"] == 0, "confidential stays in the Union, whatever comes first"
    chat = next(
        row for row in replay["rows"] if (row["team"], row["route"]) == ("payments", "chat")
    )
    assert chat["moves"] == [{"from": "cheap", "to": "dear", "requests": chat["requests"]}]
    assert "some would also go to us-east" in planned["sentence"]

    shown = gateway.tollgate("policy", "apply", str(new), "--yes", "--format", "json")
    assert json.loads(shown)["version"] == 2
    assert ask_many(gateway, 200) == 200
    assert foretold != before
    assert spent_nusd(gateway, 2, 200) == foretold


def run(gateway: Gateway, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a command; return its result with its standard error."""
    return subprocess.run(
        [sys.executable, "-m", "gateway.main", *arguments],
        env=dict(gateway.variables),
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.fixture
def twins(
    start_gateway: StartGateway, fake_upstream: FakeUpstreamProcess
) -> Iterator[tuple[Gateway, Gateway]]:
    """Yield two workers of one machine on different ports."""
    first = start_gateway(document(fake_upstream.url, order="[cheap, dear]"))
    port, metrics_port = free_port(), free_port()
    variables = dict(first.variables) | {
        "TOLLGATE_PORT": str(port),
        "TOLLGATE_METRICS_PORT": str(metrics_port),
    }
    second = replace(first, port=port, metrics_port=metrics_port, variables=variables, process=None)
    second.start()
    yield first, second
    second.stop()


def test_an_apply_says_when_it_is_live_on_every_replica(
    twins: tuple[Gateway, Gateway], fake_upstream: FakeUpstreamProcess, tmp_path: Path
) -> None:
    """After an apply, the admin must know that every replica uses the new rules, or which
    replica does not.
    """
    first, second = twins
    new = tmp_path / "new.yaml"
    new.write_text(document(fake_upstream.url, order="[dear, cheap]"))
    ran = run(first, "policy", "apply", str(new), "--yes")
    assert ran.returncode == 0, ran.stderr
    assert "Live on 2/2 replicas in " in ran.stderr
    assert "Undo it with: tollgate policy rollback 1" in ran.stderr
    for gateway in twins:  # the report is true: no replica serves the previous version any more
        ready = plain_http.get(f"http://127.0.0.1:{gateway.port}/readyz", timeout=10).json()
        assert ready["policy_version"] == 2

    assert second.process is not None
    second.process.send_signal(signal.SIGSTOP)
    try:
        ran = run(first, "policy", "rollback", "--yes")
    finally:
        second.process.send_signal(signal.SIGCONT)
    assert ran.returncode == 0, ran.stderr
    assert "Live on 1/2 replicas after 10 s. Behind: " in ran.stderr
    assert "serves version 2" in ran.stderr
    (history, *_) = json.loads(first.tollgate("policy", "history", "--format", "json"))
    assert (history["version"], history["message"]) == (3, "rollback to version 1")


def test_no_request_sees_two_versions_while_policies_come_and_go(
    start_gateway: StartGateway, fake_upstream: FakeUpstreamProcess
) -> None:
    """A request keeps its first version: its header, its deployment and its event belong to one
    policy.
    """
    texts = [
        document(fake_upstream.url, order=order) for order in ("[cheap, dear]", "[dear, cheap]")
    ]
    gateway = start_gateway(texts[0])
    first = {1: "cheap"}
    seen: list[tuple[int, int, str]] = []

    async def load(done: threading.Event) -> None:
        headers = {"authorization": f"Bearer {gateway.keys['payments']}"}
        body = {"model": "chat", "messages": [{"role": "user", "content": "x"}], "max_tokens": 9}

        async def ask() -> None:
            answer = await client.post("/chat/completions", json=body)
            seen.append(
                (
                    answer.status_code,
                    int(answer.headers["x-tollgate-policy"]),
                    answer.headers.get("x-tollgate-deployment", ""),
                )
            )

        async with httpx2.AsyncClient(
            verify=plain_http.NO_CERTIFICATES,
            base_url=gateway.base_url,
            headers=headers,
            timeout=30,
        ) as client:
            running: set[asyncio.Task[None]] = set()
            while not done.is_set():
                running = {task for task in running if not task.done()}
                if len(running) < 50:
                    running.add(asyncio.create_task(ask()))
                await asyncio.sleep(0.005)  # two hundred applies a second
            await asyncio.gather(*running)

    def is_seen(wanted: int) -> bool:
        return any(version == wanted for _, version, _ in list(seen))

    def change() -> None:
        eventually(partial(is_seen, 1), "the first answers")
        for number in range(2, 12):
            applied = gateway.apply(texts[(number - 1) % 2]).version
            first[applied] = ("cheap", "dear")[(number - 1) % 2]
            eventually(partial(is_seen, applied), "the new version")

    done = threading.Event()
    with ThreadPoolExecutor(1) as pool:
        loading = pool.submit(asyncio.run, load(done))
        try:
            change()
        finally:
            done.set()
        loading.result(60)
    assert {status for status, _, _ in seen} == {200}
    assert {version for _, version, _ in seen} == set(range(1, 12))
    mixed = [(version, where) for _, version, where in seen if first[version] != where]
    assert not mixed, mixed[:5]
    rows = eventually(lambda: _written(gateway, len(seen)), "all events")
    assert {(row["policy_version"], row["deployment"]) for row in rows} == set(first.items())


def _written(gateway: Gateway, count: int) -> list[dict[str, Any]]:
    rows = gateway.query("SELECT policy_version, deployment FROM finance.usage_events")
    return rows if len(rows) == count else []


def test_of_two_simultaneous_applies_one_wins_and_one_is_refused(
    start_gateway: StartGateway, fake_upstream: FakeUpstreamProcess, tmp_path: Path
) -> None:
    """Both admins saw version 1. The second one decided on a difference that no longer exists."""
    gateway = start_gateway(document(fake_upstream.url, order="[cheap, dear]"))
    files = [tmp_path / "one.yaml", tmp_path / "other.yaml"]
    for file, order in zip(files, ("[dear, cheap]", "[dear]"), strict=True):
        file.write_text(document(fake_upstream.url, order=order))

    def are_both_there() -> bool:
        waiting = (
            "SELECT count(*) AS n FROM pg_locks "
            "WHERE relation = 'tollgate.lock_policies'::regclass AND NOT granted"
        )
        return bool(gateway.query(waiting)[0]["n"] == 2)

    with psycopg.connect(gateway.database_url) as admission, ThreadPoolExecutor(2) as pool:
        admission.execute(TableLock.POLICIES.taken.encode())
        running: list[Future[subprocess.CompletedProcess[str]]] = []

        def are_waiting() -> bool:
            if all(one.done() for one in running):
                running[:] = [
                    pool.submit(run, gateway, "policy", "apply", str(file), "--yes", "--no-wait")
                    for file in files
                ]
            return are_both_there()

        # A command waits five seconds for the lock: on a slow machine the first may have given up
        # before the other is there, and then both try again.
        eventually(are_waiting, "two applies that have looked at version 1", within_s=300)
        admission.rollback()
        ran = [one.result(60) for one in running]
    assert sorted(one.returncode for one in ran) == [0, 2], [one.stderr for one in ran]
    (message,) = [one.stderr for one in ran if one.returncode == 2]
    assert "The current policy is version 2, applied by " in message
    assert "not 1. Nothing changed." in message
    assert len(json.loads(gateway.tollgate("policy", "history", "--format", "json"))) == 2


@pytest.mark.parametrize("team", ["payments", "legal"])
def test_a_caller_gets_the_decision_for_its_own_request(gateway: Gateway, team: str) -> None:
    """The endpoint decides as for a real request of the caller's own team; nothing is sent or
    metered.
    """
    if team == "legal":
        team = "search"
    headers = {"authorization": f"Bearer {gateway.keys[team]}"}
    where = f"{gateway.base_url}/route/explain"
    asked = {"model": "vllm", "tokens": 1000, "answer_tokens": 100}
    short = plain_http.post(where, json=asked, headers=headers, timeout=10)
    assert short.status_code == 200, short.text
    decision = short.json()
    assert (decision["team"], decision["route"], decision["is_refused"]) == (team, "vllm", False)
    assert decision["candidates"][0]["cost_usd"] == 0.00225
    body = {"model": "vllm", "messages": [{"role": "user", "content": "x"}]}
    assert (
        plain_http.post(where, json=body, headers=headers, timeout=10).json()["candidates"][0][
            "rank"
        ]
        == 1
    )
    assert plain_http.post(where, json=body, timeout=10).status_code == 401
