"""A paused key is refused by every replica within the promised time, even during an outage, and
can be resumed.
"""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from gateway.api.authenticate import authenticate
from gateway.errors import InvalidApiKey
from gateway.storage.policy.keys import KeyStore
from gateway.storage.policy.last_snapshot import SnapshotFile
from gateway.storage.postgres.database import Database
from tests.factories import PEPPER, key, key_record
from tests.integration.outages.test_database_away import LONG_S, Replica, running
from tests.integration.postgres_gate import PostgresGate
from tests.waiting import soon

MINE = key(1)
KEY_ID = key_record(MINE).key_id
PAUSED_WITHIN_S = 5.0  # promised, in seconds


@pytest.fixture
def keys(key_store: KeyStore) -> KeyStore:
    """Return the keys of a database with a policy and a key of team payments."""
    key_store.create(key_record(MINE), created_by="ada")
    return key_store


async def test_a_pause_reaches_every_replica_and_outlives_the_database(
    admission: PostgresGate, keys: KeyStore, tmp_path: Path
) -> None:
    """Only the notification can bring the pause, because polling is off. A restart in an outage
    must not accept the key again.
    """
    databases = [Database(admission.url, role="tollgate_gateway") for _ in range(2)]
    two = [
        Replica(database, tmp_path / str(number), every_s=LONG_S)
        for number, database in enumerate(databases)
    ]
    async with running(*two):
        await soon(lambda: all(one.answer(MINE) == "payments" for one in two), "the key")
        assert keys.pause(KEY_ID, paused_by="ada")
        await soon(
            lambda: all(one.answer(MINE) == "invalid_api_key" for one in two),
            "the pause",
            within_s=PAUSED_WITHIN_S,
        )
        with pytest.raises(InvalidApiKey, match="is paused"):
            authenticate(
                [(b"api-key", MINE.encode())],
                two[0].holder,
                now=lambda: datetime(2026, 11, 20, tzinfo=UTC),
                allows_demo=False,
            )
        assert keys.resume(KEY_ID)
        await soon(
            lambda: all(one.answer(MINE) == "payments" for one in two), "the end of the pause"
        )
        assert keys.pause(KEY_ID, paused_by="ada")
        await soon(
            lambda: all(one.answer(MINE) == "invalid_api_key" for one in two), "the second pause"
        )
        await soon(lambda: all(_is_paused_in_file(one) for one in two), "the file")
        admission.shut()
    restarted = Replica(databases[0], tmp_path / "0", every_s=0.05, first_look_s=0.2)
    async with running(restarted):
        await soon(lambda: restarted.answer(MINE) != "unavailable", "the kept snapshot")
        assert restarted.answer(MINE) == "invalid_api_key"
    for database in databases:
        database.close()


def _is_paused_in_file(replica: Replica) -> bool:
    kept = SnapshotFile(replica.path, (PEPPER,), now=replica.clock.now).read()
    return [record.is_paused for record in kept.keys] == [True]
