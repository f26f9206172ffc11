"""Reads from Postgres which unlisted members the past requests of teams had."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from sqlalchemy import text

from gateway.domain.operation import Operation
from gateway.domain.policy.unlisted_use import UnlistedUse
from gateway.storage.postgres.database import Database

# Before `unlisted` was recorded, an unknown member left only its feature.
_USES = """
SELECT team, deployment, operation, features -> 'unlisted' AS names, count(*) AS attempts
FROM tollgate.usage_events
WHERE occurred_at >= :since AND team = ANY(:teams) AND NOT is_demo
  AND (features -> 'unlisted' IS NOT NULL OR features -> 'features' @> '["unknown_fields"]')
  AND features -> 'unlisted' IS DISTINCT FROM '[]'
GROUP BY team, deployment, operation, features -> 'unlisted'
ORDER BY attempts DESC
LIMIT 10000
"""


def unlisted_uses(
    database: Database, *, teams: Sequence[str], since: datetime
) -> tuple[UnlistedUse, ...]:
    """Return the use of unlisted members by some teams since a moment. Raises
    `DatabaseUnavailable`.
    """
    with database.begin() as connection:
        rows = connection.execute(text(_USES), {"teams": list(teams), "since": since})
        return tuple(
            UnlistedUse(
                team=team,
                deployment=deployment,
                operation=Operation(operation),
                names=None if names is None else tuple(map(str, names)),
                attempts=attempts,
            )
            for team, deployment, operation, names, attempts in rows
            if operation in Operation.__members__.values()
        )
