"""Sets aside in Postgres, whole and once each, the documents that the ledger's tables cannot hold,
and closes them for operators.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any
from uuid import UUID

import msgspec
import psycopg
from sqlalchemy import text

from gateway.domain.ledger.records import DeadLetter
from gateway.storage.postgres.database import Database

_RECORD = """
INSERT INTO tollgate.dead_letters (journal_id, document, error, digest)
VALUES (%(journal_id)s, %(document)s, %(error)s, sha256(%(document)s)) ON CONFLICT DO NOTHING
  RETURNING id
"""
# A gateway that is newer than the schema also makes dead letters, so the function may be missing.
_CAN_SET_ASIDE = "SELECT to_regprocedure('tollgate.set_aside(uuid, uuid, jsonb)') IS NOT NULL"
_SET_ASIDE = "SELECT tollgate.set_aside(%s, %s, %s::jsonb)"
_WAITING = """
SELECT id AS letter_id, journal_id, recorded_at, error, document FROM tollgate.dead_letters
WHERE resolved_at IS NULL ORDER BY recorded_at, id
"""
_CLOSE = """
UPDATE tollgate.dead_letters SET resolved_at = now(), resolved_by = session_user, resolution =
  :resolution
WHERE id = :letter_id AND resolved_at IS NULL
"""


class _Holds(msgspec.Struct):
    holds: msgspec.Raw = msgspec.Raw(b"[]")


def record(
    connection: psycopg.Connection[Any], document: bytes, *, error: str, journal_id: UUID | None
) -> None:
    """Set aside one document that the ledger's tables refuse, and the money leased for it;
    repeating the same document changes nothing.

    The worker has settled the attempt and will not return that money. Call this after the journal's
    row was changed, like everything that moves leases.
    """
    values = {
        "journal_id": journal_id,
        "document": document,
        "error": error.replace("\0", "\ufffd"),
    }
    made = connection.execute(_RECORD, values).fetchone()
    if made is None or journal_id is None or not (holds := _holds_in(document)):
        return
    (can_set_aside,) = connection.execute(_CAN_SET_ASIDE).fetchone() or (False,)
    if can_set_aside:
        with (
            suppress(psycopg.DataError, psycopg.IntegrityError),
            connection.transaction(),
        ):  # the holds may be the defect
            connection.execute(_SET_ASIDE, (journal_id, made[0], holds))


def lease_of(connection: psycopg.Connection[Any], letter: DeadLetter) -> UUID | None:
    """Return the lease that holds a letter's money: its own, or its journal's if it has none."""
    own = connection.execute(
        "SELECT FROM tollgate.leases WHERE journal_id = %s LIMIT 1", (letter.letter_id,)
    )
    return letter.letter_id if own.fetchone() is not None else letter.journal_id


def _holds_in(document: bytes) -> str | None:
    """Return the budget holds in a document as JSON text; None if it has none or cannot be read."""
    try:
        holds = bytes(msgspec.json.decode(document, type=_Holds).holds).decode()
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    return None if holds == "[]" else holds


class DeadLetters:
    """A store of the dead letters, for operators."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def waiting(self) -> list[DeadLetter]:
        """Return the open letters in the order in which they arrived.

        Raises `DatabaseUnavailable`.
        """
        with self._database.begin() as connection:
            return [DeadLetter(**row) for row in connection.execute(text(_WAITING)).mappings()]

    def close(self, letter_id: UUID, *, resolution: str) -> bool:
        """Record the resolution of a letter, also in the audit log, and end its lease; return False
        if it was closed before. Books no event.

        Raises `DatabaseUnavailable`.
        """
        with self._database.begin(reason=resolution) as connection:
            values = {"letter_id": letter_id, "resolution": resolution}
            is_closed = connection.execute(text(_CLOSE), values).rowcount == 1
            if is_closed:  # its lease ends too, whether it was booked or dismissed
                connection.execute(
                    text("SELECT count(*) FROM tollgate.end_leases(:letter_id, false)"), values
                )
            return is_closed
