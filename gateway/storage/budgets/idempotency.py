"""Claims, ends and deletes idempotency keys in Postgres: one row decides which request owns a key,
the ledger decides the outcome.

A claim is committed before anything is sent. A claim that a dead worker left is closed when its
journal is recorded as drained or lost. Otherwise the next request with the same key closes it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID

import psycopg
from psycopg.rows import dict_row
from sqlalchemy import Connection

from gateway.domain.request.idempotency import HASH_BYTES, KEPT, Claim, Earlier
from gateway.storage.postgres.database import Database, within
from gateway.storage.postgres.sessions import Sessions

# Postgres itself cancels a slower statement. The caller of a claim waits a little longer than that,
# so a server that is merely slow costs one request and not every other request's connection.
STATEMENT_LIMIT_MS = 800
# Seconds; for a server that keeps the connection open and does not answer.
CLAIM_LIMIT_S, END_LIMIT_S = 1.0, 10.0
MOST_FORGOTTEN_AT_ONCE = 1000
# A live worker sends a heartbeat every 15 seconds.
_SILENT_AFTER = "interval '1 minute'"

# If the row does not fulfil the condition, the statement returns nothing but locks the row: it
# cannot be deleted before it is read.
_CLAIM = """
INSERT INTO tollgate.idempotency_claims AS claim (team, key_hash, body_hash, request_id, journal_id)
VALUES (%(team)s, %(key_hash)s, %(body_hash)s, %(request_id)s, %(journal_id)s)
ON CONFLICT (team, key_hash) DO UPDATE
SET body_hash = excluded.body_hash, request_id = excluded.request_id, journal_id =
  excluded.journal_id,
    state = 'running', claimed_at = now(), finished_at = NULL
WHERE claim.claimed_at <= now() - %(kept)s
RETURNING request_id
"""
# A document that the ledger cannot hold was served too, and may have cost something. OFFSET makes
# the planner look each claim up; otherwise it might read all events into a hash for a few claims.
_WAS_CHARGED = """(
    EXISTS (SELECT FROM tollgate.usage_events AS event
            WHERE event.request_id = claim.request_id AND event.occurred_at =
              tollgate.uuid7_time(claim.request_id)
              AND (event.cost_nusd > 0 OR event.cost_nusd IS NULL) OFFSET 0)
    OR EXISTS (SELECT FROM tollgate.dead_letters AS letter
               WHERE letter.journal_id = claim.journal_id
                 AND position(convert_to(claim.request_id::text, 'UTF8') IN letter.document) > 0
                   OFFSET 0))"""
# A drained journal is completely in the ledger, so the ledger decides. The content of a lost
# journal is unknown. A silent journal may still hold events, but a charge that is in the ledger
# stays.
_FATE = f"""
SELECT claim.request_id, claim.body_hash = %(body_hash)s AS is_same_body, claim.state, CASE
    WHEN claim.state = 'finished' OR journal.state = 'lost' THEN 'finished'
    WHEN journal.state = 'drained' AND NOT {_WAS_CHARGED} THEN 'released'
    WHEN journal.state = 'drained' THEN 'finished'
    WHEN journal.heartbeat < now() - {_SILENT_AFTER} AND {_WAS_CHARGED} THEN 'finished'
    ELSE 'running' END AS fate
FROM tollgate.idempotency_claims AS claim LEFT JOIN tollgate.journals AS journal ON journal.id =
  claim.journal_id
WHERE claim.team = %(team)s AND claim.key_hash = %(key_hash)s
"""  # noqa: S608 - constants; a request waits for it

_OF_ONE = (
    "claim.team = %(team)s AND claim.key_hash = %(key_hash)s AND claim.request_id = %(request_id)s"
)
_OF_JOURNAL = "claim.journal_id = %(journal_id)s"


def _finish_sql(condition: str) -> str:
    """Return the UPDATE that marks the running claims under an SQL condition as finished."""
    return f"""
UPDATE tollgate.idempotency_claims AS claim SET state = 'finished', finished_at = now()
WHERE {condition} AND claim.state = 'running'"""  # noqa: S608 - constants; a request waits for it


def _release_sql(condition: str) -> str:
    """Return the DELETE that frees the keys of the running claims under an SQL condition."""
    return f"""
DELETE FROM tollgate.idempotency_claims AS claim
WHERE {condition} AND claim.state = 'running'"""  # noqa: S608 - constants; a request waits for it


# A claim whose answer was lost may not be committed yet, and a DELETE would not see it. An INSERT
# of the same key waits for that commit. If there was no claim, the inserted row is ours, and the
# statements after it delete it.
_WAIT_FOR_ITS_COMMIT = f"""
INSERT INTO tollgate.idempotency_claims (team, key_hash, body_hash, request_id, journal_id)
VALUES (%(team)s, %(key_hash)s, decode(repeat('00', {HASH_BYTES}), 'hex'), %(request_id)s,
  %(request_id)s)
ON CONFLICT (team, key_hash) DO NOTHING
"""  # noqa: S608 - a constant; a request waits for it
# Sorted: two transactions that close many claims would otherwise deadlock.
_LOCK_ORPHANS = f"""
SELECT FROM tollgate.idempotency_claims AS claim WHERE {_OF_JOURNAL} AND claim.state = 'running'
ORDER BY claim.team, claim.key_hash FOR UPDATE
"""
_FORGET = """
DELETE FROM tollgate.idempotency_claims WHERE (team, key_hash) IN (
    SELECT team, key_hash FROM tollgate.idempotency_claims WHERE claimed_at <= now() - %(kept)s
    ORDER BY claimed_at LIMIT %(most)s FOR UPDATE SKIP LOCKED)
"""


class ClaimTable:
    """A table that claims keys, ends claims and deletes old ones. Safe to share between threads.

    It uses its own connections (`Sessions`), not the pool: in the pool a request could wait seconds
    behind reports and jobs.
    """

    def __init__(self, database: Database, *, limit_ms: int = STATEMENT_LIMIT_MS) -> None:
        """Take the database and the time limit of a statement in ms, including its wait for
        locks.
        """
        prepare = f"SET statement_timeout = {limit_ms}; SET lock_timeout = 0"
        self._sessions = Sessions(database, prepare=prepare, limit_s=END_LIMIT_S)

    def claim(self, claim: Claim, body_hash: bytes, *, journal_id: UUID) -> Earlier | None:
        """Claim the key and return None, or return the earlier claim of the key.

        Raises `DatabaseUnavailable` if the outcome is unknown: the claim may exist until it is
        `end`ed.
        """
        values = _claim_values(claim) | {
            "body_hash": body_hash,
            "journal_id": journal_id,
            "kept": KEPT,
        }
        with within(CLAIM_LIMIT_S):
            return self._sessions.transact(lambda connection: _claim_or_find(connection, values))

    def end(self, ended: Sequence[tuple[Claim, bool]]) -> None:
        """Finish each idempotency claim that is paired with True or whose charge is in the ledger,
        and release the others.

        A repetition changes nothing.

        A claim whose charge is in the ledger is finished, whatever its flag is. A claim that was
        never made is ignored. Raises `DatabaseUnavailable`; then no claim was ended.
        """
        in_order = sorted(ended, key=lambda pair: (pair[0].team, pair[0].key_hash))

        def work(connection: psycopg.Connection[Any]) -> None:
            for claim, was_charged in in_order:
                _end_claim(connection, _claim_values(claim), was_charged=was_charged)

        self._sessions.transact(work)

    def forget(self) -> int:
        """Delete claims that are older than `KEPT` and return their number. Raises
        `DatabaseUnavailable`.
        """
        values, total = {"kept": KEPT, "most": MOST_FORGOTTEN_AT_ONCE}, 0
        while True:
            dropped = self._sessions.transact(
                lambda connection: connection.execute(_FORGET, values).rowcount
            )
            total += dropped
            if dropped < MOST_FORGOTTEN_AT_ONCE:
                return total

    def close(self) -> None:
        """Close the connections. A later use opens them again."""
        self._sessions.close()


def close_orphans(connection: Connection, journal_id: UUID, *, is_lost: bool = False) -> None:
    """End a dead worker's claims, in the transaction that records its journal as drained or lost.

    A drained journal's events are all in the ledger, which shows the requests that cost something.
    A lost journal's events are unknown, so every claim counts as charged. Call this after the
    journal's row was changed.
    """
    values = {"journal_id": journal_id}
    connection.exec_driver_sql(_LOCK_ORPHANS, values)
    if is_lost:
        connection.exec_driver_sql(_finish_sql(_OF_JOURNAL), values)
        return
    connection.exec_driver_sql(_finish_sql(f"{_OF_JOURNAL} AND {_WAS_CHARGED}"), values)
    connection.exec_driver_sql(_release_sql(_OF_JOURNAL), values)


def _claim_or_find(
    connection: psycopg.Connection[Any], values: Mapping[str, Any]
) -> Earlier | None:
    """Claim an idempotency key and return None, or return the earlier claim of the key; a released
    claim is replaced.
    """
    if connection.execute(_CLAIM, values).fetchone() is not None:
        return None
    found = connection.cursor(row_factory=dict_row).execute(_FATE.encode(), values).fetchone()
    assert found is not None, "the row is locked"
    if found["request_id"] == values["request_id"]:
        return None  # committed before, but the answer was lost
    if found["fate"] == "released":
        earlier = {"request_id": found["request_id"]}
        connection.execute(_release_sql(_OF_ONE).encode(), {**values, **earlier})
        connection.execute(_CLAIM, values)
        return None
    if found["fate"] != found["state"]:
        connection.execute(
            _finish_sql(_OF_ONE).encode(), {**values, "request_id": found["request_id"]}
        )
    return Earlier(
        request_id=found["request_id"],
        is_same_body=found["is_same_body"],
        is_finished=found["fate"] == "finished",
    )


def _end_claim(
    connection: psycopg.Connection[Any], values: Mapping[str, Any], *, was_charged: bool
) -> None:
    """Finish a claim whose request was charged, or may have been; release it otherwise."""
    if was_charged:
        connection.execute(_finish_sql(_OF_ONE).encode(), values)
        return
    connection.execute(_WAIT_FOR_ITS_COMMIT.encode(), values)
    connection.execute(_finish_sql(f"{_OF_ONE} AND {_WAS_CHARGED}").encode(), values)
    connection.execute(_release_sql(_OF_ONE).encode(), values)


def _claim_values(claim: Claim) -> dict[str, Any]:
    """Return an idempotency claim as parameters for SQL."""
    return {"team": claim.team, "key_hash": claim.key_hash, "request_id": claim.request_id}
