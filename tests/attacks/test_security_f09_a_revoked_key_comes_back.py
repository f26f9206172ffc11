"""Security F9: `tollgate_admin` may set `revoked_at`, so that role could also clear it."""

from __future__ import annotations

import psycopg
import pytest

from gateway.storage.policy.keys import KeyStore
from gateway.storage.postgres.database import Database
from tests.storage.factories import key

CHANGES = [
    "UPDATE tollgate.api_keys SET revoked_at = NULL, revoked_by = NULL",
    "UPDATE tollgate.api_keys SET revoked_at = NULL",
    "UPDATE tollgate.api_keys SET revoked_at = now() + interval '1 year'",
    "UPDATE tollgate.api_keys SET revoked_by = 'somebody else'",
]


@pytest.mark.parametrize("role", ["tollgate_admin", None])
@pytest.mark.parametrize("change", CHANGES)
def test_a_revocation_is_never_changed(
    database: Database, database_url: str, change: str, role: str | None
) -> None:
    """Neither an administrator's login nor the owner's can make a leaked key work again."""
    store = KeyStore(database)
    store.create(key(), created_by="ada")
    store.revoke("k123456789", revoked_by="bob")
    before = store.list_all()
    with psycopg.connect(database_url) as connection:
        if role is not None:
            connection.execute(f"SET ROLE {role}")
        with pytest.raises(psycopg.errors.IntegrityConstraintViolation, match="stays revoked"):
            connection.execute(change)
    assert store.live() == []
    assert store.list_all() == before


def test_a_revoked_key_may_still_be_noted_as_paused(database: Database, database_url: str) -> None:
    """The trigger protects only the revocation; the row's other columns can change as before."""
    store = KeyStore(database)
    store.create(key(), created_by="ada")
    store.revoke("k123456789", revoked_by="bob")
    with psycopg.connect(database_url) as connection:
        connection.execute("UPDATE tollgate.api_keys SET paused_at = now(), paused_by = 'ada'")
    assert store.live() == []
