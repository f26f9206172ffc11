"""Connects the reports to Postgres with a role that may only SELECT from schema `finance`, and runs
their queries in read-only snapshots.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import inf
from typing import Any, cast

from sqlalchemy import Connection, Executable, text

from gateway.storage.postgres.database import Database, within

ROLE = "tollgate_reader"
LONG_READ = "10min"
SETTINGS = (
    "SELECT set_config('plan_cache_mode', 'force_custom_plan', true), "
    "set_config('work_mem', '32MB', true)"
)

Row = Mapping[str, Any]  # a row as Postgres returns it; each report makes its own types of it
Statement = str | Executable  # a fixed text, or an expression that was composed


@dataclass(frozen=True, slots=True)
class ReadSnapshot:
    """One repeatable-read transaction: all of a report's statements see the same events."""

    _connection: Connection

    def rows(self, statement: Statement, **values: object) -> Sequence[Row]:
        """Run one SELECT. Values travel as parameters, never inside the text."""
        result = self._connection.execute(_executable(statement), values)
        # SQLAlchemy's RowMapping is a Mapping of strings here; its own annotation also allows
        # columns.
        return cast(Sequence[Row], result.mappings().all())

    def row(self, statement: Statement, **values: object) -> Row:
        """Run one SELECT that gives exactly one row, and return the row."""
        result = self._connection.execute(_executable(statement), values)
        return cast(Row, result.mappings().one())

    def as_closed(self, version: str) -> ReadSnapshot:
        """Return this snapshot with the views of schema `closed` in place of those of `finance`.

        `version` is a closed version of a month, as `2026-10-01/1`.
        """
        self._connection.execute(
            text("SELECT set_config('tollgate.as_closed', :version, true)"), {"version": version}
        )
        return ReadSnapshot(
            self._connection.execution_options(schema_translate_map={"finance": "closed"})
        )

    def take_time(self) -> None:
        """Let statements of this snapshot run for up to ten minutes: no page waits for them."""
        self._connection.execute(text(f"SET LOCAL statement_timeout = '{LONG_READ}'"))

    def stream(
        self, statement: Statement, *, batch: int, **values: object
    ) -> Iterator[Sequence[tuple[Any, ...]]]:
        """Run one SELECT with too many rows for memory, `batch` at a time, through a cursor in
        Postgres.
        """
        options = {"stream_results": True, "max_row_buffer": batch}
        result = self._connection.execute(_executable(statement), values, execution_options=options)
        for rows in result.partitions(batch):
            yield cast(Sequence[tuple[Any, ...]], rows)

    def each(self, statement: Statement, *, batch: int, **values: object) -> Iterator[Row]:
        """Run one SELECT as `stream` does, and yield its rows one by one, by column name."""
        options = {"stream_results": True, "max_row_buffer": batch}
        result = self._connection.execute(_executable(statement), values, execution_options=options)
        yield from cast(Iterator[Row], result.mappings())


def snapshot_of(connection: Connection) -> ReadSnapshot:
    """Return the snapshot of a connection without a transaction.

    Each question is planned for its own month and filters, so that the tenth of a kind takes as
    long as the first: Postgres would keep one plan for all. With its own 4 MB of memory it would
    write the groups of a large report to disk.
    """
    connection.execution_options(isolation_level="REPEATABLE READ", postgresql_readonly=True)
    connection.execute(text(SETTINGS))
    return ReadSnapshot(connection)


def _executable(statement: Statement) -> Executable:
    """Return a statement that SQLAlchemy can run, made from a fixed text if it is one."""
    return text(statement) if isinstance(statement, str) else statement


class Reader:
    """A small pool of read-only connections. Nothing is opened before the first snapshot."""

    def __init__(
        self, dsn: str, *, limit_s: float = inf, renew: Callable[[], str] | None = None
    ) -> None:
        """Keep the database's address, and the time limit of a snapshot.

        Raises `BadUsage` if it is not a Postgres URL.
        """
        self._limit_s = limit_s
        self._database = Database(
            dsn,
            role=ROLE,
            application_name="tollgate reports",
            statement_limit_s=limit_s,
            renew=renew,
        )

    @contextmanager
    def snapshot(self) -> Iterator[ReadSnapshot]:
        """Open a read-only snapshot of the database. Raises `DatabaseUnavailable` with the next
        step.
        """
        with (
            self._database.explained(),
            within(self._limit_s),
            self._database.engine.connect() as connection,
        ):
            yield snapshot_of(connection)

    def flush(self) -> None:
        """Return when everything that a snapshot sees is on the disk of Postgres.

        Without it, Postgres could give numbers of aborted transactions again after a crash, and
        rows of those would look exported. A commit with a record of its own flushes all before it.
        Raises `DatabaseUnavailable`, also on a standby.
        """
        with self._database.begin() as connection:
            connection.execute(text("SET LOCAL synchronous_commit = 'local'"))
            connection.execute(text("SELECT pg_logical_emit_message(true, 'tollgate', 'export')"))

    def end_by(self, end_s: float) -> None:
        """Let every question fail at that time of the monotonic clock: the process is about to
        end.
        """
        self._database.end_by(end_s)

    def close(self) -> None:
        """Close the pool of read-only connections."""
        self._database.close()
