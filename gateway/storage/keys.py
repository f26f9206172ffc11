"""API keys at rest: digests, never the keys. Every change notifies the gateways."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Row, text
from sqlalchemy.exc import IntegrityError

from gateway.domain.api_keys import KeyRecord
from gateway.errors import BadUsage
from gateway.storage.database import Database

_STORED = """
SELECT key_id, team, project, digest, pepper_id, expires_at, is_demo, created_at, created_by, revoked_at, revoked_by
FROM tollgate.api_keys
"""

_CREATE = """
INSERT INTO tollgate.api_keys (key_id, team, project, digest, pepper_id, expires_at, is_demo, created_by)
VALUES (:key_id, :team, :project, :digest, :pepper_id, :expires_at, :is_demo, :created_by)
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredKey:
    """A key and what happened to it."""

    record: KeyRecord
    created_at: datetime
    created_by: str
    revoked_at: datetime | None
    revoked_by: str | None


class KeyStore:
    """Creates, revokes and lists keys."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def create(self, record: KeyRecord, *, created_by: str) -> None:
        """Store a new key. Raises `BadUsage` if its id is taken."""
        row = {
            "key_id": record.key_id,
            "team": record.team,
            "project": record.project,
            "digest": record.digest,
            "pepper_id": record.pepper_id,
            "expires_at": record.expires_at,
            "is_demo": record.is_demo,
            "created_by": created_by,
        }
        try:
            with self._database.begin() as connection:
                connection.execute(text(_CREATE), row)
        except IntegrityError as error:
            raise BadUsage(f"Key {record.key_id} exists already. Nothing was changed.") from error

    def revoke(self, key_id: str, *, revoked_by: str) -> bool:
        """Revoke a key now; False if there is no such key or it was revoked before."""
        statement = (
            "UPDATE tollgate.api_keys SET revoked_at = now(), revoked_by = :revoked_by "
            "WHERE key_id = :key_id AND revoked_at IS NULL"
        )
        with self._database.begin() as connection:
            done = connection.execute(text(statement), {"key_id": key_id, "revoked_by": revoked_by})
            return done.rowcount == 1

    def list_all(self) -> list[StoredKey]:
        """Every key ever made, oldest first."""
        with self._database.begin() as connection:
            return [stored_from_row(row) for row in connection.execute(text(f"{_STORED} ORDER BY created_at, key_id"))]

    def live(self) -> list[KeyRecord]:
        """Keys that are not revoked. Expiry is the caller's to check, against its own clock."""
        with self._database.begin() as connection:
            rows = connection.execute(text(f"{_STORED} WHERE revoked_at IS NULL ORDER BY key_id"))
            return [record_from_row(row) for row in rows]

    def find(self, key_id: str) -> StoredKey | None:
        """One key, revoked or not."""
        with self._database.begin() as connection:
            row = connection.execute(text(f"{_STORED} WHERE key_id = :key_id"), {"key_id": key_id}).one_or_none()
            return stored_from_row(row) if row is not None else None


def record_from_row(row: Row[*tuple[object, ...]]) -> KeyRecord:
    """Return the record of a row that has its columns."""
    return KeyRecord(
        key_id=row.key_id,
        team=row.team,
        project=row.project,
        digest=bytes(row.digest),
        pepper_id=row.pepper_id,
        expires_at=row.expires_at,
        is_demo=row.is_demo,
    )


def stored_from_row(row: Row[*tuple[object, ...]]) -> StoredKey:
    """Return a whole key."""
    return StoredKey(
        record=record_from_row(row),
        created_at=row.created_at,
        created_by=row.created_by,
        revoked_at=row.revoked_at,
        revoked_by=row.revoked_by,
    )
