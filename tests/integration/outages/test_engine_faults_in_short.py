"""Each fault of an engine behind a real gateway, with a small server in the engine's place:
docs/runbooks/engine-faults.md has a row for each. `make engines` breaks a real vLLM.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests import plain_http
from tests.attacks.odd_engine import OddEngine, http, odd_engine
from tests.gateway_process import FakeUpstreamProcess, Gateway, free_port
from tests.waiting import eventually

JSON = "content-type: application/json"
PAGE = b"vllm:num_requests_running 1\nvllm:num_requests_waiting 0\nvllm:generation_tokens_total 7\n"
DEAD = b'{"error":{"message":"EngineCore failed.","type":"InternalServerError","code":500}}'
FULL = b'{"error":{"message":"The queue is full.","type":"ServiceUnavailableError","code":503}}'
ABSENT = (
    b'{"error":{"message":"The model `m` does not exist.","type":"NotFoundError","param":"model",'
    b'"code":404}}'
)
NAMES = ("crashed", "dead", "full", "misnamed", "hung")
RUNBOOK = Path(__file__).parents[3] / "docs" / "runbooks" / "engine-faults.md"
SSE = (
    b'data: {"id":"c","object":"chat.completion.chunk","model":"m","choices":[{"index":0,"delta":'
    b'{"content":"Hi"},"finish_reason":null}],"usage":{"prompt_tokens":10,"completion_tokens":1,'
    b'"total_tokens":11}}\n\n'
)


@dataclass
class World:
    """A gateway over one engine for each fault; each also has a route of its own without another
    deployment.
    """

    gateway: Gateway
    engines: dict[str, OddEngine]

    def ask(self, route: str, **body: Any) -> httpx2.Response:
        return plain_http.post(
            f"{self.gateway.base_url}/chat/completions",
            timeout=60,
            headers={"authorization": f"Bearer {self.gateway.key}"},
            json={"model": route, "messages": [{"role": "user", "content": "Hi"}], **body},
        )

    def rows(self, answer: httpx2.Response) -> list[tuple[str, str, str, Any]]:
        """Return deployment, outcome, usage source and cost of an answer's attempts."""
        count = int(answer.headers["x-tollgate-attempts"])
        return [
            (row["deployment"], row["outcome"], row["usage_source"], row["cost_usd"])
            for row in self.gateway.events(answer.headers["x-request-id"], count=count)
        ]

    def opened_for(self, deployment: str) -> set[str]:
        start = f'tollgate_breaker_opened_total{{deployment="{deployment}",reason="'
        lines = [line for line in self.gateway.metrics().splitlines() if line.startswith(start)]
        return {line.removeprefix(start).partition('"')[0] for line in lines}


@pytest.fixture(scope="module")
def world(
    launch_gateway: Callable[..., Iterator[Gateway]],
    module_database_url: str,
    fake_upstream: FakeUpstreamProcess,
) -> Iterator[World]:
    with ExitStack() as running:
        engines = {name: running.enter_context(odd_engine(PAGE)) for name in NAMES}
        engines["crashed"].answer = b""
        engines["dead"].answer = http(DEAD, JSON, status="500 Internal Server Error")
        engines["full"].answer = http(FULL, JSON, "retry-after: 2", status="503 Unavailable")
        engines["misnamed"].answer = http(ABSENT, JSON, status="404 Not Found")
        engines["hung"].works.clear()
        urls = {name: engine.url for name, engine in engines.items()}
        document = policy({**urls, "gone": f"http://127.0.0.1:{free_port()}/v1"}, fake_upstream.url)
        for gateway in launch_gateway(document, module_database_url):
            yield World(gateway, engines)


def policy(engines: dict[str, str], other_url: str) -> str:
    price = "price: {input_usd_per_mtok: 1, output_usd_per_mtok: 4}"
    own = "\n".join(
        f"  - {{name: {name}, provider: vllm, self_hosted: true, model: m, region: unknown, "
        f'base_url: "{url}", {price}, '
        "timeouts: {connect_s: 1, first_byte_s: 40, idle_s: 40, total_s: 60}}"
        for name, url in engines.items()
    )
    routes = "\n".join(
        f"  - {{name: {name}, deployments: [{name}, other]}}\n"
        f"  - {{name: {name}-alone, deployments: [{name}]}}"
        for name in engines
    )
    names = ", ".join(f"{name}, {name}-alone" for name in engines)
    return f"""\
version: 1
classes: {{internal: {{regions: [any]}}}}
deployments:
{own}
  - {{name: other, provider: openai_compatible, model: "fake/out:2", region: unknown, base_url: "{other_url}/v1", {price}}}
routes:
{routes}
teams: [{{name: payments, cost_centre: CC-1, data_class: internal, routes: [{names}]}}]
"""  # noqa: E501


@pytest.mark.parametrize(
    ("name", "status", "code", "retry_after", "row"),
    [
        ("crashed", 502, "upstream_error", None, ("upstream_error", "unknown", None)),
        ("gone", 502, "upstream_unreachable", "5", ("upstream_unreachable", "none", 0)),
        ("dead", 502, "upstream_error", None, ("upstream_error", "none", 0)),
        ("full", 503, "overloaded", "2", ("upstream_error", "none", 0)),
        ("misnamed", 502, "upstream_error", None, ("upstream_error", "none", 0)),
    ],
)
def test_a_fault_is_answered_elsewhere_or_explained(
    world: World,
    name: str,
    status: int,
    code: str,
    retry_after: str | None,
    row: tuple[str, str, Any],
) -> None:
    """With another deployment the caller notices nothing; without one, whose fault it is."""
    moved = world.ask(name)
    assert (moved.status_code, moved.headers["x-tollgate-deployment"]) == (200, "other")
    rows = world.rows(moved)
    assert (name, *row) in rows
    assert rows[-1][:3] == ("other", "ok", "provider")
    alone = world.ask(f"{name}-alone")
    error = alone.json()["error"]
    assert (alone.status_code, error["code"]) == (status, code)
    assert alone.headers.get("retry-after") == retry_after
    assert name in error["message"]
    assert f"`{code}`" in RUNBOOK.read_text(encoding="utf-8")


def test_a_missing_model_is_named_to_the_operator(world: World) -> None:
    """At the first request: the next one would fail in the same way."""
    world.ask("misnamed")
    assert world.opened_for("misnamed") == {"model_missing"}
    ready = plain_http.get(f"http://127.0.0.1:{world.gateway.port}/readyz", timeout=10)
    assert "misnamed (model_missing)" in ready.text
    (line, *_) = [
        line
        for line in world.gateway.log_lines()
        if line["event"] == "deployment_passed_over" and line["deployment"] == "misnamed"
    ]
    assert line["problem"] == "misnamed does not know its model m. Ask an admin."


def test_the_metrics_show_each_engine(world: World) -> None:
    """A silent one is down, and has no figure that an autoscaler could follow."""
    lines = eventually(
        lambda: (
            found
            if 'tollgate_engine_up{deployment="gone"} 0.0'
            in (found := world.gateway.metrics().splitlines())
            else None
        ),
        "the first samples",
    )
    assert 'tollgate_engine_up{deployment="misnamed"} 1.0' in lines
    assert 'tollgate_engine_running{deployment="misnamed"} 1.0' in lines
    assert not any(line.startswith('tollgate_engine_pressure{deployment="gone"') for line in lines)


def test_a_hung_engine_is_left_by_all_that_wait(world: World) -> None:
    """Its port is open and its page stands still, while requests keep arriving. A token finds it
    again.
    """
    with ThreadPoolExecutor(32) as pool:
        waiting = []
        while not world.opened_for("hung"):
            waiting.append(pool.submit(world.ask, "hung"))
            assert len(waiting) < 120, "the hang was not noticed"
            time.sleep(0.5)
        answers = [one.result() for one in waiting]
    assert {(one.status_code, one.headers["x-tollgate-deployment"]) for one in answers} == {
        (200, "other")
    }
    assert world.opened_for("hung") == {"no_progress"}
    first = world.rows(answers[0])
    assert first[0] == ("hung", "upstream_timeout", "unknown", None)
    assert first[1][:3] == ("other", "ok", "provider")
    assert world.ask("hung").headers["x-tollgate-attempts"] == "1"
    engine = world.engines["hung"]
    engine.works.set()
    eventually(
        lambda: 'tollgate_breaker_open{deployment="hung"} 0.0' in world.gateway.metrics(),
        "the engine's return",
        within_s=30,
    )
    assert world.ask("hung").headers["x-tollgate-deployment"] == "hung"


def test_a_stream_that_has_begun_ends_with_an_error_event(world: World) -> None:
    """Half an answer from each of two models is no answer; the tokens that came are charged."""
    engine = world.engines["crashed"]
    head = (
        b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
    )
    engine.answer = head + b"%x\r\n%b\r\n" % (len(SSE), SSE)
    answer = world.ask("crashed-alone", stream=True)
    events = [line[6:] for line in answer.text.splitlines() if line.startswith("data: ")]
    assert json.loads(events[-1])["error"]["code"] == "upstream_error"
    ((_, outcome, source, cost),) = world.rows(answer)
    assert (outcome, source) == ("upstream_cut", "derived")
    assert cost > 0
