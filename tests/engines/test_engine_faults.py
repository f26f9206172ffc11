"""Faults of a real vLLM behind a real gateway: another deployment answers if nothing was streamed,
the ledger keeps every attempt, and the engine is used again when it is back.

`TOLLGATE_FAULTS_OUT` names a file for the measured figures, from which `bench.engine_faults` writes
its section of docs/engine-report.md. No figure is asserted: the machine's load decides them.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2
import pytest

from engine import environment
from engine.home import engine_home
from tests import plain_http
from tests.engines.served import ServedEngine, served
from tests.gateway_process import FakeUpstreamProcess, Gateway
from tests.waiting import eventually

pytestmark = pytest.mark.skipif(
    environment.installed_device(engine_home(os.environ)) is None,
    reason="needs vLLM: python -m engine setup",
)
MESSAGES = [{"role": "user", "content": "Count down from 40"}]
LONG = {"max_tokens": 2000, "ignore_eos": True}
PRICE = "{input_usd_per_mtok: 1, output_usd_per_mtok: 4}"
BACK_WITHIN_S = 900  # a start of the engine on a busy machine
FIGURES: dict[str, float | str] = {}


def document(engine_url: str, other_url: str) -> str:
    """The engine before another place, alone, and under a model's name that it does not have.

    A stall without content is cut after 40 s, long after it is noticed.
    """
    timeouts = "{connect_s: 1, first_byte_s: 40, first_token_s: 40, idle_s: 15, total_s: 90}"
    own = (
        f'provider: vllm, self_hosted: true, region: unknown, base_url: "{engine_url}/v1", '
        f"price: {PRICE}, timeouts: {timeouts}"
    )
    return f"""\
version: 1
classes: {{internal: {{regions: [any]}}}}
deployments:
  - {{name: engine, model: tiny, {own}}}
  - {{name: misnamed, model: absent, {own}}}
  - {{name: other, provider: openai_compatible, model: "fake/out:2", region: unknown, base_url: "{other_url}/v1",
     price: {PRICE}}}
routes:
  - {{name: r, deployments: [engine, other]}}
  - {{name: alone, deployments: [engine]}}
  - {{name: lost, deployments: [misnamed]}}
  - {{name: found, deployments: [misnamed, other]}}
teams: [{{name: payments, cost_centre: CC-1, data_class: internal, routes: [r, alone, lost, found]}}]
"""  # noqa: E501


@dataclass
class World:
    """The engine, the gateway in front of it, and requests of callers."""

    engine: ServedEngine
    gateway: Gateway
    pool: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(32))

    def ask(self, route: str = "r", **body: Any) -> httpx2.Response:
        """Return the whole answer to a short request, also a streamed one."""
        return plain_http.post(
            f"{self.gateway.base_url}/chat/completions",
            timeout=120,
            headers={"authorization": f"Bearer {self.gateway.key}"},
            json={"model": route, "messages": MESSAGES, "max_tokens": 2, **body},
        )

    def where(self) -> tuple[str, str]:
        """Return the deployment that answered a short request, and the number of attempts."""
        answer = self.ask()
        assert answer.status_code == 200, answer.text
        return answer.headers["x-tollgate-deployment"], answer.headers["x-tollgate-attempts"]

    def seconds_until(self, wanted: Callable[[], object], what: str, within_s: float) -> float:
        """Return the seconds until a condition holds."""
        began_s = time.monotonic()
        eventually(wanted, what, within_s=within_s)
        return round(time.monotonic() - began_s, 1)

    def until_back(self) -> float:
        """Return the seconds until the engine answers again at the first attempt."""
        return self.seconds_until(
            lambda: self.where() == ("engine", "1"), "the engine's return", BACK_WITHIN_S
        )

    def until_left(self) -> float:
        """Return the seconds until requests no longer try the engine."""
        return self.seconds_until(
            lambda: self.where() == ("other", "1"), "the engine to be passed over", 120
        )

    def attempts(self, answer: httpx2.Response) -> list[dict[str, Any]]:
        """Return the ledger's rows of an answer."""
        count = int(answer.headers.get("x-tollgate-attempts", "1"))
        return self.gateway.events(answer.headers["x-request-id"], count=count)

    def opened_for(self, deployment: str) -> set[str]:
        """Return the reasons for which a deployment was passed over, from the metrics."""
        start = f'tollgate_breaker_opened_total{{deployment="{deployment}",reason="'
        lines = [line for line in self.gateway.metrics().splitlines() if line.startswith(start)]
        return {line.removeprefix(start).partition('"')[0] for line in lines}

    def status(self) -> tuple[int, dict[str, Any]]:
        """Return the exit code and the engine's row of `tollgate engine status`."""

        done = subprocess.run(
            [sys.executable, "-m", "gateway.main", "engine", "status", "--format", "json"],
            env=dict(self.gateway.variables),
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        return done.returncode, json.loads(done.stdout)[0]

    def long_stream(self) -> Iterator[str]:
        """Yield the events of a long answer of the engine as they arrive."""
        with plain_http.stream(
            "POST",
            f"{self.gateway.base_url}/chat/completions",
            json={"model": "r", "messages": MESSAGES, "stream": True, **LONG},
            headers={"authorization": f"Bearer {self.gateway.key}"},
            timeout=120,
        ) as stream:
            yield stream.headers["x-request-id"]
            yield from (line[6:] for line in stream.iter_lines() if line.startswith("data: "))


@pytest.fixture(scope="module")
def world(
    tmp_path_factory: pytest.TempPathFactory,
    start_own_gateway: Callable[[str], Iterator[Gateway]],
    fake_upstream: FakeUpstreamProcess,
) -> Iterator[World]:
    log = tmp_path_factory.mktemp("engine") / "log"
    bounds = ("--max-num-seqs", "2", "--max-num-queued-reqs", "6")
    with served(log, "--", *bounds) as engine:
        for gateway in start_own_gateway(document(engine.url, fake_upstream.url)):
            yield World(engine, gateway)
    if out := os.environ.get("TOLLGATE_FAULTS_OUT"):
        Path(out).write_text(json.dumps(FIGURES, indent=2), encoding="utf-8")


def begun(stream: Iterator[str]) -> tuple[str, dict[str, Any]]:
    """Return a stream's request id and its first event with content."""
    request_id = next(stream)
    return request_id, json.loads(next(stream))


def test_a_missing_model_is_the_operators_fault(world: World) -> None:
    """The caller's route is right; the policy names a model that the engine does not serve."""
    alone = world.ask("lost")
    assert (alone.status_code, alone.json()["error"]["code"]) == (502, "upstream_error")
    assert "misnamed does not know its model absent" in alone.json()["error"]["message"]
    (row,) = world.gateway.events(alone.headers["x-request-id"])
    assert (row["outcome"], row["usage_source"], row["cost_usd"]) == ("upstream_error", "none", 0)
    assert world.opened_for("misnamed") == {"model_missing"}
    answer = world.ask("found")
    assert (answer.status_code, answer.headers["x-tollgate-deployment"]) == (200, "other")
    assert (
        "misnamed (model_missing)"
        in plain_http.get(f"http://127.0.0.1:{world.gateway.port}/readyz", timeout=10).text
    )


def test_an_overloaded_engine_refuses_at_once(world: World) -> None:
    """Two run, four wait, and more get 503: no caller waits in a queue without end."""
    body = {"max_tokens": 300, "ignore_eos": True}
    began_s = time.monotonic()
    answers = list(world.pool.map(lambda _: _timed(world, began_s, **body), range(16)))
    refused = [(answer, after_s) for answer, after_s in answers if answer.status_code == 503]
    assert refused, "the engine's queue is bounded"
    for answer, _ in refused:
        assert answer.json()["error"]["code"] == "overloaded"
        assert int(answer.headers["retry-after"]) >= 1
        rows = world.attempts(answer)
        assert {(row["outcome"], row["cost_usd"]) for row in rows} == {("upstream_error", 0)}
    assert {answer.status_code for answer, _ in answers} == {200, 503}
    FIGURES["overload_refused_s"] = round(max(after_s for _, after_s in refused), 2)
    FIGURES["overload_refused"] = len(refused)
    world.until_back()
    moved = list(world.pool.map(lambda _: world.ask("r", **body), range(16)))
    assert {answer.status_code for answer in moved} == {200}
    assert {answer.headers["x-tollgate-deployment"] for answer in moved} == {"engine", "other"}
    world.until_back()


def _timed(world: World, began_s: float, **body: Any) -> tuple[httpx2.Response, float]:
    answer = world.ask("alone", **body)
    return answer, time.monotonic() - began_s


def test_a_hung_core_is_left_and_found_again(world: World) -> None:
    """SIGSTOP of the core: /health answers 200. The stream that had begun ends with an error event,
    every request that had streamed nothing is answered elsewhere, while requests keep arriving.
    """
    stream = world.long_stream()
    begun_id, _ = begun(stream)
    cores = world.engine.cores()
    assert cores, "the engine's core is a process of its own"
    for pid in cores:
        os.kill(pid, signal.SIGSTOP)
    try:
        began_s = time.monotonic()
        bodies = [{"stream": True}, {}, {"stream": True}]
        waiting = [world.pool.submit(world.ask, **body) for body in bodies]
        rest = world.pool.submit(lambda: list(stream))
        assert plain_http.get(f"{world.engine.url}/health", timeout=5).status_code == 200
        answers = [one.result() for one in waiting]
        FIGURES["hang_moved_s"] = round(time.monotonic() - began_s, 1)
        for answer in answers:
            assert answer.status_code == 200, answer.text
            assert answer.headers["x-tollgate-deployment"] == "other"
            rows = world.attempts(answer)
            assert [(row["deployment"], row["outcome"]) for row in rows] == [
                ("engine", "upstream_timeout"),
                ("other", "ok"),
            ]
            assert (rows[0]["usage_source"], rows[0]["cost_usd"]) == ("unknown", None)
            assert rows[0]["held_usd"] > 0
        assert world.where() == ("other", "1")
        FIGURES["hang_left_s"] = round(time.monotonic() - began_s, 1)
        assert world.opened_for("engine") >= {"no_progress"}
        code, row = world.status()
        assert (code, row["ready"]) == (1, False)
        last = json.loads(rest.result()[-1])
        assert last["error"]["code"] == "upstream_timeout"
        FIGURES["hang_cut_s"] = round(time.monotonic() - began_s, 1)
        (row,) = world.gateway.events(begun_id)
        assert (row["outcome"], row["usage_source"]) == ("upstream_timeout", "derived")
        assert row["cost_usd"] > 0
    finally:
        for pid in cores:
            os.kill(pid, signal.SIGCONT)
    FIGURES["hang_back_s"] = world.until_back()
    code, row = world.status()
    assert row["ready"] is True


@pytest.mark.parametrize("victim", ["leader", "core"])
def test_a_killed_process_is_survived(world: World, victim: str) -> None:
    """SIGKILL of the HTTP process (a crash) and of the core (as the out-of-memory killer does)."""
    stream = world.long_stream()
    begun_id, _ = begun(stream)
    leader = world.engine.leader()
    assert leader is not None
    pids = [leader] if victim == "leader" else world.engine.cores()
    began_s = time.monotonic()
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    last = json.loads(list(stream)[-1])
    assert last["error"]["code"] == "upstream_error"
    FIGURES[f"{victim}_cut_s"] = round(time.monotonic() - began_s, 1)
    answers = list(world.pool.map(lambda _: world.ask(), range(8)))
    assert {
        (answer.status_code, answer.headers["x-tollgate-deployment"]) for answer in answers
    } == {(200, "other")}
    (row,) = world.gateway.events(begun_id)
    assert row["usage_source"] == "derived"
    assert row["cost_usd"] > 0
    alone = world.ask("alone")
    assert alone.status_code in (502, 504)
    if alone.json()["error"]["code"] == "upstream_unreachable":
        assert alone.headers["retry-after"] == "5"
    eventually(lambda: "Starting it again" in world.engine.says(), "the restart", within_s=60)
    FIGURES[f"{victim}_left_s"] = world.until_left()
    FIGURES[f"{victim}_back_s"] = world.until_back()


def test_a_core_killed_while_it_loads_is_replaced(world: World) -> None:
    """The supervisor notices it before any probe was answered: no engine is left half-started."""
    leader = world.engine.leader()
    assert leader is not None
    starts = world.engine.says().count("Starting it again")
    os.kill(leader, signal.SIGKILL)
    eventually(lambda: world.engine.leader() not in (None, leader), "a new start", within_s=60)
    loading = eventually(world.engine.cores, "its core", within_s=200)
    began_s = time.monotonic()
    os.kill(loading[0], signal.SIGKILL)
    eventually(
        lambda: world.engine.says().count("Starting it again") >= starts + 2,
        "another start",
        within_s=120,
    )
    FIGURES["loading_noticed_s"] = round(time.monotonic() - began_s, 1)
    FIGURES["loading_back_s"] = world.until_back()
