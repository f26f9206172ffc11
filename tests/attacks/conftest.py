"""What the attacks need besides the fixtures of all tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.integration.postgres_gate import PostgresGate


@pytest.fixture
def gate(database_url: str) -> Iterator[PostgresGate]:
    """The way to the test's own database, to be shut, frozen and opened."""
    made = PostgresGate(database_url)
    yield made
    made.close()
