"""Writes usage events to Postgres, each exactly once and never changed, and charges their budgets
in the same transaction.

This module moves an event's document into its row. `domain` decides the content of an event,
`documents` encodes it. Postgres parses the documents: a batch costs Python no more than a copy of
its bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, cast
from uuid import UUID

import psycopg

from gateway.domain.ledger.records import DeadLetter, Written
from gateway.domain.ledger.usage_event import UsageEvent
from gateway.storage.ledger import adjustments, dead_letters, journals_table
from gateway.storage.ledger.documents import encode_event
from gateway.storage.postgres.database import Database
from gateway.storage.postgres.sessions import Sessions

LIMIT_S = 20.0  # if Postgres neither answers nor breaks the connection
# The columns that a row takes from its document by name. `usage` and `reported` are nested objects,
# see below.
MEMBERS = {
    "request_id": "uuid",
    "attempt": "smallint",
    "started_at": "timestamptz",
    "team": "text",
    "project": "text",
    "cost_centre": "text",
    "key_id": "text",
    "end_user": "text",
    "tags": "jsonb",
    "route": "text",
    "deployment": "text",
    "provider": "text",
    "model": "text",
    "region": "text",
    "is_self_hosted": "boolean",
    "data_class": "text",
    "policy_version": "integer",
    "operation": "text",
    "outcome": "text",
    "http_status": "smallint",
    "streamed": "boolean",
    "usage_source": "text",
    "price_id": "text",
    "lines": "jsonb",
    "cost_nusd": "bigint",
    "held_nusd": "bigint",
    "ttft_s": "double precision",
    "tpot_s": "double precision",
    "duration_s": "double precision",
    "overhead_s": "double precision",
    "finish_reason": "text",
    "client_request_id": "text",
    "upstream_request_id": "text",
    "service_tier": "text",
    "is_stand_in_price": "boolean",
    "is_suspect": "boolean",
    "is_demo": "boolean",
    "features": "jsonb",
    "decision": "jsonb",
    "holds": "jsonb",
    "queue_s": "double precision",
    "max_gap_s": "double precision",
    "engine_queue_s": "double precision",
    "degraded": "text",
}
# Members of `usage` that have a column. All rarer kinds of tokens share `usage_detail` with the
# upstream's other figures.
USAGE = (
    "input_tokens",
    "cached_input_tokens",
    "cache_write_tokens",
    "output_tokens",
    "reasoning_tokens",
)
COMPUTED = ("occurred_at", *USAGE, "usage_detail", "reported_usage", "digest")
COLUMNS = (*MEMBERS, *COMPUTED)

# Documents omit default values; these columns are NOT NULL, so the SQL supplies them.
_FLAGS = ("is_stand_in_price", "is_suspect", "is_demo")
_SPECIAL = {
    **{name: f"coalesce(event.{name}, false)" for name in _FLAGS},
    **{name: f"coalesce(event.{name}, '{{}}')" for name in ("features", "decision")},
    "holds": "coalesce(event.holds, '[]')",
    # People and spreadsheets misread a rate like `1E+1`. It is rare, so the whole text is searched
    # for it.
    "lines": """CASE WHEN document NOT LIKE '%E+%' AND document NOT LIKE '%E-%' THEN event.lines ELSE (
        SELECT coalesce(jsonb_agg(jsonb_set(line, '{usd_per_mtok}', to_jsonb((line ->>
          'usd_per_mtok')::numeric::text))
                        ORDER BY place), '[]')
        FROM jsonb_array_elements(event.lines) WITH ORDINALITY AS priced(line, place)) END""",  # noqa: E501
}
_TAKEN_APART = ", ".join(
    [
        *(_SPECIAL.get(name, f"event.{name}") for name in MEMBERS),
        "tollgate.uuid7_time(event.request_id)",
        *(f"(event.usage ->> '{name}')::bigint" for name in USAGE),
        "nullif(jsonb_strip_nulls(coalesce(event.usage_detail, '{}') || (event.usage - "
        f"ARRAY[{', '.join(repr(name) for name in USAGE)}])), '{{}}')",
        "nullif(jsonb_strip_nulls(event.reported), 'null')",
        "sha256(convert_to(document, 'UTF8'))",
    ]
)
_OBJECTS = dict.fromkeys(("usage", "reported", "usage_detail"), "jsonb")
_RECORD = ", ".join(f"{name} {kind}" for name, kind in (MEMBERS | _OBJECTS).items())
_NAMES = ", ".join(COLUMNS)
_MONTH = "date_trunc('month', occurred_at AT TIME ZONE 'UTC')::date"

# Created once per connection and emptied at every commit: new tables for each batch would bloat the
# catalogue.
_STAGES = f"""
CREATE TEMPORARY TABLE staged_documents (document text NOT NULL) ON COMMIT DELETE ROWS;
CREATE TEMPORARY TABLE staged_events ON COMMIT DELETE ROWS AS SELECT {_NAMES} FROM
  tollgate.usage_events WITH NO DATA;
"""  # noqa: S608 - constants above; with COPY, the hot path of the ledger
_COPY = "COPY pg_temp.staged_documents (document) FROM STDIN"
_TAKE_APART = f"""
INSERT INTO pg_temp.staged_events ({_NAMES})
SELECT {_TAKEN_APART}
FROM pg_temp.staged_documents, jsonb_to_record(document::jsonb) AS event ({_RECORD})
"""  # noqa: S608 - as above
# The months stay open until the commit; an event of a closed month is posted to the next open one.
# The rows are in key order: two writers of the same rows in different orders would deadlock. Then
# by position: of two documents of one attempt in a batch the first counts, as it would in two
# batches. `charges` is the cost of the new rows per budget. An unknown cost counts at its hold. A
# lease pays at most the hold, and an overdraft was not leased.
_INSERT = f"""
WITH posting AS (
    SELECT own, posted FROM tollgate.posting_months(ARRAY(SELECT DISTINCT {_MONTH} FROM
      pg_temp.staged_events))
), inserted AS (
    INSERT INTO tollgate.usage_events ({_NAMES}, posted_period)
    SELECT {_NAMES}, posted FROM pg_temp.staged_events AS staged JOIN posting ON own = {_MONTH}
    ORDER BY request_id, attempt, staged.ctid
    ON CONFLICT DO NOTHING
    RETURNING occurred_at, cost_nusd, held_nusd, holds
), noted AS (
    INSERT INTO tollgate.dirty_hours (hour) SELECT DISTINCT date_trunc('hour', occurred_at, 'UTC')
      FROM inserted
), charges AS (
    SELECT hold ->> 0 AS account_id, (hold ->> 1)::bigint AS starts_s, sum(counted_nusd) AS
      spent_nusd,
           sum(CASE WHEN (hold ->> 3)::boolean THEN 0 ELSE least(counted_nusd, (hold ->>
             2)::bigint) END) AS taken_nusd
    FROM inserted CROSS JOIN LATERAL jsonb_array_elements(holds) AS hold
    CROSS JOIN LATERAL coalesce(cost_nusd, held_nusd, (hold ->> 2)::bigint) AS counted_nusd
    WHERE holds <> '[]' GROUP BY 1, 2
)
SELECT (SELECT count(*) FROM inserted), (SELECT jsonb_agg(to_jsonb(charges))::text FROM charges)
"""  # noqa: S608 - as above
_SETTLE = "SELECT tollgate.settle_holds(%s, %s)"


class Ledger:
    """A writer of usage events. It never updates or deletes one. Safe to share between threads."""

    def __init__(self, database: Database, *, limit_s: float = LIMIT_S) -> None:
        """Take the database and the time limit of a batch; the first batch opens the connection."""
        self._sessions = Sessions(database, prepare=_STAGES, limit_s=limit_s)

    def write(self, events: Sequence[UsageEvent]) -> int:
        """Insert events, each exactly once, and return the number of new ones."""
        return self.write_documents([encode_event(event) for event in events]).inserted

    def write_documents(
        self, documents: Sequence[bytes], *, journal_id: UUID | None = None
    ) -> Written:
        """Insert the events of a batch, each exactly once however often it arrives.

        An event that is stored with other content stays unchanged; the difference in cost becomes
        an adjustment. A document that the tables cannot hold becomes a dead letter and does not
        stop the others. The new events' cost is charged to their budgets in the same transaction.
        With `journal_id` the journal gets a heartbeat, and its leases shrink by the charged part.
        Raises `DatabaseUnavailable`; then write the whole batch again.
        """
        written, waiting = Written(), [tuple(documents)] if documents else []
        while waiting:
            batch = waiting.pop()
            try:
                written += self._sessions.transact(
                    partial(_insert_events, documents=batch, journal_id=journal_id)
                )
            except psycopg.Error as refused:
                if len(batch) == 1:
                    written += self._store_dead_letter(batch[0], refused, journal_id)
                else:  # split into halves until the refused document is alone
                    waiting += [batch[len(batch) // 2 :], batch[: len(batch) // 2]]
        return written

    def book_letter(self, letter: DeadLetter) -> Written:
        """Book a dead letter's document in the ledger, paid from the letter's lease.

        Its journal may be long gone.

        Raises `DatabaseUnavailable`. A letter that is refused again stays open.
        """

        def book(connection: psycopg.Connection[Any]) -> Written:
            lease = dead_letters.lease_of(connection, letter)
            return _insert_events(connection, [letter.document], lease, is_alive=False)

        try:
            return self._sessions.transact(book)
        except psycopg.Error:  # the data is refused again
            return Written(dead=1)

    def close(self) -> None:
        """Close the connections. A later write opens them again."""
        self._sessions.close()

    def _store_dead_letter(
        self, document: bytes, refused: psycopg.Error, journal_id: UUID | None
    ) -> Written:
        """Store a document that Postgres refuses as a dead letter, with the reason."""
        # Only the message: the error's details repeat values of the document.
        reason = f"{refused.diag.message_primary} ({refused.sqlstate})"

        def record(connection: psycopg.Connection[Any]) -> None:
            _record_heartbeat(connection, journal_id, 0)
            dead_letters.record(connection, document, error=reason, journal_id=journal_id)

        self._sessions.transact(record)
        return Written(dead=1)


def _insert_events(
    connection: psycopg.Connection[Any],
    documents: Sequence[bytes],
    journal_id: UUID | None,
    *,
    is_alive: bool = True,
) -> Written:
    """Insert a batch of events, each once, and charge their budgets from the leases of
    `journal_id`; if `is_alive`, record its heartbeat.
    """
    cursor = connection.cursor()
    with cursor.copy(_COPY) as copy:
        copy.write(b"".join([_copy_line(document) for document in documents]))
    cursor.execute(_TAKE_APART.encode())
    cursor.execute(_INSERT.encode())
    inserted, charges = cast("tuple[int, str | None]", cursor.fetchone())
    known = len(documents) - inserted
    conflicts = adjustments.book_redeliveries(connection) if known else 0
    # The journal before the budgets: the exchange of slices locks them in this order too.
    _record_heartbeat(connection, journal_id if is_alive else None, inserted)
    if charges is not None:
        cursor.execute(_SETTLE, (journal_id, charges))
    return Written(inserted=inserted, known=known - conflicts, conflicts=conflicts)


def _copy_line(document: bytes) -> bytes:
    """Return a document as a line of COPY's text format, with its special bytes escaped."""
    escaped = (
        document.replace(b"\\", b"\\\\")
        .replace(b"\n", b"\\n")
        .replace(b"\r", b"\\r")
        .replace(b"\t", b"\\t")
    )
    return escaped + b"\n"


def _record_heartbeat(
    connection: psycopg.Connection[Any], journal_id: UUID | None, inserted: int
) -> None:
    """Record a journal's heartbeat and the number of its new events, if a journal is given."""
    if journal_id is not None:
        journals_table.record_heartbeat(connection, journal_id, inserted=inserted)
