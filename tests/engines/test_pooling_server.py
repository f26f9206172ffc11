"""vLLM's pooling server behind a real gateway: rerank and score cost the tokens that its own
counter shows.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from decimal import Decimal
from pathlib import Path
from typing import Any

import httpx2
import pytest

from engine import environment
from engine.home import SHIPPED_MODELS, engine_home
from tests import plain_http
from tests.gateway_process import REPOSITORY, Gateway, free_port
from tests.waiting import eventually

HOME = engine_home(os.environ)
pytestmark = pytest.mark.skipif(
    environment.installed_device(HOME) is None, reason="needs vLLM: python -m engine setup"
)
QUERY = "What is the capital of France?"
DOCUMENTS = ["Paris is a city.", "Count down from 12", "red apple"]
PAIR_TOKENS = 3 * 10 + 5 + 4 + 2  # by the engine's own /tokenize, text by text
MODELS = {"cross": PAIR_TOKENS, "single": 10 + 5 + 4 + 2}


@contextmanager
def pooling(model: str) -> Iterator[str]:
    """Serve a model; return the server's URL."""
    port = free_port()
    url, program = f"http://127.0.0.1:{port}", [sys.executable, "-m", "engine"]
    arguments = ["--runner", "pooling", "--port", str(port), "--model", model]
    serve = subprocess.Popen(
        [*program, "serve", *arguments, "--served-model-name", "ranker"], cwd=REPOSITORY
    )
    try:
        wait = [*program, "wait", "--url", url, "--timeout", "240"]
        subprocess.run(wait, cwd=REPOSITORY, check=True)
        yield url
    finally:
        serve.send_signal(signal.SIGTERM)
        serve.wait(60)


@pytest.fixture(scope="module", params=MODELS)
def engine(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[str, int]]:
    """A cross-encoder reads each pair; the embedding model reads each text by itself. The number is
    the tokens of the texts above.
    """
    folder = str(SHIPPED_MODELS / "tiny")
    if request.param == "cross":
        made = str(tmp_path_factory.mktemp("models") / "cross")
        program = Path(__file__).with_name("to_cross_encoder.py")
        subprocess.run([str(HOME.python), str(program), folder, made], check=True)
        folder = made
    with pooling(folder) as url:
        yield url, MODELS[request.param]


@pytest.fixture(scope="module")
def gateway(
    start_own_gateway: Callable[[str], Iterator[Gateway]], engine: tuple[str, int]
) -> Iterator[Gateway]:
    yield from start_own_gateway(policy(engine[0]))


def policy(url: str) -> str:
    return f"""\
version: 1
classes: {{internal: {{regions: [any]}}}}
deployments:
  - {{name: ranker, provider: vllm, base_url: "{url}/v1", model: ranker, region: unknown,
     operations: [rerank, score], price: {{input_usd_per_mtok: 1}}}}
  - {{name: chats, provider: vllm, base_url: "{url}/v1", model: ranker, region: unknown,
     price: {{input_usd_per_mtok: 1, output_usd_per_mtok: 1}}}}
routes: [{{name: ranker, deployments: [ranker]}}, {{name: chats, deployments: [chats]}}]
teams: [{{name: payments, cost_centre: CC-1, data_class: internal, routes: [ranker, chats]}}]
"""


def counted(url: str) -> int:
    """Return the prompt tokens that the engine has counted."""
    page = plain_http.get(f"{url}/metrics", timeout=10).text
    name = "vllm:prompt_tokens_total"
    lines = [line for line in page.splitlines() if line.startswith(name)]
    return int(sum(float(line.rsplit(" ", 1)[1]) for line in lines))


def post(gateway: Gateway, path: str, **body: Any) -> httpx2.Response:
    headers = {"authorization": f"Bearer {gateway.key}"}
    return plain_http.post(
        f"{gateway.base_url}/{path}", json={"model": "ranker", **body}, headers=headers, timeout=60
    )


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("rerank", {"query": QUERY, "documents": DOCUMENTS}),
        ("rerank", {"query": QUERY, "documents": DOCUMENTS, "top_n": 1}),
        ("score", {"text_1": QUERY, "text_2": DOCUMENTS}),
        ("score", {"queries": [QUERY] * 3, "items": DOCUMENTS}),
    ],
)
def test_the_row_has_the_engines_own_count(
    gateway: Gateway, engine: tuple[str, int], path: str, body: dict[str, Any]
) -> None:
    """Input alone, in the answer, in the ledger and at the engine."""
    url, tokens = engine
    if path == "score" and "queries" in body and tokens != PAIR_TOKENS:
        tokens += 2 * 10  # each query by itself
    before = counted(url)
    answer = post(gateway, path, **body)
    assert answer.status_code == 200, answer.text
    found = answer.json()
    assert found["model"] == "ranker"
    results = found["results"] if path == "rerank" else found["data"]
    assert len(results) == body.get("top_n", 3)
    assert found["usage"]["prompt_tokens"] == tokens
    assert Decimal(str(found["usage"]["cost_usd"])) == tokens * Decimal("1e-6")
    (row,) = gateway.events(answer.headers["x-request-id"])
    assert (row["operation"], row["input_tokens"], row["output_tokens"] or 0) == (path, tokens, 0)
    assert (row["outcome"], row["usage_source"]) == ("ok", "provider")
    assert row["cost_usd"] == tokens * Decimal("1e-6")
    eventually(lambda: counted(url) - before == tokens, "the engine's counter")


def test_a_deployment_that_does_not_state_it_gets_none(gateway: Gateway) -> None:
    """Rerank is never a default: most models have no score."""
    answer = post(gateway, "rerank", model="chats", query=QUERY, documents=DOCUMENTS)
    assert answer.status_code >= 400
    assert "rerank" in answer.json()["error"]["message"]
