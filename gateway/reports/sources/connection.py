"""Connects the reports to Postgres with a role that may only SELECT from schema `finance`, and runs
their queries in read-only snapshots.

For the readers of some teams a snapshot acts as another role, which may only SELECT from schema
`team`: the same views, of which Postgres returns those teams' rows alone (docs/decisions/0029).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import inf
from typing import Any, cast

from sqlalchemy import Connection, Executable, text

from gateway.reports.scope import Scope
from gateway.storage.postgres.database import Database, within

ROLE, TEAM_ROLE = "tollgate_reader", "tollgate_team_reader"
LONG_READ = "10min"
SETTINGS = (
    "SELECT set_config('plan_cache_mode', 'force_custom_plan', true), "
    "set_config('work_mem', '32MB', true)"
)
# Both end with the transaction, so that a pooled connection keeps neither.
_AS_TEAMS = text(
    "SELECT set_config('tollgate.teams', CAST(CAST(:teams AS text[]) AS text), true), "
    "set_config('role', :role, true)"
)
_OF_FINANCE = re.compile(r"\bfinance\.")

Row = Mapping[str, Any]  # a row as Postgres returns it; each report makes its own types of it
Statement = str | Executable  # a fixed text, or an expression that was composed


@dataclass(frozen=True, slots=True)
class ReadSnapshot:
    """One repeatable-read transaction: all of a report's statements see the same events.

    `is_of_teams`: it reads the views of schema `team` in place of those of `finance`.
    """

    _connection: Connection
    is_of_teams: bool = False

    def rows(self, statement: Statement, **values: object) -> Sequence[Row]:
        """Run one SELECT. Values travel as parameters, never inside the text."""
        result = self._connection.execute(self._executable(statement), values)
        # SQLAlchemy's RowMapping is a Mapping of strings here; its own annotation also allows
        # columns.
        return cast(Sequence[Row], result.mappings().all())

    def tuples(self, statement: Statement) -> Sequence[Sequence[Any]]:
        """Run one SELECT and return its rows in the order of its columns, for many rows: to find
        each cell by its name takes longer than to read it.
        """
        return self._connection.execute(self._executable(statement)).all()

    def row(self, statement: Statement, **values: object) -> Row:
        """Run one SELECT that gives exactly one row, and return the row."""
        result = self._connection.execute(self._executable(statement), values)
        return cast(Row, result.mappings().one())

    def seen_by(self, scope: Scope) -> ReadSnapshot:
        """Return this snapshot for the readers of a scope: that of some teams acts as their role
        from here on.
        """
        if scope.teams is None:
            return self
        self._connection.execute(_AS_TEAMS, {"teams": list(scope.teams), "role": TEAM_ROLE})
        return ReadSnapshot(
            self._connection.execution_options(schema_translate_map={"finance": "team"}),
            is_of_teams=True,
        )

    def as_closed(self, version: str) -> ReadSnapshot:
        """Return this snapshot with the views of schema `closed` in place of those of `finance`.

        `version` is a closed version of a month, as `2026-10-01/1`.
        """
        self._connection.execute(
            text("SELECT set_config('tollgate.as_closed', :version, true)"), {"version": version}
        )
        closed = "team_closed" if self.is_of_teams else "closed"
        return ReadSnapshot(
            self._connection.execution_options(schema_translate_map={"finance": closed}),
            is_of_teams=self.is_of_teams,
        )

    def as_live(self) -> ReadSnapshot:
        """Return this snapshot with the views of `finance` again."""
        return ReadSnapshot(self._connection.execution_options(schema_translate_map={}))

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
        result = self._connection.execute(
            self._executable(statement), values, execution_options=options
        )
        for rows in result.partitions(batch):
            yield cast(Sequence[tuple[Any, ...]], rows)

    def each(self, statement: Statement, *, batch: int, **values: object) -> Iterator[Row]:
        """Run one SELECT as `stream` does, and yield its rows one by one, by column name."""
        options = {"stream_results": True, "max_row_buffer": batch}
        result = self._connection.execute(
            self._executable(statement), values, execution_options=options
        )
        yield from cast(Iterator[Row], result.mappings())

    def _executable(self, statement: Statement) -> Executable:
        """Return a statement that SQLAlchemy can run, made from a fixed text if it is one.

        SQLAlchemy translates the schema of an expression, never that of a text. A text that kept
        `finance` would be refused: the role of teams may read nothing there.
        """
        if not isinstance(statement, str):
            return statement
        return text(_OF_FINANCE.sub("team.", statement) if self.is_of_teams else statement)


def snapshot_of(connection: Connection) -> ReadSnapshot:
    """Return the snapshot of a connection without a transaction.

    Each question is planned for its own month and filters, so that the tenth of a kind takes as
    long as the first: Postgres would keep one plan for all. With its own 4 MB of memory it would
    write the groups of a large report to disk.
    """
    connection.execution_options(isolation_level="REPEATABLE READ", postgresql_readonly=True)
    connection.execute(text(SETTINGS))
    return ReadSnapshot(connection)


class Reader:
    """A small pool of read-only connections. Nothing is opened before the first snapshot."""

    def __init__(
        self,
        dsn: str,
        *,
        limit_s: float = inf,
        renew: Callable[[], str] | None = None,
        setting: str = "TOLLGATE_DATABASE_URL",
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
            setting=setting,
        )

    @contextmanager
    def snapshot(self, scope: Scope) -> Iterator[ReadSnapshot]:
        """Open a read-only snapshot of the rows in a scope. Raises `DatabaseUnavailable` with the
        next step.
        """
        with (
            self._database.explained(),
            within(self._limit_s),
            self._database.engine.connect() as connection,
        ):
            yield snapshot_of(connection).seen_by(scope)

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
