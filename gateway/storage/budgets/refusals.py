"""Writes each worker's counts of refused requests by hour to Postgres, for reports on requests that
a rule kept from leaving.
"""

from __future__ import annotations

from collections.abc import Mapping
from uuid import UUID

from sqlalchemy import text

from gateway.domain.routing.refusal_count_key import RefusalCountKey
from gateway.storage.postgres.database import Database

_WRITE = """
INSERT INTO tollgate.refusals AS known (journal_id, hour, team, route, data_class, code, rules,
  requests)
VALUES (:journal_id, :hour, :team, :route, :data_class, :code, :rules, :requests)
ON CONFLICT (hour, team, route, data_class, code, rules, journal_id)
    DO UPDATE SET requests = greatest(known.requests, excluded.requests)
"""


class RefusalStore:
    """A store that writes a worker's counts."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def write(self, journal_id: UUID, counts: Mapping[RefusalCountKey, int]) -> None:
        """Set a worker's totals of refused requests so far; a repetition changes nothing. Raises
        `DatabaseUnavailable`.
        """
        rows = [
            {
                "journal_id": journal_id,
                "hour": refused.hour,
                "team": refused.team,
                "route": refused.route,
                "data_class": refused.data_class,
                "code": refused.code,
                "rules": list(refused.rules),
                "requests": requests,
            }
            for refused, requests in sorted(counts.items())
        ]
        with self._database.begin() as connection:
            connection.execute(text(_WRITE), rows)
