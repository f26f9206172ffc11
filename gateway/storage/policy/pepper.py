"""Creates and reads the pepper file, the secret behind API key digests, and checks it against the
fingerprints in the database.

The database holds only its fingerprint.
"""

from __future__ import annotations

import base64
import secrets
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from sqlalchemy import Connection, text

from gateway.domain.policy.api_keys import Pepper
from gateway.errors import BadUsage
from gateway.storage import owned_files, private_files
from gateway.storage.postgres.database import Database

NEW_BYTES, LEAST_BYTES = 32, 16
MOST_LINES = 2


def load(path: Path) -> tuple[Pepper, ...]:
    """Return the peppers in a file: the first line is current; a second one is live while it is
    being replaced.

    A line is hex or base64 of at least 16 bytes. Raises `BadUsage` if the file is missing,
    unreadable, another user's or open to other users.
    """
    try:
        lines = path.read_text(encoding="ascii", errors="replace").split()
    except FileNotFoundError:
        raise BadUsage(
            f"There is no pepper at {path}. Create it with: tollgate db upgrade. Or set "
            "TOLLGATE_PEPPER_FILE; for an existing database it must be the file its keys were made "
            "with."
        ) from None
    except OSError as error:
        raise BadUsage(
            f"The pepper {path} cannot be read: {error.strerror}. Check its owner and mode."
        ) from error
    owned_files.require_secret(path, name="The pepper")
    if not lines:
        raise BadUsage(
            f"The pepper {path} is empty. Restore it from a backup if keys were made with it; if "
            "not, run: tollgate db upgrade"
        )
    if len(lines) > MOST_LINES:
        raise BadUsage(
            f"The pepper {path} must have one line, or two during a rotation; it has {len(lines)}."
        )
    return tuple(Pepper(_decoded(line, path)) for line in lines)


def create(path: Path) -> None:
    """Write a new pepper, mode 0600; do nothing if there is one."""
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        private_files.create(path, secrets.token_hex(NEW_BYTES) + "\n")
    except OSError as error:
        raise BadUsage(
            f"The pepper {path} cannot be written: {error.strerror}. Or set TOLLGATE_PEPPER_FILE."
        ) from error


def register(database: Database, peppers: Sequence[Pepper]) -> None:
    """Record the fingerprints of the peppers in use, so that a wrong file is noticed.

    Raises the errors of `check`.
    """
    with database.begin() as connection:
        _check(connection, peppers)
        # One statement per pepper, in id order: two concurrent registrations must not deadlock.
        for pepper_id in sorted(pepper.pepper_id for pepper in peppers):
            connection.execute(
                text(
                    "INSERT INTO tollgate.peppers (pepper_id) VALUES (:pepper_id) ON CONFLICT "
                    "DO NOTHING"
                ),
                {"pepper_id": pepper_id},
            )


def check(database: Database, peppers: Sequence[Pepper]) -> None:
    """Raise `BadUsage` if this database's keys were made with other peppers: every key would look
    wrong.
    """
    with database.begin() as connection:
        _check(connection, peppers)


def _check(connection: Connection, peppers: Sequence[Pepper]) -> None:
    """Raise `BadUsage` if the database has keys of other peppers and knows none of ours."""
    ours = {"ours": [pepper.pepper_id for pepper in peppers]}
    is_known = connection.execute(
        text("SELECT FROM tollgate.peppers WHERE pepper_id = ANY(:ours)"), ours
    ).first()
    has_others = connection.execute(
        text("SELECT FROM tollgate.api_keys WHERE pepper_id <> ALL(:ours) LIMIT 1"), ours
    ).first()
    if has_others is not None and is_known is None:
        raise BadUsage(
            "This pepper file belongs to another database: the API keys here were made with "
            "another pepper. Set TOLLGATE_PEPPER_FILE to the file they were made with."
        )


def _decoded(line: str, path: Path) -> bytes:
    """Return the secret in one line of a pepper file. Raises `BadUsage` unless it is hex or base64,
    and long enough.
    """
    secret = b""
    try:
        secret = bytes.fromhex(line)
    except ValueError:
        with suppress(ValueError):
            secret = base64.b64decode(line, validate=True)
    if len(secret) < LEAST_BYTES:
        raise BadUsage(f"The pepper {path} must be hex or base64 of at least {LEAST_BYTES} bytes.")
    return secret
