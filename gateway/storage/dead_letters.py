"""Documents that the tables cannot hold: set aside whole, once each, until somebody has dealt with them."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import psycopg

_RECORD = """
INSERT INTO tollgate.dead_letters (journal_id, document, error, digest)
VALUES (%(journal_id)s, %(document)s, %(error)s, sha256(%(document)s)) ON CONFLICT DO NOTHING
"""


def record(connection: psycopg.Connection[Any], document: bytes, *, error: str, journal_id: UUID | None) -> None:
    """Set one document aside; the same one again changes nothing."""
    values = {"journal_id": journal_id, "document": document, "error": error.replace("\0", "\ufffd")}
    connection.execute(_RECORD, values)
