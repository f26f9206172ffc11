"""Reads, parses and applies watermarks: the rows that an export has seen, so that the next one
begins exactly after them.

A watermark is a snapshot of Postgres: the transactions whose rows an export could see. Each row
names the transaction that wrote it. A moment cannot do this: a slow transaction commits rows that
are older than the newest row of an export before.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from sqlalchemy import ColumnElement, and_, cast, func, literal, not_, select

from gateway.errors import BadUsage, NothingFound
from gateway.reports.dimensions import Columns
from gateway.reports.sources.connection import ReadSnapshot
from gateway.storage.postgres.schema.column_types import PgSnapshot, Xid8
from gateway.storage.postgres.schema.finance_views import watermark

FROM_THE_START = "0"
_SHAPE = re.compile(r"(\d+-\d+-[0-9A-F]{8})/(\d+:\d+:(?:\d+(?:,\d+)*)?)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Watermark:
    """The rows that an export has seen.

    `database` names the server, its timeline and the database. `snapshot` is a `pg_snapshot`.
    """

    database: str
    snapshot: str

    def __str__(self) -> str:
        """Return the text that `--since` takes."""
        return f"{self.database}/{self.snapshot}"

    def is_after(self, row: Columns) -> ColumnElement[bool]:
        """Return the SQL condition that a row was not visible to the watermark's export.

        Its first half is implied by the second: an index finds the rows by it.
        """
        oldest_open, _, _ = self.snapshot.partition(":")
        return and_(
            row.written_by >= cast(literal(oldest_open), Xid8),
            not_(func.pg_visible_in_snapshot(row.written_by, self._literal())),
        )

    def _literal(self) -> ColumnElement[str]:
        """Return the snapshot as a value of SQL."""
        return cast(literal(self.snapshot), PgSnapshot)


def parse_watermark(text: str) -> Watermark | None:
    """Return a watermark from the text of `--since`, None for `0`. Raises `BadUsage`."""
    if text == FROM_THE_START:
        return None
    found = _SHAPE.fullmatch(text)
    if found is None:
        raise BadUsage(
            f"'{text}' is not a watermark. Give the one that the last export printed, or 0 for "
            "everything."
        )
    return Watermark(database=found[1], snapshot=found[2])


def current_watermark(snapshot: ReadSnapshot) -> Watermark:
    """Return the watermark of a snapshot: its rows are all that this transaction can see.

    Raises `NothingFound` if the ledger was restored from another server and not adopted yet.
    """
    row = snapshot.row(select(*watermark.c))
    if row["is_restored"]:
        raise NothingFound(
            "This ledger was restored from another server, and its rows carry that server's "
            "transactions. Run: tollgate db upgrade. Then export with --since 0."
        )
    return Watermark(database=row["database"], snapshot=row["snapshot"])


def require_same_database(since: Watermark, now: Watermark) -> None:
    """Raise `NothingFound` if a watermark is of another database than the present one."""
    if since.database != now.database:
        raise NothingFound(
            f"The watermark is of database {since.database}, and this one is {now.database}: a "
            "copy, a restored backup or a promoted standby may lack rows that were exported. "
            "Export everything again: --since 0"
        )
