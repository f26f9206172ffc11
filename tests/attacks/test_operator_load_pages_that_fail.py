"""Engines whose load pages are missing, HTML, 10 MiB long or silent: requests go on, and each is
charged to the token.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import httpx2
import pytest

from tests import plain_http
from tests.attacks.fragile_provider import FragileProvider, Page, fragile
from tests.gateway_process import Gateway
from tests.waiting import eventually

PRICE = "{input_usd_per_mtok: 1, output_usd_per_mtok: 10}"
LINE = b'vllm:num_requests_running{model_name="m"} 1\n'
PAGES: dict[str, Page] = {
    "missing": (404, "text/plain", b"not here"),
    "html": (200, "text/html", b"<!doctype html><title>Sign in</title>" + b"<p>\n" * 500),
    "long": (200, "text/plain", LINE * (10 * 2**20 // len(LINE))),
    "silent": None,
}
ENGINES = {"vllm": "/v1", "llamacpp": "/v1", "trtllm": "/v1", "ollama": "", "triton": ""}
OWN_PAGES = {"/metrics", "/slots", "/prometheus/metrics", "/api/ps"}
ROUTES = [f"{engine}-{page}" for engine in ENGINES for page in PAGES]
ROUNDS = 3


@pytest.fixture(scope="module")
def engines() -> Iterator[dict[str, FragileProvider]]:
    """Yield a server for each kind of page, which stands for an engine of each dialect."""
    with ExitStack() as running:
        made = {page: running.enter_context(fragile()) for page in PAGES}
        for page, answer in PAGES.items():
            made[page].page = answer
        yield made


@pytest.fixture(scope="module")
def gateway(
    launch_gateway: Callable[..., Iterator[Gateway]],
    module_database_url: str,
    engines: dict[str, FragileProvider],
) -> Iterator[Gateway]:
    deployments = [
        f'  - {{name: {engine}-{page}, model: "fake/in:90+out:6", provider: {engine}, '
        f'region: unknown, base_url: "{engines[page].url}{base}", price: {PRICE}}}'
        for engine, base in ENGINES.items()
        for page in PAGES
    ]
    routes = [f"  - {{name: {name}, deployments: [{name}]}}" for name in ROUTES]
    lines = [
        "version: 1",
        "classes: {internal: {regions: [any]}}",
        "deployments:",
        *deployments,
        "routes:",
        *routes,
        "teams:",
        "  - {name: payments, cost_centre: CC-1, data_class: internal, "
        f"routes: [{', '.join(ROUTES)}]}}",
    ]
    yield from launch_gateway("\n".join(lines), module_database_url)


def asked(gateway: Gateway, route: str) -> tuple[httpx2.Response, dict[str, Any]]:
    """Return the answer of a route and its only event."""
    body: dict[str, Any] = {"model": route, "stream": True, "max_tokens": 50}
    path = "chat/completions"
    if route.startswith("triton"):
        path, body["prompt"] = "completions", "word " * 40
    else:
        body["messages"] = [{"role": "user", "content": "word " * 40}]
    headers = {"authorization": f"Bearer {gateway.key}"}
    answer = plain_http.post(f"{gateway.base_url}/{path}", json=body, headers=headers, timeout=60)
    (event,) = gateway.events(answer.headers["x-request-id"])
    return answer, event


def test_requests_go_on_without_a_readable_load_page(
    gateway: Gateway, engines: dict[str, FragileProvider]
) -> None:
    """A load only orders deployments: without one the declared figures count."""
    for server in engines.values():
        eventually(lambda its=server: OWN_PAGES & set(its.looked), "a look at the load")
    for _ in range(ROUNDS):
        with ThreadPoolExecutor(8) as pool:
            found = dict(
                zip(ROUTES, pool.map(lambda one: asked(gateway, one), ROUTES), strict=True)
            )
        for route, (answer, row) in found.items():
            assert (answer.status_code, row["outcome"]) == (200, "ok"), (route, answer.text)
            assert (row["input_tokens"], row["output_tokens"]) == (90, 6), route
            assert row["cost_usd"] > 0
    health = plain_http.get(f"http://127.0.0.1:{gateway.port}/readyz", timeout=30)
    assert health.status_code == 200, health.text
    assert not [line for line in gateway.log_lines() if line["level"] == "error"]
