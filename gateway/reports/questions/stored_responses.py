"""Reads which deployments gave a team the response with an id, from the ledger."""

from __future__ import annotations

from collections.abc import Sequence

from gateway.domain.money import nusd_from_usd
from gateway.domain.request.stored_response import StoredResponse, stored_response
from gateway.reports.sources.connection import ReadSnapshot

MOST = 10  # deployments that gave the same id; a second one is a refusal already

# The conditions on `operation` and the id are those of the index `usage_events_response`.
_GIVEN = """
SELECT DISTINCT ON (deployment, provider) upstream_request_id, request_id, team, route, deployment,
       provider, data_class, features, decision, cost_usd
FROM finance.usage_events
WHERE operation = 'responses' AND upstream_request_id = :response_id AND team = :team
ORDER BY deployment, provider, occurred_at DESC
LIMIT :most
"""


def stored_responses(
    snapshot: ReadSnapshot, *, team: str, response_id: str
) -> Sequence[StoredResponse]:
    """Return the responses of a team with this id, the last one of each deployment."""
    rows = snapshot.rows(_GIVEN, response_id=response_id, team=team, most=MOST)
    return [
        stored_response(
            {
                **row,
                "cost_nusd": None if row["cost_usd"] is None else nusd_from_usd(row["cost_usd"]),
            }
        )
        for row in rows
    ]
