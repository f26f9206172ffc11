"""Ejects, lists and readmits deployments in Postgres; an ejected one is out of use until a person
readmits it.

Every change notifies the gateways.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from uuid import UUID

from sqlalchemy import or_, select, text

from gateway.domain.residency.ejection import Ejection
from gateway.domain.residency.stated_place import Contradiction
from gateway.storage.postgres.database import Database
from gateway.storage.postgres.schema.column_types import table

ejections = table(
    "ejections",
    "deployment text, promised text, stated text, request_id uuid, attempt smallint, "
    "ejected_at timestamptz, readmitted_at timestamptz, readmitted_by text, reason text",
)
_EJECTED = select(
    ejections.c.deployment,
    ejections.c.promised,
    ejections.c.stated,
    ejections.c.request_id,
    ejections.c.attempt,
    ejections.c.ejected_at,
    ejections.c.readmitted_at,
    ejections.c.readmitted_by,
    ejections.c.reason,
)
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
        listed = _EJECTED.where(ejections.c.readmitted_at.is_(None))
        with self._database.begin() as connection:
            rows = connection.execute(listed.order_by(ejections.c.deployment))
            return [Ejection(**row._mapping) for row in rows]

    def between(self, since: datetime, until: datetime) -> list[Ejection]:
        """Return the ejections in force at some time from `since` up to, not including, `until`."""
        readmitted_at = ejections.c.readmitted_at
        listed = _EJECTED.where(
            ejections.c.ejected_at < until, or_(readmitted_at.is_(None), readmitted_at >= since)
        )
        with self._database.begin() as connection:
            rows = connection.execute(listed.order_by(ejections.c.ejected_at))
            return [Ejection(**row._mapping) for row in rows]

    def stated_places(self) -> Mapping[str, str]:
        """Return the place that each ejected deployment's upstream stated, by deployment."""
        return {one.deployment: one.stated for one in self.current()}

    def eject(self, found: Contradiction, *, request_id: UUID, attempt: int) -> None:
        """Take a deployment out of use, because its upstream stated another place than the policy;
        change nothing if it is already ejected.

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
