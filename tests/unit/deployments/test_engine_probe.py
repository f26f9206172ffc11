"""The probe reads vLLM's metrics over a real socket, follows no redirect and survives any
answer.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from gateway.domain.deployments.engine_sample import EngineSample
from gateway.providers.engine_sampler import EngineSampler
from tests import factories
from tests.fakes import CountingListener
from tests.gateway_process import free_port
from tests.unit.test_tree_rules import importers_below

NOW = datetime(2026, 11, 20, 12, tzinfo=UTC)
STARTED_S = 1763632800.25
# As vLLM 0.32 writes it: a twin `_created` for each counter, labels, exponents.
PAGE = f"""\
# HELP vllm:prompt_tokens_total Number of prefill tokens processed.
# TYPE vllm:prompt_tokens_total counter
vllm:prompt_tokens_total{{engine="0",model_name="m-1"}} 1.234e+06
vllm:prompt_tokens_total{{engine="1",model_name="m-1"}} 6.0
vllm:prompt_tokens_created{{engine="0",model_name="m-1"}} 1.7e+09
# TYPE vllm:generation_tokens_total counter
vllm:generation_tokens_total{{engine="0",model_name="m-1"}} 77.0
vllm:generation_tokens_total{{engine="0",model_name="another"}} 5000.0
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{{engine="0",model_name="m-1"}} 2.0
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{{engine="0",model_name="m-1"}} 0.0
# TYPE process_start_time_seconds gauge
process_start_time_seconds {STARTED_S}
"""


class Engine(ThreadingHTTPServer):
    """Answers every request alike and records the requests."""

    def __init__(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        self.asked: list[tuple[str, str, dict[str, str]]] = []
        engine = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                engine.asked.append((self.command, self.path, dict(self.headers)))
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: Any) -> None:
                pass

        super().__init__(("127.0.0.1", 0), Handler)


@pytest.fixture
def engines() -> Iterator[Any]:
    """Start engines with the test's answers."""
    running: list[Engine] = []

    def start(status: int = 200, body: str | bytes = PAGE, **headers: str) -> Engine:
        engine = Engine(status, body.encode() if isinstance(body, str) else body, headers)
        threading.Thread(
            target=engine.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True
        ).start()
        running.append(engine)
        return engine

    yield start
    for engine in running:
        engine.shutdown()
        engine.server_close()


def look_at(engine: Engine | None, *, model: str = "m-1", port: int = 0) -> EngineSample:
    address = f"http://127.0.0.1:{engine.server_address[1] if engine else port}/v1"
    one = factories.deployment(
        "qwen", base_url=address, model=model, is_self_hosted=True, api_key="env:ENGINE_KEY"
    )
    return EngineSampler(lambda: NOW).sample(one)


def test_a_sample_holds_the_figures_of_its_own_model(engines: Any) -> None:
    """Summed over its engine cores; another model on the same engine is another deployment's."""
    engine = engines()
    assert look_at(engine) == EngineSample(
        deployment="qwen",
        at=NOW,
        is_up=True,
        started_at=datetime.fromtimestamp(STARTED_S, UTC),
        prompt_tokens=1_234_006,
        generation_tokens=77,
        running=2,
        waiting=0,
    )
    ((method, path, headers),) = engine.asked
    assert (method, path) == ("GET", "/metrics")
    assert not {"authorization", "cookie"} & {name.lower() for name in headers}


def test_a_model_that_is_not_named_gets_the_sum(engines: Any) -> None:
    """An engine may serve under another name than it counts under."""
    assert look_at(engines(), model="alias").generation_tokens == 5077


def test_llama_cpps_counters_settle_too(engines: Any) -> None:
    """It counts reused tokens of prompts apart; without them the count is a part, and too small."""
    page = (
        "llamacpp:prompt_tokens_total 120\nllamacpp:prompt_tokens_cached_total 30\n"
        "llamacpp:prompt_tokens_seconds 7\nllamacpp:tokens_predicted_total 40\n"
        "llamacpp:tokens_predicted_seconds_total 0.8\n"
        "llamacpp:requests_processing 1\nllamacpp:requests_deferred 0\n"
    )
    found = look_at(engines(body=page))
    assert (found.prompt_tokens, found.generation_tokens) == (150, 40)
    assert (found.running, found.waiting, found.started_at) == (1, 0, None)
    old = look_at(engines(body=page.replace("llamacpp:prompt_tokens_cached_total 30\n", "")))
    assert (old.prompt_tokens, old.generation_tokens) == (None, 40)


@pytest.mark.parametrize("host", ["127.0.0.1:9", "user:secret@127.0.0.1:9", "127.0.0.1"])
def test_a_page_may_be_at_another_port_of_the_same_host(engines: Any, host: str) -> None:
    """Triton has its metrics at port 8002; the credential of an address stays behind."""
    engine = engines(body="nv_inference_exec_count 1\n")
    port = engine.server_address[1]
    one = factories.deployment("triton", base_url=f"http://{host}/v2", is_self_hosted=True)
    page = EngineSampler(lambda: NOW).metrics_page(one, f":{port}/metrics")
    assert page == "nv_inference_exec_count 1\n"
    ((_, path, headers),) = engine.asked
    assert (path, headers["host"]) == ("/metrics", f"127.0.0.1:{port}")


def test_an_engine_that_is_away_is_down() -> None:
    """A refused connection is not an error of ours."""
    assert look_at(None, port=free_port()) == EngineSample(deployment="qwen", at=NOW, is_up=False)


def test_a_redirect_is_not_followed(engines: Any) -> None:
    """A probe that follows redirects would be a way out of the allowed regions."""
    elsewhere = CountingListener()
    try:
        found = look_at(engines(302, "", Location=f"http://127.0.0.1:{elsewhere.port}/metrics"))
        assert elsewhere.connections == 0
    finally:
        elsewhere.close()
    assert (found.is_up, found.prompt_tokens) == (True, None)


@pytest.mark.parametrize(
    "body",
    [
        "",
        "<html>not metrics</html>",
        "vllm:prompt_tokens_total NaN\nvllm:generation_tokens_total "
        "+Inf\nprocess_start_time_seconds NaN\n",
        "vllm:prompt_tokens_total -1\nvllm:generation_tokens_total "
        "1e300\nprocess_start_time_seconds 9e15\n",
        b"\xff\xfe\x00vllm:prompt_tokens_total 1\n",
        'vllm:prompt_tokens_total{model_name="m-1',
    ],
)
def test_no_answer_breaks_the_probe(engines: Any, body: str | bytes) -> None:
    """It runs in the gateway: an engine's output must never stop the round of all others."""
    found = look_at(engines(200, body))
    assert found.is_up
    assert (found.prompt_tokens, found.generation_tokens, found.started_at) == (None, None, None)


def test_an_engine_that_says_503_is_up(engines: Any) -> None:
    """It loads its model: the GPU is in use and paid for.

    The content of an error page is not used.
    """
    found = look_at(engines(503))
    assert (found.is_up, found.prompt_tokens, found.started_at) == (True, None, None)


def test_nothing_else_has_a_client_beside_the_transport() -> None:
    """A second module with a client of its own would be a way out that no permit guards.

    The sampler reads load pages, and a token exchange sends a credential: neither has content.
    The preflight runs before there is a gateway, and asks ports of this machine for their models.
    The engine's commands ask an engine for one token of a fixed question, its name and counts of
    tokens, by one function that follows no redirect.
    """
    assert importers_below("http.client") == ["engine/load/json_answer.py", "engine/preflight.py"]
    assert importers_below("httpcore2") == [
        "gateway/providers/access_tokens/token_host.py",
        "gateway/providers/engine_sampler.py",
        "gateway/providers/timed_stream.py",
    ]
    assert importers_below("gateway.providers.timed_stream") == [
        "gateway/providers/access_tokens/token_host.py",
        "gateway/providers/engine_sampler.py",
    ]
