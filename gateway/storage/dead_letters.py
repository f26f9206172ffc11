"""Documents that the tables cannot hold: set aside whole, once each, until somebody has dealt with them."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import psycopg
from sqlalchemy import text

from gateway.domain.dead_letter import DeadLetter
from gateway.storage.database import Database

_RECORD = """
INSERT INTO tollgate.dead_letters (journal_id, document, error, digest)
VALUES (%(journal_id)s, %(document)s, %(error)s, sha256(%(document)s)) ON CONFLICT DO NOTHING
"""
_WAITING = """
SELECT id AS letter_id, journal_id, recorded_at, error, document FROM tollgate.dead_letters
WHERE resolved_at IS NULL ORDER BY recorded_at, id
"""
_CLOSE = """
UPDATE tollgate.dead_letters SET resolved_at = now(), resolved_by = session_user, resolution = :resolution
WHERE id = :letter_id AND resolved_at IS NULL
"""


def record(connection: psycopg.Connection[Any], document: bytes, *, error: str, journal_id: UUID | None) -> None:
    """Set one document aside; the same one again changes nothing."""
    values = {"journal_id": journal_id, "document": document, "error": error.replace("\0", "\ufffd")}
    connection.execute(_RECORD, values)


class DeadLetters:
    """What was set aside, for those who deal with it."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def waiting(self) -> list[DeadLetter]:
        """Those nobody has dealt with, in the order in which they came. Raises `DatabaseUnavailable`."""
        with self._database.begin() as connection:
            return [DeadLetter(**row) for row in connection.execute(text(_WAITING)).mappings()]

    def close(self, letter_id: UUID, *, resolution: str) -> bool:
        """Note what became of one, for the audit log too; False where somebody had. Raises `DatabaseUnavailable`."""
        with self._database.begin(reason=resolution) as connection:
            values = {"letter_id": letter_id, "resolution": resolution}
            return connection.execute(text(_CLOSE), values).rowcount == 1
