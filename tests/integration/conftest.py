"""One gateway for all tests that leave it unchanged, and the official clients for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime

import httpx2
import openai
import pytest

from gateway.services.policy.apply import apply_policy
from gateway.storage.policy.keys import KeyStore
from gateway.storage.policy.policies import PolicyStore
from gateway.storage.policy.price_list import builtin_price
from gateway.storage.policy.prices import PriceStore
from gateway.storage.postgres.database import Database
from gateway.wire.parsed_policy import parse
from tests import plain_http
from tests.fakes import CountingListener
from tests.gateway_process import FakeUpstreamProcess, Gateway, free_port, new_database
from tests.integration.policy import shared, small
from tests.integration.postgres_gate import PostgresGate


@pytest.fixture(scope="package")
def forbidden() -> Iterator[CountingListener]:
    """Yield a listener that stands for another region and counts the connections to it."""
    listener = CountingListener()
    yield listener
    listener.close()


@pytest.fixture(scope="package")
def gateway(
    launch_gateway: Callable[..., Iterator[Gateway]],
    postgres_url: str,
    migrated_template: str,
    fake_upstream: FakeUpstreamProcess,
    forbidden: CountingListener,
) -> Iterator[Gateway]:
    """Yield the shared gateway: `payments` is confidential and has nearly every route, `search`
    has one.
    """
    document = shared(fake_upstream.url, forbidden_port=forbidden.port, closed_port=free_port())
    for url in new_database(postgres_url, migrated_template):
        yield from launch_gateway(document, url, max_body_bytes=100_000)


@pytest.fixture
def client(gateway: Gateway) -> Iterator[openai.OpenAI]:
    """Yield the official client with payments' key."""
    with plain_http.official_client(gateway.base_url, gateway.key) as made:
        yield made


@pytest.fixture
def http(gateway: Gateway) -> Iterator[httpx2.Client]:
    """Yield a plain client with payments' key."""
    headers = {"authorization": f"Bearer {gateway.key}"}
    with httpx2.Client(
        verify=plain_http.NO_CERTIFICATES,
        base_url=f"http://127.0.0.1:{gateway.port}",
        headers=headers,
        timeout=30,
    ) as made:
        yield made


@pytest.fixture
def admission(database_url: str) -> Iterator[PostgresGate]:
    """Yield a gate in front of the test's own database, which the test can shut and open."""
    made = PostgresGate(database_url)
    yield made
    made.close()


@pytest.fixture
def key_store(database: Database) -> KeyStore:
    """Return the key store of a database that has a policy but no keys."""
    apply_policy(
        parse(small("http://127.0.0.1:9")),
        policies=PolicyStore(database),
        prices=PriceStore(database),
        builtin=builtin_price,
        author="ada",
        message="",
        now=datetime(2026, 11, 20, tzinfo=UTC),
    )
    return KeyStore(database)
