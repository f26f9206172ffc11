"""Reads the audit log from Postgres, as stored rows to verify and as acts for people; writes
nothing.

Only the code in the migrations appends to it.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

from sqlalchemy import func, select, text

from gateway.domain.ledger.audit_chain import AuditAct, AuditRow, ChainHead
from gateway.storage.postgres.database import Database
from gateway.storage.postgres.schema.column_types import table

audit_log = table(
    "audit_log",
    "seq bigint, at timestamptz, db_user text, operator text, reason text, action text, "
    "subject text, details jsonb, line text, previous text, hash text",
)
BATCH = 5000

# The rows as `domain.ledger.audit_chain` checks them, from the table or from finance's view of it.
# A timestamp that Postgres can hold but the log cannot is shown unchanged: it must not look like
# another one.
AUDIT_ROWS = """
SELECT seq,
       CASE WHEN at >= '1970-01-01 00:00:00+00' AND at < '3000-01-01 00:00:00+00'
            THEN to_char(at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"') ELSE at::text END
              AS at,
       db_user, operator, reason, action, subject, details::text AS details, line, previous, hash
FROM {log} ORDER BY seq
"""
_STORED = AUDIT_ROWS.format(log="tollgate.audit_log")
_HEAD = "SELECT seq, hash FROM tollgate.audit_log ORDER BY seq DESC LIMIT 1"
_COUNT = "SELECT count(*) FROM tollgate.audit_log"


class AuditLog:
    """A reader of the log. Its methods raise `DatabaseUnavailable`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def rows(self) -> Iterator[AuditRow]:
        """Yield every row of the audit log as stored, in order; memory stays flat however many
        there are.
        """
        with self._database.begin() as connection:
            for row in connection.execution_options(yield_per=BATCH).execute(text(_STORED)):
                yield AuditRow(
                    seq=row[0],
                    at=row[1],
                    db_user=row[2],
                    operator=row[3],
                    reason=row[4],
                    action=row[5],
                    subject=row[6],
                    details=row[7],
                    line=row[8],
                    previous=row[9],
                    hash=row[10],
                )

    def count(self) -> int:
        """Return the number of rows in the audit log, to show progress while reading them."""
        with self._database.begin() as connection:
            return int(connection.execute(text(_COUNT)).scalar_one())

    def head(self) -> ChainHead | None:
        """Return the number and hash of the audit log's last row; None in an empty log."""
        with self._database.begin() as connection:
            row = connection.execute(text(_HEAD)).one_or_none()
            return None if row is None else ChainHead(row.seq, row.hash)

    def acts(
        self, *, since: datetime | None, action: str | None, subject: str | None
    ) -> list[AuditAct]:
        """Return administrative acts in order, filtered by time, by the beginning of the action and
        by subject; None matches all.
        """
        acts = select(audit_log).order_by(audit_log.c.seq)
        if since is not None:
            acts = acts.where(audit_log.c.at >= since)
        if action is not None:
            acts = acts.where(func.starts_with(audit_log.c.action, action))
        if subject is not None:
            acts = acts.where(audit_log.c.subject == subject)
        with self._database.begin() as connection:
            return [AuditAct(**row) for row in connection.execute(acts).mappings()]
