"""The ledger: usage events, each inserted exactly once and never changed.

Owns the way from `UsageEvent` to its row. Deciding what an event says is `domain`'s.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from hashlib import sha256
from typing import Any, cast

import psycopg
from msgspec.json import Encoder
from sqlalchemy import Connection, text

from gateway.domain.pricing import Line
from gateway.domain.usage_event import UsageEvent
from gateway.storage.database import Database

# What a row takes from its event, in the order of the copy. `posted_period` and `recorded_at` are set at insert.
COLUMNS = {
    "request_id": "uuid",
    "attempt": "smallint",
    "occurred_at": "timestamptz",
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
    "input_tokens": "bigint",
    "cached_input_tokens": "bigint",
    "cache_write_tokens": "bigint",
    "output_tokens": "bigint",
    "reasoning_tokens": "bigint",
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
    "is_suspect": "boolean",
    "is_demo": "boolean",
    "features": "jsonb",
    "decision": "jsonb",
    "digest": "bytea",
}
_NAMES = ", ".join(COLUMNS)
_MONTH = "date_trunc('month', occurred_at AT TIME ZONE 'UTC')::date"

# Once per connection and emptied at every commit: a new table per batch would bloat the catalogue.
_STAGE = (
    "CREATE TEMPORARY TABLE IF NOT EXISTS staged_events "
    f"({', '.join(f'{name} {kind}' for name, kind in COLUMNS.items())}) ON COMMIT DELETE ROWS"
)
_COPY = f"COPY pg_temp.staged_events ({_NAMES}) FROM STDIN"
_OPEN_PERIODS = (
    f"INSERT INTO tollgate.periods (month) SELECT DISTINCT {_MONTH} AS month "  # noqa: S608 - constants above
    "FROM pg_temp.staged_events ORDER BY month ON CONFLICT DO NOTHING"
)
# In key order: two writers with the same rows in another order would wait for each other.
_INSERT = (
    f"INSERT INTO tollgate.usage_events ({_NAMES}, posted_period) SELECT {_NAMES}, {_MONTH} "  # noqa: S608 - same
    "FROM pg_temp.staged_events ORDER BY request_id, attempt ON CONFLICT DO NOTHING"
)


class Ledger:
    """Writes usage events. Nothing here updates or deletes one."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def write(self, events: Sequence[UsageEvent]) -> int:
        """Insert a batch in one transaction; return how many rows are new.

        An event that is already there is left as it is: writing a batch twice charges once.
        Raises `DatabaseUnavailable`; then nothing of the batch is in.
        """
        if not events:
            return 0
        rows = [to_row(event) for event in events]
        with self._database.begin() as connection:
            _stage(connection, rows)
            connection.execute(text(_OPEN_PERIODS))
            return connection.execute(text(_INSERT)).rowcount


def to_row(event: UsageEvent) -> dict[str, Any]:
    """Return the row of an event, in the order of `COLUMNS`. Unknown stays None."""
    row: dict[str, Any] = {
        "request_id": str(event.request_id),
        "attempt": event.attempt,
        "occurred_at": event.occurred_at.isoformat(),
        "started_at": event.started_at.isoformat(),
        "team": event.team,
        "project": event.project,
        "cost_centre": event.cost_centre,
        "key_id": event.key_id,
        "end_user": event.end_user,
        "tags": _json(event.tags),
        "route": event.route,
        "deployment": event.deployment,
        "provider": event.provider,
        "model": event.model,
        "region": event.region,
        "is_self_hosted": event.is_self_hosted,
        "data_class": event.data_class,
        "policy_version": event.policy_version,
        "operation": event.operation,
        "outcome": str(event.outcome),
        "http_status": event.http_status,
        "streamed": event.streamed,
        "input_tokens": event.usage.input_tokens,
        "cached_input_tokens": event.usage.cached_input_tokens,
        "cache_write_tokens": event.usage.cache_write_tokens,
        "output_tokens": event.usage.output_tokens,
        "reasoning_tokens": event.usage.reasoning_tokens,
        "usage_source": str(event.usage_source),
        "price_id": event.price_id,
        "lines": _json([line_to_row(line) for line in event.lines]),
        "cost_nusd": event.cost_nusd,
        "held_nusd": event.held_nusd,
        "ttft_s": event.ttft_s,
        "tpot_s": event.tpot_s,
        "duration_s": event.duration_s,
        "overhead_s": event.overhead_s,
        "finish_reason": event.finish_reason,
        "client_request_id": event.client_request_id,
        "upstream_request_id": event.upstream_request_id,
        "is_suspect": event.is_suspect,
        "is_demo": event.is_demo,
        "features": _json(event.features),
        "decision": _json(event.decision),
    }
    storable = {name: _storable(value) for name, value in row.items()}
    storable["digest"] = sha256(_JSON.encode(storable)).digest()
    return storable


def line_to_row(line: Line) -> dict[str, Any]:
    """Return a line as JSON: the price as a plain decimal string, so that no reader makes a float of it."""
    return {
        "kind": str(line.kind),
        "tokens": line.tokens,
        "usd_per_mtok": f"{line.usd_per_mtok:f}",
        "cost_nusd": line.cost_nusd,
    }


def _stage(connection: Connection, rows: Sequence[Mapping[str, Any]]) -> None:
    # The driver's own cursor: SQLAlchemy has no COPY, which is twice as fast as any INSERT of a batch.
    cursor = cast("psycopg.Cursor[Any]", connection.connection.cursor())
    cursor.execute(_STAGE)
    with cursor.copy(_COPY) as copy:
        for row in rows:
            copy.write_row(tuple(row.values()))


def _json(value: Any) -> str:
    with suppress(UnicodeEncodeError):
        encoded = _JSON.encode(value)
        if b"\\u0000" not in encoded:
            return encoded.decode()
    return _JSON.encode(_storable_inside(value)).decode()


def _plain(value: Any) -> Any:
    """What the encoder does not know: any mapping is an object, anything else its text."""
    return dict(value) if isinstance(value, Mapping) else str(value)


def _storable_inside(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {_storable(str(key)): _storable_inside(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [_storable_inside(item) for item in value]
    return _storable(value)


def _storable(value: Any) -> Any:
    """Replace what Postgres cannot hold in text: NUL and lone surrogates, which a caller can send as JSON escapes.

    Without it one such name would make its whole batch fail, for ever.
    """
    if not isinstance(value, str) or (value.isascii() and "\0" not in value):
        return value
    return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace").replace("\0", "\ufffd")


# Sorted, so that equal content has an equal digest; no number is infinite in JSON, so those become null.
_JSON = Encoder(order="sorted", enc_hook=_plain)
