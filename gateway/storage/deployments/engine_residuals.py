"""Reads engines' idle windows around unknown attempts from Postgres, and books the costs that
`domain.deployments.engine_counters` computed.

A window has the tokens that the engine counted and those that were metered; the rest belongs to the
unknown attempts.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from itertools import groupby
from typing import Any, cast

from sqlalchemy import Connection, text

from gateway.domain.deployments.engine_counters import (
    IdleWindow,
    Reading,
    Resolved,
    Tokens,
    UnknownAttempt,
)
from gateway.domain.operation import WITHOUT_OUTPUT
from gateway.domain.pricing.pricing import Price
from gateway.storage.policy.prices import rate_from_row
from gateway.storage.postgres.database import Database
from gateway.storage.postgres.locks import TableLock

KIND = "engine_counters"
Row = Mapping[str, Any]

LOOK_BACK = timedelta(hours=2)
# Far above any timeout: bounds the events that a window can concern.
LONGEST_ATTEMPT = timedelta(hours=2)
LONGEST_PROBE = timedelta(minutes=1)  # for a probe whose end was not recorded
# Replicas' clocks differ a little, and an engine takes up to 50 ms to stop. So the slack applies
# before and after each attempt and probe.
SLACK = timedelta(seconds=2)
# A worker whose heartbeat is this much later than the window's end has written its settlements,
# also after an outage. Events of a lost journal are missing from the metered tokens.
WRITTEN_WITHIN = timedelta(minutes=5)
LOST_NEAR = timedelta(days=1)

_UNKNOWN = """
SELECT event.request_id, event.attempt, event.deployment, event.held_nusd, event.operation,
  event.started_at,
       event.started_at + coalesce(event.duration_s, 0) * interval '1 second' AS ended_at,
       price.provider, price.model, price.source, price.rates
FROM tollgate.usage_events AS event LEFT JOIN tollgate.prices AS price USING (price_id)
WHERE event.cost_nusd IS NULL AND event.is_self_hosted AND NOT event.is_demo AND event.held_nusd IS
  NOT NULL
  AND event.occurred_at > :since AND event.deployment = ANY(:deployments)
  AND NOT EXISTS (SELECT FROM tollgate.adjustments AS booked WHERE booked.settles
                  AND booked.request_id = event.request_id AND booked.attempt = event.attempt)
ORDER BY event.deployment, event.started_at, event.request_id, event.attempt
"""
# Idle: the engine reports it, and no attempt of ours was in flight. Its counters do not change
# then. One pass over attempts and samples in order of time: a join on overlap would read hours of
# attempts again for each sample.
_IDLE = """
SELECT at FROM (
    SELECT at, max(ended_at) OVER (ORDER BY began_at, at NULLS LAST ROWS UNBOUNDED PRECEDING) AS
      busy_until
    FROM (
        SELECT at AS began_at, at, CAST(NULL AS timestamptz) AS ended_at FROM
          tollgate.engine_samples
        WHERE deployment = :deployment AND at > CAST(:since AS timestamptz) AND is_up AND running =
          0 AND waiting = 0
          AND prompt_tokens IS NOT NULL AND generation_tokens IS NOT NULL
        UNION ALL
        SELECT started_at - CAST(:slack AS interval), NULL,
               started_at + (coalesce(duration_s, 0) * interval '1 second') + CAST(:slack AS
                 interval)
        FROM tollgate.usage_events
        WHERE deployment = :deployment AND NOT is_demo
          AND occurred_at > CAST(:since AS timestamptz) - CAST(:longest AS interval)
        UNION ALL
        SELECT sent_at - CAST(:slack AS interval), NULL,
               coalesce(ended_at, sent_at + CAST(:longest_probe AS interval)) + CAST(:slack AS
                 interval)
        FROM tollgate.engine_probes
        WHERE deployment = :deployment AND sent_at > CAST(:since AS timestamptz) -
          CAST(:longest_probe AS interval)
    ) AS moments
) AS looks
WHERE at IS NOT NULL AND (busy_until IS NULL OR busy_until <= at) ORDER BY at
"""
_READINGS = """
SELECT at, started_at, prompt_tokens, generation_tokens FROM tollgate.engine_samples
WHERE deployment = :deployment AND at BETWEEN :begin AND :end
  AND prompt_tokens IS NOT NULL AND generation_tokens IS NOT NULL ORDER BY at
"""
_METERED = """
SELECT coalesce(sum(input_tokens), 0) AS prompt, coalesce(sum(output_tokens), 0) AS generation,
       count(*) FILTER (WHERE cost_nusd IS NULL) AS unknown,
       count(*) FILTER (WHERE cost_nusd IS NOT NULL AND (input_tokens IS NULL
                        OR (output_tokens IS NULL
                          AND operation NOT IN ('embeddings', 'rerank', 'score')))) AS silent
FROM tollgate.usage_events
WHERE deployment = :deployment AND NOT is_demo
  AND occurred_at > CAST(:begin AS timestamptz) - CAST(:longest AS interval) AND occurred_at < :end
  AND started_at >= :begin AND started_at < :end
"""
_PROBED = """
SELECT coalesce(sum(prompt_tokens), 0) AS prompt, coalesce(sum(generation_tokens), 0) AS generation,
       count(*) FILTER (WHERE prompt_tokens IS NULL) AS silent
FROM tollgate.engine_probes WHERE deployment = :deployment AND sent_at >= :begin AND sent_at < :end
"""
_IS_WRITTEN = """
SELECT NOT EXISTS (
    SELECT FROM tollgate.journals
    WHERE (state = 'live' AND heartbeat < CAST(:end AS timestamptz) + CAST(:within AS interval))
       OR (state = 'lost' AND started_at < :end AND heartbeat > CAST(:begin AS timestamptz) -
         CAST(:near AS interval)))
"""
# As with every adjustment, the amount is the difference to the attempt's latest cost.
_ADJUST = """
INSERT INTO tollgate.adjustments (adjustment_id, request_id, attempt, team, cost_centre,
  posted_period, occurred_at,
                                  amount_nusd, kind, reason, author, settles)
SELECT gen_random_uuid(), event.request_id, event.attempt, event.team, event.cost_centre,
  months.posted,
       event.occurred_at, :cost_nusd - coalesce((
           SELECT sum(earlier.amount_nusd) FROM tollgate.adjustments AS earlier
           WHERE earlier.request_id = event.request_id AND earlier.attempt = event.attempt), 0),
       :kind, :reason, session_user, true
FROM tollgate.usage_events AS event CROSS JOIN LATERAL
  tollgate.posting_months(ARRAY[event.posted_period]) AS months
WHERE event.request_id = :request_id AND event.attempt = :attempt
  AND event.occurred_at = tollgate.uuid7_time(:request_id) AND event.cost_nusd IS NULL
ON CONFLICT DO NOTHING
RETURNING date_trunc('hour', occurred_at, 'UTC') AS hour
"""
_MARK = "INSERT INTO tollgate.dirty_hours (hour) VALUES (:hour)"


class EngineResiduals:
    """A store that finds idle windows around unknown attempts and books their resolutions."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def windows(self, deployments: Sequence[str], *, now: datetime) -> list[IdleWindow]:
        """Return each idle window around unknown attempts that has ended and whose events are all
        in Postgres.

        Raises `DatabaseUnavailable`.

        Attempts whose engine has not been seen idle since are in no window yet.
        """
        with self._database.begin(is_long=True) as connection:
            values = {"since": now - LOOK_BACK, "deployments": list(deployments)}
            rows = _rows(connection, _UNKNOWN, values)
            spans: dict[tuple[str, datetime, datetime], list[Row]] = {}
            for name, unknown in groupby(rows, key=lambda row: str(row["deployment"])):
                idle = _idle_times(connection, name, since=now - 2 * LOOK_BACK)
                for row in unknown:
                    around = _idle_around(idle, row)
                    if around is not None:
                        spans.setdefault((name, *around), []).append(row)
            return [
                _window(connection, name, begin, end, unknown)
                for (name, begin, end), unknown in spans.items()
                if end + WRITTEN_WITHIN <= now and _is_written(connection, begin, end)
            ]

    def book(self, window: IdleWindow, resolved: Sequence[Resolved]) -> int:
        """Book a settling adjustment for each unknown attempt of a window; return the number of new
        ones.

        An attempt that was settled in the meantime keeps its cost.
        """
        begin, end = window.readings[0].at, window.readings[-1].at
        hours: list[datetime] = []
        with self._database.begin() as connection:
            connection.execute(text(TableLock.ADJUSTMENTS.taken))
            for one in sorted(
                resolved, key=lambda one: (one.attempt.request_id, one.attempt.attempt)
            ):
                values = {
                    "request_id": one.attempt.request_id,
                    "attempt": one.attempt.attempt,
                    "cost_nusd": one.cost_nusd,
                    "kind": KIND,
                    "reason": _reason(one.tokens, begin, end),
                }
                hours.extend(connection.execute(text(_ADJUST), values).scalars())
            for hour in sorted(set(hours)):
                connection.execute(text(_MARK), {"hour": hour})
        return len(hours)


def _rows(connection: Connection, sql: str, values: Mapping[str, object]) -> Sequence[Row]:
    """Run a SELECT and return its rows, by column name."""
    # SQLAlchemy's RowMapping is a Mapping of strings here; its own annotation also allows columns.
    return cast(Sequence[Row], connection.execute(text(sql), values).mappings().all())


def _idle_times(connection: Connection, deployment: str, *, since: datetime) -> list[datetime]:
    """Return the times of samples at which a deployment's engine was idle, with no attempt or probe
    near them, oldest first.
    """
    values = {
        "deployment": deployment,
        "since": since,
        "longest": LONGEST_ATTEMPT,
        "longest_probe": LONGEST_PROBE,
        "slack": SLACK,
    }
    return list(connection.execute(text(_IDLE), values).scalars())


def _idle_around(idle: Sequence[datetime], row: Row) -> tuple[datetime, datetime] | None:
    """Return the last idle sample before an attempt and the first one after it, or None unless
    both exist.
    """
    before, after = bisect_left(idle, row["started_at"]), bisect_right(idle, row["ended_at"])
    return (idle[before - 1], idle[after]) if before > 0 and after < len(idle) else None


def _is_written(connection: Connection, begin: datetime, end: datetime) -> bool:
    """Return True if Postgres has all events of a span: each live journal had a heartbeat since,
    and none was lost near it.
    """
    values = {"begin": begin, "end": end, "within": WRITTEN_WITHIN, "near": LOST_NEAR}
    return bool(connection.execute(text(_IS_WRITTEN), values).scalar_one())


def _window(
    connection: Connection, deployment: str, begin: datetime, end: datetime, unknown: Sequence[Row]
) -> IdleWindow:
    """Return the idle window between two samples, with the engine's counters, the metered tokens
    and the unknown attempts.
    """
    span = {"deployment": deployment, "begin": begin, "end": end}
    (found,) = _rows(connection, _METERED, span | {"longest": LONGEST_ATTEMPT})
    (probed,) = _rows(connection, _PROBED, span)
    # An unknown attempt that was settled by other means used an unknown part of the remaining
    # tokens.
    is_complete = not found["silent"] and not probed["silent"] and found["unknown"] == len(unknown)
    metered = Tokens(
        prompt=int(found["prompt"] + probed["prompt"]),
        generation=int(found["generation"] + probed["generation"]),
    )
    return IdleWindow(
        deployment=deployment,
        readings=tuple(_reading(row) for row in _rows(connection, _READINGS, span)),
        metered=metered if is_complete else None,
        unknown=tuple(_unknown_attempt(row) for row in unknown),
    )


def _reading(row: Row) -> Reading:
    """Return the engine's token counters that a sample's row states."""
    tokens = Tokens(prompt=row["prompt_tokens"], generation=row["generation_tokens"])
    return Reading(at=row["at"], started_at=row["started_at"], tokens=tokens)


def _unknown_attempt(row: Row) -> UnknownAttempt:
    """Return the unknown attempt of a row; without a price in the book it gets no rates, so its
    tokens cannot be charged.
    """
    rates = tuple(rate_from_row(rate) for rate in row["rates"] or ())
    price = Price(
        provider=row["provider"] or "",
        model=row["model"] or "",
        source=row["source"] or "unknown",
        rates=rates,
    )
    return UnknownAttempt(
        request_id=row["request_id"],
        attempt=row["attempt"],
        held_nusd=row["held_nusd"],
        price=price,
        writes_output=row["operation"] not in WITHOUT_OUTPUT,
    )


def _reason(tokens: Tokens, begin: datetime, end: datetime) -> str:
    """Return the reason that an adjustment states for the tokens that an engine counted and no team
    was charged for.
    """
    return (
        f"{tokens.prompt:,} prompt and {tokens.generation:,} generated tokens: its share of the "
        f"engine's tokens that no team was charged for, {begin:%Y-%m-%d %H:%M:%S} to "
        f"{end:%Y-%m-%d %H:%M:%S} UTC"
    )
