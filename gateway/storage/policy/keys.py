"""Creates, rotates, pauses, revokes and lists API keys in Postgres, as digests and never the keys;
checks no caller's key.

Every change notifies the gateways and is in the audit log.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Row, Select, select, text
from sqlalchemy.exc import IntegrityError

from gateway.domain.policy.api_keys import KeyRecord, StoredKey
from gateway.errors import BadUsage, NothingFound
from gateway.storage.postgres.database import Database
from gateway.storage.postgres.schema.column_types import table

api_keys = table(
    "api_keys",
    "key_id text, team text, project text, digest bytea, pepper_id text, created_at timestamptz, "
    "created_by text, expires_at timestamptz, revoked_at timestamptz, revoked_by text, "
    "is_demo boolean, paused_at timestamptz, paused_by text, replaces text",
)
_STORED = select(api_keys)
_CREATE = """
INSERT INTO tollgate.api_keys (key_id, team, project, digest, pepper_id, expires_at, is_demo,
  created_by, replaces)
VALUES (:key_id, :team, :project, :digest, :pepper_id, :expires_at, :is_demo, :created_by,
  :replaces)
"""
_REVOKE = """
UPDATE tollgate.api_keys SET revoked_at = now(), revoked_by = :by WHERE key_id = :key_id AND
  revoked_at IS NULL
"""
_PAUSE = """
UPDATE tollgate.api_keys SET paused_at = now(), paused_by = :by
WHERE key_id = :key_id AND revoked_at IS NULL AND paused_at IS NULL
"""
_RESUME = """
UPDATE tollgate.api_keys SET paused_at = NULL, paused_by = NULL
WHERE key_id = :key_id AND revoked_at IS NULL AND paused_at IS NOT NULL
"""
# A key that would have ended earlier keeps that end.
_END_OLD = """
UPDATE tollgate.api_keys SET expires_at = least(expires_at, CAST(:ends_at AS timestamptz)) WHERE
  key_id = :key_id
"""
_SUCCESSOR = "SELECT key_id FROM tollgate.api_keys WHERE replaces = :key_id"


class KeyStore:
    """A store that creates, rotates, pauses, revokes and lists keys. The audit log keeps
    `reason`.
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    def create(self, record: KeyRecord, *, created_by: str, reason: str = "") -> None:
        """Store a new key. Raises `BadUsage` if its id is taken."""
        with self._database.begin(reason=reason) as connection:
            _insert(connection, record, created_by=created_by)

    def rotate(
        self,
        key_id: str,
        *,
        make: Callable[[StoredKey], KeyRecord],
        ends_at: datetime,
        by: str,
        now: datetime,
        reason: str = "",
    ) -> tuple[StoredKey, KeyRecord]:
        """Create a new key beside a live one, which ends at `ends_at` at the latest; return both.

        `make` gets the old key. Raises `NothingFound` if the key is unknown, or `BadUsage` if it is
        not live or was replaced before; then nothing was changed.
        """
        with self._database.begin(reason=reason) as connection:
            row = connection.execute(_of_id(key_id).with_for_update()).first()
            old = _require_key(None if row is None else stored_from_row(row), key_id)
            _refuse_unless_live(connection, old, now=now)
            new = make(old)
            _insert(connection, new, created_by=by, replaces=key_id)
            connection.execute(text(_END_OLD), {"key_id": key_id, "ends_at": ends_at})
            after = connection.execute(_of_id(key_id)).one()
            return stored_from_row(after), new

    def revoke(self, key_id: str, *, revoked_by: str, reason: str = "") -> bool:
        """Revoke a key now; False if there is no such key or it was revoked before."""
        return self._update_key(_REVOKE, key_id, by=revoked_by, reason=reason)

    def pause(self, key_id: str, *, paused_by: str, reason: str = "") -> bool:
        """Reject a key until it is resumed; return False if it is unknown, paused or revoked."""
        return self._update_key(_PAUSE, key_id, by=paused_by, reason=reason)

    def resume(self, key_id: str, *, reason: str = "") -> bool:
        """Accept a paused key again; return False if it is unknown or not paused."""
        return self._update_key(_RESUME, key_id, reason=reason)

    def list_all(self) -> list[StoredKey]:
        """Return every key ever made, oldest first."""
        with self._database.begin() as connection:
            listed = _STORED.order_by(api_keys.c.created_at, api_keys.c.key_id)
            return [stored_from_row(row) for row in connection.execute(listed)]

    def live(self) -> list[KeyRecord]:
        """Return the keys that are not revoked, including paused and expired ones.

        The caller checks the expiry against its own clock.
        """
        with self._database.begin() as connection:
            live = _STORED.where(api_keys.c.revoked_at.is_(None)).order_by(api_keys.c.key_id)
            return [record_from_row(row) for row in connection.execute(live)]

    def find(self, key_id: str) -> StoredKey | None:
        """Return one key, revoked or not; None if there is none."""
        with self._database.begin() as connection:
            row = connection.execute(_of_id(key_id)).one_or_none()
            return stored_from_row(row) if row is not None else None

    def require(self, key_id: str) -> StoredKey:
        """Return one key, revoked or not. Raises `NothingFound`."""
        return _require_key(self.find(key_id), key_id)

    def _update_key(self, statement: str, key_id: str, *, reason: str, **values: Any) -> bool:
        """Run one UPDATE of an API key with its reason; return True if it changed a row."""
        with self._database.begin(reason=reason) as connection:
            return connection.execute(text(statement), {"key_id": key_id, **values}).rowcount == 1


def _of_id(key_id: str) -> Select[Any]:
    """Return the SELECT of the key with an id, revoked or not."""
    return _STORED.where(api_keys.c.key_id == key_id)


def _require_key(stored: StoredKey | None, key_id: str) -> StoredKey:
    """Return the key that was found. Raises `NothingFound`."""
    if stored is None:
        raise NothingFound(
            f"There is no key '{key_id[:20]}'. tollgate key list --all shows the ids."
        )
    return stored


def record_from_row(row: Row[*tuple[object, ...]]) -> KeyRecord:
    """Return the record by which gateways check a caller's key, from the key's row."""
    return KeyRecord(
        key_id=row.key_id,
        team=row.team,
        project=row.project,
        digest=bytes(row.digest),
        pepper_id=row.pepper_id,
        expires_at=row.expires_at,
        is_demo=row.is_demo,
        is_paused=row.paused_at is not None,
    )


def stored_from_row(row: Row[*tuple[object, ...]]) -> StoredKey:
    """Return a key's record with its history, from the key's row."""
    return StoredKey(
        record=record_from_row(row),
        created_at=row.created_at,
        created_by=row.created_by,
        revoked_at=row.revoked_at,
        revoked_by=row.revoked_by,
        paused_at=row.paused_at,
        paused_by=row.paused_by,
        replaces=row.replaces,
    )


def _insert(
    connection: Connection, record: KeyRecord, *, created_by: str, replaces: str | None = None
) -> None:
    """Insert a new API key. Raises `BadUsage` if its id exists already."""
    row = {
        "key_id": record.key_id,
        "team": record.team,
        "project": record.project,
        "digest": record.digest,
        "pepper_id": record.pepper_id,
        "expires_at": record.expires_at,
        "is_demo": record.is_demo,
        "created_by": created_by,
        "replaces": replaces,
    }
    try:
        connection.execute(text(_CREATE), row)
    except IntegrityError as error:
        raise BadUsage(f"Key {record.key_id} exists already. Nothing was changed.") from error


def _refuse_unless_live(connection: Connection, old: StoredKey, *, now: datetime) -> None:
    """Raise `BadUsage` unless an API key may be rotated: it is live, and no other key replaces
    it.
    """
    key_id, state = old.record.key_id, old.state(now)
    if state == "paused":
        raise BadUsage(
            f"Key {key_id} is paused, and a new one would work at once. Nothing was changed. "
            f"First: tollgate key resume {key_id}; or: tollgate key revoke {key_id}"
        )
    if state != "live":
        raise BadUsage(
            f"Key {key_id} is {state}: there is nothing to overlap with. Nothing was changed. "
            f"Make a new one: tollgate key create {old.record.team}"
        )
    successor = connection.execute(text(_SUCCESSOR), {"key_id": key_id}).scalar_one_or_none()
    if successor is not None:
        raise BadUsage(
            f"Key {key_id} was replaced by {successor} before. Nothing was changed. Rotate "
            "that one."
        )
