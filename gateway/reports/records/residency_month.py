"""Reads the destinations of a team's data in a month for an audit: sent attempts by all fields that
residency depends on, and refusals.

Every attempt is in exactly one group.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from gateway.domain.residency.sent_attempts import SentAttempts
from gateway.reports.sources.connection import ReadSnapshot

# Real events by the day they were received. Adjustments change only money and move no data.
_SENT = """
SELECT (occurred_at AT TIME ZONE 'UTC')::date AS day, policy_version, decision ->> 'policy' AS
  policy_sha256,
       data_class,
       coalesce(features -> 'data_tags', '[]') AS data_tags, coalesce(features ->> 'class_source',
         '') AS class_source,
       coalesce(decision ->> 'gateway_region', 'unknown') AS gateway_region, deployment, region,
       coalesce(candidate ->> 'host', '') AS host, coalesce(candidate ->> 'at_rest', 'unknown') AS
         at_rest,
       coalesce(candidate ->> 'telemetry', 'unknown') AS telemetry,
       count(*) AS attempts, count(DISTINCT request_id) AS requests,
       count(*) FILTER (WHERE decision ? 'stated') AS contradicted
FROM finance.usage_events
LEFT JOIN LATERAL jsonb_path_query_first(
    decision, '$.candidates[*] ? (@.deployment == $name)', jsonb_build_object('name', deployment))
      AS candidate ON true
WHERE team = :team AND occurred_at >= :first AND occurred_at < :next
GROUP BY 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12 ORDER BY 1, 2, 4, 8
"""
_REFUSED = """
SELECT route, data_class, code, rules, sum(requests)::bigint AS requests FROM finance.refusals
WHERE team = :team AND hour >= :first AND hour < :next AND code = 'residency_denied'
GROUP BY 1, 2, 3, 4 ORDER BY 1, 2, 4
"""
_UNTIL = (
    "SELECT max(recorded_at) AS until FROM finance.usage_events WHERE team = :team AND "
    "occurred_at < :next"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RefusedRequests:
    """Requests that residency rules kept from being sent anywhere."""

    route: str
    data_class: str
    rules: tuple[str, ...]
    requests: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ResidencyMonth:
    """A team's month.

    `until` is the recording time of its newest event; None without events.
    """

    sent: Sequence[SentAttempts]
    refused: Sequence[RefusedRequests]
    until: datetime | None


def residency_month(
    snapshot: ReadSnapshot, *, team: str, first: datetime, next_first: datetime
) -> ResidencyMonth:
    """Return a team's sent and refused requests from `first` up to, not including, `next_first`."""
    snapshot.take_time()
    bounds = {"team": team, "first": first, "next": next_first}
    return ResidencyMonth(
        sent=[
            SentAttempts(
                **{
                    **row,
                    "data_tags": frozenset(row["data_tags"]),
                    "policy_sha256": row["policy_sha256"] or "",
                }
            )
            for row in snapshot.rows(_SENT, **bounds)
        ],
        refused=[
            RefusedRequests(
                route=row["route"],
                data_class=row["data_class"],
                rules=tuple(row["rules"]),
                requests=row["requests"],
            )
            for row in snapshot.rows(_REFUSED, **bounds)
        ],
        until=snapshot.row(_UNTIL, team=team, next=next_first)["until"],
    )
