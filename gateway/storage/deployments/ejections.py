"""Ejected deployments: out of use until a person readmits them.

Every change notifies the gateways.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from uuid import UUID

from sqlalchemy import text

from gateway.domain.residency.ejection import Ejection
from gateway.domain.residency.stated import Contradiction
from gateway.storage.postgres.database import Database

_COLUMNS = (
    "deployment, promised, stated, request_id, attempt, ejected_at, readmitted_at, "
    "readmitted_by, reason"
)
_CURRENT = (
    f"SELECT {_COLUMNS} FROM tollgate.ejections WHERE readmitted_at IS NULL ORDER BY deployment"  # noqa: S608
)
_BETWEEN = f"""
SELECT {_COLUMNS} FROM tollgate.ejections WHERE ejected_at < :until AND coalesce(readmitted_at,
  'infinity') >= :since
ORDER BY ejected_at
"""  # noqa: S608 - a constant
_EJECT = """
INSERT INTO tollgate.ejections (deployment, promised, stated, request_id, attempt)
VALUES (:deployment, :promised, :stated, :request_id, :attempt)
ON CONFLICT (deployment) WHERE readmitted_at IS NULL DO NOTHING
"""
_READMIT = """
UPDATE tollgate.ejections SET readmitted_at = now(), readmitted_by = :by, reason = :reason
WHERE deployment = :deployment AND readmitted_at IS NULL
"""


class EjectionStore:
    """A store that ejects, lists and readmits deployments."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def current(self) -> list[Ejection]:
        """Return the ejections in force, by deployment."""
        with self._database.begin() as connection:
            return [Ejection(**row._mapping) for row in connection.execute(text(_CURRENT))]

    def between(self, since: datetime, until: datetime) -> list[Ejection]:
        """Return the ejections in force at some time from `since` up to, not including, `until`."""
        with self._database.begin() as connection:
            rows = connection.execute(text(_BETWEEN), {"since": since, "until": until})
            return [Ejection(**row._mapping) for row in rows]

    def stated(self) -> Mapping[str, str]:
        """Return the statement that each ejected deployment made, by deployment."""
        return {one.deployment: one.stated for one in self.current()}

    def eject(self, found: Contradiction, *, request_id: UUID, attempt: int) -> None:
        """Take a deployment out of use; change nothing if it is already ejected.

        Raises `DatabaseUnavailable`.
        """
        row = {
            "deployment": found.deployment,
            "promised": found.promised,
            "stated": found.stated,
            "request_id": request_id,
            "attempt": attempt,
        }
        with self._database.begin() as connection:
            connection.execute(text(_EJECT), row)

    def readmit(self, deployment: str, *, by: str, reason: str) -> bool:
        """Readmit a deployment; return False if it was not ejected."""
        with self._database.begin(reason=reason) as connection:
            done = connection.execute(
                text(_READMIT), {"deployment": deployment, "by": by, "reason": reason}
            )
            return done.rowcount == 1
