"""A release after this one upgrades a ledger that already has stored responses, while a gateway of
this one serves: each response is found, for nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import psycopg
import pytest

from tests.gateway_process import Gateway, StartGateway
from tests.integration.edge.response_server import ResponseServer
from tests.integration.edge.test_stored_responses import ask, count_events, create, policy
from tests.waiting import eventually

ROWS = 6


@pytest.fixture
def server() -> Iterator[ResponseServer]:
    """Yield an upstream that keeps responses."""
    with closing(ResponseServer("first")) as made:
        yield made


def stamp(gateway: Gateway, revision: str) -> None:
    """Write down a revision as the ledger's."""
    with psycopg.connect(gateway.database_url, autocommit=True) as connection:
        connection.execute("UPDATE tollgate.alembic_version SET version_num = %s", (revision,))


def written(gateway: Gateway, count: int) -> None:
    eventually(lambda: count_events(gateway) == count, f"{count} events")


def read_all(gateway: Gateway, ids: list[str]) -> list[int]:
    """Return the status of a GET of each response."""
    return [ask(gateway, f"/responses/{one}").status_code for one in ids]


def test_stored_responses_outlive_an_upgrade(
    start_gateway: StartGateway, server: ResponseServer
) -> None:
    """The index that finds them is valid in each month, and an older gateway reads on by it."""
    gateway = start_gateway(policy(server.url, server.url))
    (head,) = gateway.query("SELECT version_num FROM tollgate.alembic_version")
    ids = [create(gateway)["id"] for _ in range(ROWS)]
    written(gateway, ROWS)
    assert read_all(gateway, ids) == [200] * ROWS
    assert count_events(gateway) == ROWS, "reading one again is no event"
    indexes = gateway.query(
        "SELECT indisvalid FROM pg_index WHERE pg_get_indexdef(indexrelid) LIKE %s",
        "%(upstream_request_id)%",
    )
    partitions = gateway.query(
        "SELECT 1 FROM pg_inherits WHERE inhparent = 'tollgate.usage_events'::regclass"
    )
    assert [one["indisvalid"] for one in indexes] == [True] * (1 + len(partitions))

    stamp(gateway, "20990101_0000")  # by a later release; this one is the previous release now
    ids.append(create(gateway)["id"])
    assert read_all(gateway, ids) == [200] * (ROWS + 1)
    gateway.tollgate("db", "check", status=1)
    stamp(gateway, head["version_num"])
    gateway.tollgate("db", "check")
    costs = gateway.query("SELECT cost_usd FROM finance.usage_events")
    assert len({one["cost_usd"] for one in costs}) == 1
    assert costs[0]["cost_usd"] > 0
