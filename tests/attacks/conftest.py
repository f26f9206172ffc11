"""The attacks' fixtures, in addition to those of all tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.attacks.bounded import Bounded, bounded
from tests.attacks.permissive_engine import Engine, running_engine
from tests.attacks.raw_callers import two_teams
from tests.gateway_process import FakeUpstreamProcess, Gateway, StartGateway, new_database
from tests.integration.postgres_gate import PostgresGate


@pytest.fixture
def admission(database_url: str) -> Iterator[PostgresGate]:
    """Yield a gate in front of the test's own database, which the test can shut, freeze and
    open.
    """
    made = PostgresGate(database_url)
    yield made
    made.close()


@pytest.fixture
def permissive_engine() -> Iterator[Engine]:
    """Yield an upstream that honours one maximum for each endpoint and bills everything else."""
    with running_engine() as engine:
        yield engine


@pytest.fixture
def poor(start_gateway: StartGateway, permissive_engine: Engine) -> Bounded:
    """Return a gateway before the permissive engine, with a small hard budget for each key."""
    return bounded(start_gateway, permissive_engine)


@pytest.fixture(scope="session")
def red_and_blue(
    launch_gateway: Callable[..., Iterator[Gateway]],
    postgres_url: str,
    migrated_template: str,
    fake_upstream: FakeUpstreamProcess,
) -> Iterator[Gateway]:
    """Yield a gateway with teams red and blue, for attacks that leave it unchanged.

    It has its own database, because a database belongs to one pepper and so to one shared gateway.
    """
    for url in new_database(postgres_url, migrated_template):
        yield from launch_gateway(two_teams(f"{fake_upstream.url}/v1"), url)
