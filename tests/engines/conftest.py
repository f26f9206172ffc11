"""Fixtures of the real engines; `make test` collects nothing here, because building one takes
twenty minutes.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

import pytest

from tests.engines.llama import LlamaServer, llama_server
from tests.gateway_process import Gateway, new_database

collect_ignore_glob = [] if os.environ.get("TOLLGATE_TEST_ENGINES") else ["test_*.py"]

PRICE = "{input_usd_per_mtok: 1, cached_input_usd_per_mtok: 0.25, output_usd_per_mtok: 4}"
# Ollama's and LM Studio's `/v1` is the same dialect; the entry of each is tried at llama.cpp's.
PROVIDERS = ("llamacpp", "openai_compatible", "ollama", "lmstudio")


@pytest.fixture(scope="session")
def llama() -> Iterator[LlamaServer]:
    """Start the server for chats and completions."""
    with llama_server("--jinja", "--reasoning-format", "none") as server:
        yield server


@pytest.fixture(scope="session")
def embedder() -> Iterator[LlamaServer]:
    """Start another that embeds: a server of llama.cpp does one or the other."""
    with llama_server("--embeddings", "--pooling", "mean") as server:
        yield server


@pytest.fixture(scope="session")
def start_own_gateway(
    launch_gateway: Callable[..., Iterator[Gateway]], postgres_url: str, migrated_template: str
) -> Callable[[str], Iterator[Gateway]]:
    """Start a gateway with a policy, over a database of its own."""

    def start(document: str) -> Iterator[Gateway]:
        for url in new_database(postgres_url, migrated_template):
            yield from launch_gateway(document, url)

    return start


@pytest.fixture(scope="session")
def gateway(
    start_own_gateway: Callable[[str], Iterator[Gateway]],
    llama: LlamaServer,
    embedder: LlamaServer,
) -> Iterator[Gateway]:
    """Start a gateway with a route for each name under which llama.cpp may stand."""
    yield from start_own_gateway(policy(llama.url, embedder.url))


def policy(chat_url: str, embed_url: str) -> str:
    """Return the policy document."""
    common = f"model: tiny, region: unknown, self_hosted: true, price: {PRICE}"
    one = "  - {{name: {name}, provider: {provider}, base_url: {url}, {rest}}}"
    deployments = [
        one.format(
            name=name,
            provider=name,
            url=f'"{chat_url}/v1"',  # Ollama's compatible endpoint: without it, its own dialect
            rest=f"{common}, context_window: 4096",
        )
        for name in PROVIDERS
    ]
    rest = f"{common}, operations: [embeddings]"
    deployments.append(
        one.format(name="embed", provider="llamacpp", url=f'"{embed_url}/v1"', rest=rest)
    )
    names = [*PROVIDERS, "embed"]
    lines = ["version: 1", "classes: {internal: {regions: [any]}}", "deployments:", *deployments]
    lines += ["routes:", *(f"  - {{name: {name}, deployments: [{name}]}}" for name in names)]
    routes = ", ".join(names)
    lines.append("teams:")
    lines.append(
        f"  - {{name: payments, cost_centre: CC-1, data_class: internal, routes: [{routes}]}}"
    )
    return "\n".join(lines) + "\n"
