"""Reads the metered usage at a provider, day by day, with the attempts that may explain
differences to its bill; writes nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import date, timedelta
from decimal import Decimal
from typing import Any

from sqlalchemy import Connection, text

from gateway.domain.deployments.gpu_bills import spread
from gateway.domain.reconciliation.metered import (
    MeteredAt,
    MeteredSum,
    MeteredUsage,
    OddAttempts,
    OverMidnight,
    Owner,
)
from gateway.domain.reconciliation.true_ups import KIND
from gateway.storage.postgres.database import Database

DAY = timedelta(days=1)
_OF_DAY = """event.occurred_at >= CAST(:day AS timestamp) AT TIME ZONE 'UTC'
  AND event.occurred_at < CAST(:next AS timestamp) AT TIME ZONE 'UTC'
  AND event.provider = :provider AND NOT event.is_self_hosted AND NOT event.is_demo"""
_SUMS = f"""
SELECT event.deployment, event.model, event.team, event.cost_centre, line ->> 'kind' AS kind,
  sum((line ->> 'tokens')::numeric) AS quantity, sum((line ->> 'cost_nusd')::numeric) AS cost_nusd,
  array_agg(DISTINCT line ->> 'usd_per_mtok') AS rates, count(*) AS lines
FROM tollgate.usage_events AS event CROSS JOIN LATERAL jsonb_array_elements(event.lines) AS line
WHERE {_OF_DAY}
GROUP BY 1, 2, 3, 4, 5
"""  # noqa: S608 - a fixed text; its clauses are the constants above
# An attempt that certainly was not served cannot be billed.
_ODD = f"""
SELECT event.deployment, event.model, event.team, event.cost_centre, count(*) AS attempts,
  (array_agg(event.request_id ORDER BY event.occurred_at, event.request_id))[1:3] AS request_ids
FROM tollgate.usage_events AS event
WHERE {_OF_DAY} AND event.outcome <> 'ok' AND event.usage_source <> 'none'
GROUP BY 1, 2, 3, 4
"""  # noqa: S608 - a fixed text; its clauses are the constants above
_OVER_MIDNIGHT = f"""
SELECT event.deployment, event.model, event.request_id, event.lines
FROM tollgate.usage_events AS event
WHERE {_OF_DAY} AND event.lines <> '[]'
  AND event.started_at + event.duration_s * interval '1 second'
      >= CAST(:next AS timestamp) AT TIME ZONE 'UTC'
"""  # noqa: S608 - a fixed text; its clauses are the constants above
_CORRECTED = """
SELECT (event.occurred_at AT TIME ZONE 'UTC')::date AS day, event.deployment, event.model,
  event.team, event.cost_centre, event.lines, sum(booked.amount_nusd) AS amount_nusd
FROM tollgate.adjustments AS booked
JOIN tollgate.usage_events AS event ON event.request_id = booked.request_id
  AND event.attempt = booked.attempt AND event.occurred_at = booked.occurred_at
WHERE booked.kind <> :kind AND booked.occurred_at >= CAST(:day AS timestamp) AT TIME ZONE 'UTC'
  AND booked.occurred_at < CAST(:next AS timestamp) AT TIME ZONE 'UTC'
  AND event.provider = :provider AND NOT event.is_self_hosted AND NOT event.is_demo
GROUP BY 1, 2, 3, 4, 5, 6
"""


def metered_usage(
    database: Database, provider: str, *, first: date, last: date, on_day: Callable[[date], None]
) -> MeteredUsage:
    """Return the metered usage at a provider from one day to another, of one snapshot."""
    sums: list[MeteredSum] = []
    odd: list[OddAttempts] = []
    over_midnight: list[OverMidnight] = []
    with database.begin(is_long=True) as connection:
        connection.execute(text("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY"))
        day = first
        while day <= last:
            on_day(day)
            wanted = {"provider": provider, "day": day, "next": day + DAY}
            sums += [_sum_from_row(day, row) for row in connection.execute(text(_SUMS), wanted)]
            odd += [_odd_from_row(day, row) for row in connection.execute(text(_ODD), wanted)]
            over_midnight += [
                _over_midnight_from_row(day, row)
                for row in connection.execute(text(_OVER_MIDNIGHT), wanted)
            ]
            day += DAY
        sums += _corrections(connection, provider, first=first, last=last)
    return MeteredUsage(sums=sums, odd=odd, over_midnight=over_midnight, billing={})


def _corrections(
    connection: Connection, provider: str, *, first: date, last: date
) -> list[MeteredSum]:
    """Return the adjustments of events, spread over the kinds of their tokens by cost. Those of
    events without known usage have no kind.
    """
    wanted = {"provider": provider, "kind": KIND, "day": first, "next": last + DAY}
    found = []
    for row in connection.execute(text(_CORRECTED), wanted):
        costs = [int(line["cost_nusd"]) for line in row.lines]
        kinds = [str(line["kind"]) for line in row.lines] or [""]
        parts = spread(int(row.amount_nusd), costs or [1])
        found += [
            MeteredSum(
                day=row.day,
                at=MeteredAt(row.deployment, row.model),
                token_kind=kind,
                owner=Owner(row.team, row.cost_centre),
                quantity=0,
                cost_nusd=part,
            )
            for kind, part in zip(kinds, parts, strict=True)
        ]
    return found


def _sum_from_row(day: date, row: Any) -> MeteredSum:
    """Return the sum of a row."""
    return MeteredSum(
        day=day,
        at=MeteredAt(row.deployment, row.model),
        token_kind=row.kind,
        owner=Owner(row.team, row.cost_centre),
        quantity=int(row.quantity),
        cost_nusd=int(row.cost_nusd),
        rates=frozenset(Decimal(rate) for rate in row.rates if rate is not None),
        lines=row.lines,
    )


def _odd_from_row(day: date, row: Any) -> OddAttempts:
    """Return the attempts of a row."""
    return OddAttempts(
        day=day,
        at=MeteredAt(row.deployment, row.model),
        owner=Owner(row.team, row.cost_centre),
        attempts=row.attempts,
        request_ids=tuple(row.request_ids),
    )


def _over_midnight_from_row(day: date, row: Any) -> OverMidnight:
    """Return the attempt of a row."""
    return OverMidnight(
        day=day,
        at=MeteredAt(row.deployment, row.model),
        request_id=row.request_id,
        lines={str(one["kind"]): (int(one["tokens"]), int(one["cost_nusd"])) for one in row.lines},
    )
