"""Reads a month's charged events for repricing and posts signed adjustments to them;
`services.policy.price_book` computes the amounts.

It never changes an event.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import date
from itertools import islice
from typing import Any

from sqlalchemy import Connection, Row, text

from gateway.domain.pricing.price_corrections import (
    KIND,
    Adjustment,
    PricedEvent,
    refuse_unless_open,
)
from gateway.domain.pricing.tokens import TokenUsage
from gateway.errors import NothingFound
from gateway.storage.postgres.database import Database
from gateway.storage.postgres.locks import TableLock

BATCH = 1000
# A month's events can have begun in an earlier month, never in a later one.
_EVENTS = """
SELECT e.request_id, e.attempt, e.occurred_at, e.team, e.cost_centre, e.deployment, e.model,
  e.policy_version,
       coalesce(e.service_tier, e.features ->> 'service_tier') AS service_tier,
       e.input_tokens, e.cached_input_tokens, e.cache_write_tokens, e.output_tokens,
         e.reasoning_tokens,
       e.usage_detail, e.price_id, e.cost_nusd,
       e.usage_source = 'estimated'
         AND jsonb_path_exists(e.lines, '$[*] ? (@.kind starts with "cache_write")')
         AS has_estimated_writes,
       coalesce(a.amount_nusd, 0)::bigint AS adjusted_nusd, coalesce(a.times, 0) AS times,
       coalesce(a.others, 0) > 0 AS is_corrected
FROM tollgate.usage_events e
LEFT JOIN (
    SELECT request_id, attempt, sum(amount_nusd) FILTER (WHERE kind = :kind) AS amount_nusd,
           count(*) FILTER (WHERE kind = :kind) AS times, count(*) FILTER (WHERE kind <> :kind) AS
             others
    FROM tollgate.adjustments GROUP BY request_id, attempt
) a ON a.request_id = e.request_id AND a.attempt = e.attempt
WHERE e.posted_period = :month AND e.occurred_at < (CAST(:month AS date) + interval '1 month') AT
  TIME ZONE 'UTC'
  AND NOT e.is_demo
  AND (CAST(:route AS text) IS NULL OR e.route = :route)
  AND (CAST(:deployment AS text) IS NULL OR e.deployment = :deployment)
"""
_STATE = "SELECT state FROM tollgate.periods WHERE month = :month"
# A shared lock: writers continue, and closing the month waits until these adjustments are in.
_LOCK = "SELECT count(*) FROM tollgate.posting_months(ARRAY[CAST(:month AS date)])"
# The month was read before the lock. The amount does not include a correction of another kind made
# since then, so that correction stands.
_ADJUST = """
INSERT INTO tollgate.adjustments (
    adjustment_id, request_id, attempt, team, cost_centre, posted_period, occurred_at, amount_nusd,
      kind, reason, author
) SELECT :adjustment_id, :request_id, CAST(:attempt AS smallint), :team, :cost_centre, CAST(:month
  AS date),
    CAST(:occurred_at AS timestamptz), CAST(:amount_nusd AS bigint), :kind, :reason, :author
WHERE NOT EXISTS (SELECT FROM tollgate.adjustments AS other
                  WHERE other.request_id = :request_id AND other.attempt = :attempt AND other.kind
                    <> :kind)
ON CONFLICT DO NOTHING
"""
_DETAILS = frozenset(TokenUsage.__struct_fields__)


class RepriceStore:
    """A store of a month's charged events and the adjustments to them."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def state(self, month: date) -> str | None:
        """Return the state of a month; None if nothing was booked in it yet."""
        with self._database.begin() as connection:
            found = connection.execute(text(_STATE), {"month": month}).scalar_one_or_none()
        return None if found is None else str(found)

    def events(
        self, month: date, *, route: str | None, deployment: str | None
    ) -> Iterator[PricedEvent]:
        """Yield the events posted to a month with the parts that matter to their price, without
        demo data; memory stays flat however many there are.
        """
        wanted = {"month": month, "route": route, "deployment": deployment, "kind": KIND}
        with self._database.begin() as connection:
            rows = connection.execution_options(yield_per=BATCH).execute(text(_EVENTS), wanted)
            for row in rows:
                yield event_from_row(row)

    def post(
        self, month: date, adjustments: Iterable[Adjustment], *, author: str, reason: str = ""
    ) -> int:
        """Write repricing adjustments to an open month in one transaction, each once; return the
        number of new ones.

        If an event got another kind of correction since it was read, nothing is posted for it.
        Raises `OperatorError` if the month is not open any more; then nothing was written.
        """
        posted = 0
        with self._database.begin(reason=reason) as connection:
            connection.execute(text(TableLock.ADJUSTMENTS.taken))
            _lock_open(connection, month)
            remaining = iter(adjustments)
            while batch := list(islice(remaining, BATCH)):
                rows = [_to_row(adjustment, month=month, author=author) for adjustment in batch]
                posted += connection.execute(text(_ADJUST), rows).rowcount
        return posted


def event_from_row(row: Row[*tuple[object, ...]]) -> PricedEvent:
    """Return the priced event of a row, with all counts that were charged."""
    details = {name: count for name, count in (row.usage_detail or {}).items() if name in _DETAILS}
    usage = TokenUsage(
        input_tokens=row.input_tokens,
        cached_input_tokens=row.cached_input_tokens,
        cache_write_tokens=row.cache_write_tokens,
        output_tokens=row.output_tokens,
        reasoning_tokens=row.reasoning_tokens,
        **details,
    )
    return PricedEvent(
        request_id=row.request_id,
        attempt=row.attempt,
        occurred_at=row.occurred_at,
        team=row.team,
        cost_centre=row.cost_centre,
        deployment=row.deployment,
        model=row.model,
        policy_version=row.policy_version,
        service_tier=row.service_tier,
        usage=usage,
        price_id=row.price_id,
        cost_nusd=row.cost_nusd,
        adjusted_nusd=row.adjusted_nusd,
        times=row.times,
        is_corrected=row.is_corrected,
        stated_geo=(row.usage_detail or {}).get("inference_geo"),
        has_stated_writes=row.has_estimated_writes,
    )


def _lock_open(connection: Connection, month: date) -> None:
    """Lock a month until the transaction ends. Raises `NothingFound` if it has no events,
    `OperatorError` if it may not change.
    """
    if connection.execute(text(_STATE), {"month": month}).first() is None:
        raise NothingFound(f"There is nothing in {month:%Y-%m}: no event was booked in it.")
    connection.execute(text(_LOCK), {"month": month})
    refuse_unless_open(month, str(connection.execute(text(_STATE), {"month": month}).scalar_one()))


def _to_row(adjustment: Adjustment, *, month: date, author: str) -> dict[str, Any]:
    """Return the row of an adjustment that is posted to a month."""
    event = adjustment.event
    return {
        "adjustment_id": adjustment.adjustment_id,
        "request_id": event.request_id,
        "attempt": event.attempt,
        "team": event.team,
        "cost_centre": event.cost_centre,
        "month": month,
        "occurred_at": event.occurred_at,
        "amount_nusd": adjustment.amount_nusd,
        "kind": KIND,
        "reason": adjustment.reason,
        "author": author,
    }
