"""One gateway for the tests that leave it as they found it, and the official clients pointed at
it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime

import httpx2
import openai
import pytest

from gateway.services.policy.apply import apply_policy
from gateway.storage.policy.keys import KeyStore
from gateway.storage.policy.policies import PolicyStore
from gateway.storage.policy.prices import PriceStore, builtin_price
from gateway.storage.postgres.database import Database
from tests.fakes import CountingListener
from tests.gateway_process import FakeUpstreamProcess, Gateway, free_port
from tests.integration.policy import shared, small
from tests.integration.postgres_gate import PostgresGate


@pytest.fixture(scope="session")
def forbidden() -> Iterator[CountingListener]:
    """A place in another region. Whoever connects to it is counted."""
    listener = CountingListener()
    yield listener
    listener.close()


@pytest.fixture(scope="session")
def gateway(
    launch_gateway: Callable[..., Iterator[Gateway]],
    session_database_url: str,
    fake_upstream: FakeUpstreamProcess,
    forbidden: CountingListener,
) -> Iterator[Gateway]:
    """The shared gateway: `payments` is confidential and has nearly every route, `search` has
    one.
    """
    document = shared(fake_upstream.url, forbidden_port=forbidden.port, closed_port=free_port())
    yield from launch_gateway(document, session_database_url, max_body_bytes=100_000)


@pytest.fixture
def client(gateway: Gateway) -> Iterator[openai.OpenAI]:
    """The official client with payments' key; it does not retry, so that one call is one
    request.
    """
    with openai.OpenAI(
        base_url=gateway.base_url, api_key=gateway.key, max_retries=0, timeout=30
    ) as made:
        yield made


@pytest.fixture
def http(gateway: Gateway) -> Iterator[httpx2.Client]:
    """A plain client with payments' key."""
    headers = {"authorization": f"Bearer {gateway.key}"}
    with httpx2.Client(
        base_url=f"http://127.0.0.1:{gateway.port}", headers=headers, timeout=30
    ) as made:
        yield made


@pytest.fixture
def admission(database_url: str) -> Iterator[PostgresGate]:
    """The way to the test's own database, to be shut and opened."""
    made = PostgresGate(database_url)
    yield made
    made.close()


@pytest.fixture
def key_store(database: Database) -> KeyStore:
    """The keys of a database that has a policy, and none yet."""
    apply_policy(
        small("http://127.0.0.1:9"),
        policies=PolicyStore(database),
        prices=PriceStore(database),
        builtin=builtin_price,
        author="ada",
        message="",
        now=datetime(2026, 11, 20, tzinfo=UTC),
    )
    return KeyStore(database)
