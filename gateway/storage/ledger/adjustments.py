"""Books adjustments in Postgres for redelivered events, people's resolutions and expired holds;
never changes an event.

An adjustment is a signed amount that is booked after an event. Three kinds are booked here:
`redelivery` (an event came again with another cost), `resolution` (a person states the cost of an
unknown attempt) and `expired_hold` (the expected cost, if there is no resolution in time). An
attempt's cost and its adjustments add up to its latest cost, unless months are closed in between.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from uuid import UUID

import psycopg
from sqlalchemy import Connection, text

from gateway.domain.ids import occurred_at
from gateway.domain.ledger.resolution import BookedResolution, StatedCost
from gateway.domain.money import usd_from_nusd
from gateway.domain.pricing.tokens import UsageSource
from gateway.errors import BadUsage, NothingFound
from gateway.storage.postgres.database import Database
from gateway.storage.postgres.locks import TableLock

MOST_AT_ONCE = 1000  # expired holds per transaction

_CONFLICTING = """
SELECT staged.request_id, staged.attempt, staged.occurred_at, staged.digest, staged.cost_nusd
FROM pg_temp.staged_events AS staged
JOIN tollgate.usage_events AS event USING (request_id, attempt, occurred_at)
WHERE event.digest <> staged.digest
    -- Demo data cost no money, and are generated again with other prices.
    AND NOT (event.is_demo AND staged.is_demo)
ORDER BY staged.request_id, staged.attempt, staged.ctid
"""
# The latest cost of an attempt: the recorded cost plus every adjustment since.
_BOOKED_SO_FAR = """coalesce(event.cost_nusd, 0) + coalesce((
    SELECT sum(earlier.amount_nusd) FROM tollgate.adjustments AS earlier
    WHERE earlier.request_id = event.request_id AND earlier.attempt = event.attempt), 0)"""
_POSTED = "(SELECT posted FROM tollgate.posting_months(ARRAY[event.posted_period]))"
_IS_UNSETTLED = """event.cost_nusd IS NULL AND NOT EXISTS (
    SELECT FROM tollgate.adjustments AS earlier
    WHERE earlier.settles AND earlier.request_id = event.request_id AND earlier.attempt =
      event.attempt)"""

_BOOK_REDELIVERY = f"""
WITH booked AS (
    INSERT INTO tollgate.adjustments (adjustment_id, request_id, attempt, team, cost_centre,
      posted_period, occurred_at,
                                      amount_nusd, kind, reason, author, digest, settles)
    SELECT gen_random_uuid(), event.request_id, event.attempt, event.team, event.cost_centre,
      {_POSTED},
           event.occurred_at, coalesce(%(cost_nusd)s::bigint - ({_BOOKED_SO_FAR}), 0), 'redelivery',
           format('came again with other content: recorded %%s, now %%s',
                  encode(event.digest, 'hex'), encode(%(digest)s, 'hex')),
           session_user, %(digest)s, %(cost_nusd)s::bigint IS NOT NULL AND {_IS_UNSETTLED}
    FROM tollgate.usage_events AS event
    WHERE event.request_id = %(request_id)s AND event.attempt = %(attempt)s AND event.occurred_at =
      %(occurred_at)s
    ON CONFLICT DO NOTHING
    RETURNING occurred_at, settles
), noted AS (
    INSERT INTO tollgate.dirty_hours (hour)
    SELECT date_trunc('hour', occurred_at, 'UTC') FROM booked WHERE settles
)
SELECT count(*) FROM booked
"""  # noqa: S608 - a fixed text; its clauses are the constants above

_ATTEMPTS = f"""
SELECT event.attempt, event.cost_nusd, event.held_nusd, event.is_demo, {_IS_UNSETTLED} AS
  is_unsettled,
       {_BOOKED_SO_FAR} AS booked_nusd,
       ARRAY(SELECT kind FROM tollgate.adjustments AS earlier
             WHERE earlier.request_id = event.request_id AND earlier.attempt = event.attempt) AS
               kinds
FROM tollgate.usage_events AS event
WHERE event.request_id = :request_id AND event.occurred_at = :occurred_at
ORDER BY event.attempt
"""  # noqa: S608 - a fixed text; its clauses are the constants above
_BOOK_RESOLUTION = f"""
WITH booked AS (
    INSERT INTO tollgate.adjustments (adjustment_id, request_id, attempt, team, cost_centre,
      posted_period, occurred_at,
                                      amount_nusd, kind, reason, author, settles)
    SELECT gen_random_uuid(), event.request_id, event.attempt, event.team, event.cost_centre,
      {_POSTED},
           event.occurred_at, :amount_nusd, 'resolution', :reason, session_user, {_IS_UNSETTLED}
    FROM tollgate.usage_events AS event
    WHERE event.request_id = :request_id AND event.attempt = :attempt AND event.occurred_at =
      :occurred_at
    RETURNING adjustment_id, posted_period, author, occurred_at
), noted AS (
    INSERT INTO tollgate.dirty_hours (hour) SELECT date_trunc('hour', occurred_at, 'UTC') FROM
      booked
)
SELECT adjustment_id, posted_period, author FROM booked
"""  # noqa: S608 - a fixed text; its clauses are the constants above

# Attempts that served. Unknown attempts come with upstream trouble, when most other attempts are
# refusals that cost nothing.
_SERVED = ", ".join(
    f"'{source.value}'"
    for source in (UsageSource.PROVIDER, UsageSource.DERIVED, UsageSource.ESTIMATED)
)
# The average of the known costs, from the roll-up: an estimate does not need the newest seconds. If
# the attempt's own tokens are known, at least these at the average price of a token: a caller could
# make the average attempt as cheap as it likes. Never more than the hold.
_EXPIRE = f"""
WITH expired AS (
    SELECT * FROM tollgate.usage_events AS event
    WHERE {_IS_UNSETTLED} AND NOT event.is_demo AND event.occurred_at < now() - CAST(:ttl AS
      interval)
    ORDER BY event.occurred_at, event.request_id, event.attempt LIMIT :most
), expected AS (
    SELECT route, deployment, sum(known_attempts) AS attempts,
           round(sum(cost_nusd) / sum(known_attempts)) AS cost_nusd,
           sum(cost_nusd) / nullif(sum(input_tokens) + sum(output_tokens), 0) AS nusd_per_token
    FROM tollgate.spend_rollup
    WHERE hour >= now() - interval '7 days' AND NOT is_demo AND usage_source IN ({_SERVED})
    GROUP BY route, deployment HAVING sum(known_attempts) > 0
), posting AS (
    SELECT own, posted FROM tollgate.posting_months(ARRAY(SELECT DISTINCT posted_period FROM
      expired))
), booked AS (
    INSERT INTO tollgate.adjustments (adjustment_id, request_id, attempt, team, cost_centre,
      posted_period, occurred_at,
                                      amount_nusd, kind, reason, author, settles)
    SELECT gen_random_uuid(), event.request_id, event.attempt, event.team, event.cost_centre,
      posted, event.occurred_at,
           least(coalesce(greatest(expected.cost_nusd, of_tokens), event.held_nusd, 0),
                 coalesce(event.held_nusd, greatest(expected.cost_nusd, of_tokens))),
           'expired_hold',
           CASE WHEN expected.attempts IS NULL
               THEN 'not resolved in time; nothing to compare with in 7 days, so the whole hold'
               ELSE format('not resolved in time; average of %s attempts that served, '
                           'of route %s at %s in 7 days, %sat most the hold',
                           expected.attempts, event.route, event.deployment,
                           CASE WHEN of_tokens > expected.cost_nusd
                                THEN format('for its own %s tokens, ', own_tokens) END)
                             END,
           session_user, true
    FROM expired AS event JOIN posting ON own = event.posted_period
    LEFT JOIN expected ON expected.route = event.route AND expected.deployment = event.deployment,
    LATERAL (SELECT coalesce(event.input_tokens, 0)::numeric + coalesce(event.output_tokens, 0)
      AS own_tokens) AS known,
    LATERAL (SELECT round(own_tokens * expected.nusd_per_token) AS of_tokens) AS priced
    ORDER BY event.request_id, event.attempt
    ON CONFLICT DO NOTHING
    RETURNING occurred_at
), noted AS (
    INSERT INTO tollgate.dirty_hours (hour) SELECT DISTINCT date_trunc('hour', occurred_at, 'UTC')
      FROM booked
)
SELECT count(*) FROM booked
"""  # noqa: S608 - a fixed text; its clauses are the constants above


def book_redeliveries(connection: psycopg.Connection[Any]) -> int:
    """Book an adjustment for each staged event that the ledger has with other content, over the
    difference in cost; return the number of new ones.
    """
    conflicting = connection.execute(_CONFLICTING).fetchall()
    if not conflicting:
        return 0
    connection.execute(TableLock.ADJUSTMENTS.taken.encode())
    booked = 0
    names = ("request_id", "attempt", "occurred_at", "digest", "cost_nusd")
    for row in conflicting:  # one by one: the second conflict of an attempt builds on the first
        found = connection.execute(
            _BOOK_REDELIVERY.encode(), dict(zip(names, row, strict=True))
        ).fetchone()
        booked += found[0] if found else 0
    return booked


class ResolutionStore:
    """A store of the costs that people state for unknown attempts."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def resolve(
        self, request_id: UUID, *, attempt: int | None, cost: StatedCost | int, reason: str
    ) -> BookedResolution:
        """Book the cost that a person states for an unknown attempt. See the function `resolve`."""
        return resolve(self._database, request_id, attempt=attempt, cost=cost, reason=reason)


def resolve(
    database: Database,
    request_id: UUID,
    *,
    attempt: int | None,
    cost: StatedCost | int,
    reason: str,
) -> BookedResolution:
    """Book the cost that a person states for an unknown attempt: nothing, its hold, or an amount in
    nano-dollars.

    An attempt is resolved only once, and the resolution is final.

    If `attempt` is None, the request's only unknown attempt is meant. An expected cost booked in
    the meantime is corrected. Raises `NothingFound`, `BadUsage` or `DatabaseUnavailable`; then
    nothing was booked.
    """
    values: dict[str, Any] = {"request_id": request_id, "occurred_at": occurred_at(request_id)}
    with database.begin(reason=reason) as connection:
        connection.execute(text(TableLock.ADJUSTMENTS.taken))
        row = _unresolved(connection, values, request_id, attempt)
        cost_nusd = _cost_nusd(cost, row.held_nusd)
        amount_nusd = cost_nusd - int(row.booked_nusd)
        values |= {"attempt": row.attempt, "amount_nusd": amount_nusd, "reason": reason}
        booked = connection.execute(text(_BOOK_RESOLUTION), values).one()
    return BookedResolution(
        adjustment_id=booked.adjustment_id,
        request_id=request_id,
        attempt=row.attempt,
        cost_usd=usd_from_nusd(cost_nusd),
        held_usd=None if row.held_nusd is None else usd_from_nusd(row.held_nusd),
        amount_usd=usd_from_nusd(amount_nusd),
        posted_period=booked.posted_period,
        author=booked.author,
    )


def expire_holds(database: Database, *, ttl: timedelta) -> int:
    """Book the expected cost of attempts that have been unknown for longer than `ttl`; return their
    number.

    The expected cost is the average of attempts that served the same route and deployment in the
    last seven days, at most the hold. Without such attempts it is the hold. A later resolution
    corrects it. Raises `DatabaseUnavailable`.
    """
    total = 0
    while True:
        with database.begin(is_long=True) as connection:
            connection.execute(text(TableLock.ADJUSTMENTS.taken))
            expired = int(
                connection.execute(text(_EXPIRE), {"ttl": ttl, "most": MOST_AT_ONCE}).scalar_one()
            )
        total += expired
        if expired < MOST_AT_ONCE:
            return total


def _unresolved(
    connection: Connection, values: dict[str, Any], request_id: UUID, attempt: int | None
) -> Any:
    """Return the one unknown attempt of a request that may be resolved. Raises an error with the
    reason if there is none.
    """
    rows = connection.execute(text(_ATTEMPTS), values).all()
    if not rows:
        raise NothingFound(
            f"No request {request_id} is in the ledger. tollgate report unsettled lists those "
            "unknown."
        )
    chosen = [row for row in rows if attempt in (None, row.attempt)]
    if not chosen:
        raise NothingFound(
            f"Request {request_id} has no attempt {attempt}; it has {_attempt_numbers(rows)}."
        )
    if any(row.is_demo for row in chosen):
        raise BadUsage(f"Request {request_id} is demo data: there is nothing to resolve.")
    unknown = [row for row in chosen if row.cost_nusd is None]
    if not unknown:
        raise BadUsage(
            f"Nothing is unknown about {request_id}: its cost is in the ledger. Nothing was booked."
        )
    if len(unknown) > 1:
        raise BadUsage(
            f"Attempts {_attempt_numbers(unknown)} of {request_id} are unknown. "
            "Choose one: --attempt N"
        )
    (row,) = unknown
    if (not row.is_unsettled and "expired_hold" not in row.kinds) or "resolution" in row.kinds:
        raise BadUsage(
            f"Attempt {row.attempt} of {request_id} is resolved already. Nothing was booked."
        )
    return row


def _cost_nusd(cost: StatedCost | int, held_nusd: int | None) -> int:
    """Return the stated cost in nano-dollars. Raises `BadUsage` if it is the hold and nothing was
    held.
    """
    match cost:
        case StatedCost.ZERO:
            return 0
        case StatedCost.HOLD:
            if held_nusd is None:
                raise BadUsage(
                    "Nothing was held for this attempt. Give an amount. Nothing was booked."
                )
            return held_nusd
        case _:
            return cost


def _attempt_numbers(rows: Any) -> str:
    """Return the attempt numbers of rows as text, separated by commas."""
    return ", ".join(str(row.attempt) for row in rows)
