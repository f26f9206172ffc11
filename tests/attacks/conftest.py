"""The attacks' fixtures, in addition to those of all tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.attacks.bounded import Bounded, policy
from tests.attacks.permissive_engine import Engine, running_engine
from tests.attacks.raw_callers import two_teams
from tests.gateway_process import FakeUpstreamProcess, Gateway, new_database
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


@pytest.fixture(scope="module")
def poor_of_module(
    launch_gateway: Callable[..., Iterator[Gateway]], module_database_url: str
) -> Iterator[Bounded]:
    """Yield a gateway before a permissive engine of its own, with a small hard budget for each
    key.
    """
    with running_engine() as engine:
        for gateway in launch_gateway(policy(engine), module_database_url):
            yield Bounded(gateway, engine, gateway.key)


@pytest.fixture
def poor(poor_of_module: Bounded) -> Bounded:
    """Return the module's gateway with a new key, which has a new budget, and no bills."""
    poor_of_module.engine.forget()
    poor_of_module.provide(1)
    poor_of_module.renew()
    return poor_of_module


@pytest.fixture(scope="package")
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
