"""Runs a report's statements again by EXPLAIN (ANALYZE), and finds the events that they read."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, event

Statement = tuple[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerRead:
    """One scan of a partition of the events, with the rows that it looked at in all its loops."""

    table: str
    rows: int
    is_whole: bool


@contextmanager
def noted(connection: Connection, statements: list[Statement]) -> Iterator[None]:
    """Add each statement of a connection with its values to a list, within a `with` block."""

    def note(_connection: Any, _cursor: Any, statement: str, values: Any, *_: Any) -> None:
        statements.append((statement, values))

    event.listen(connection, "before_cursor_execute", note)
    try:
        yield
    finally:
        event.remove(connection, "before_cursor_execute", note)


def plan_of(connection: Connection, statement: str, values: Any) -> Any:
    """Return the plan of a statement as Postgres carried it out."""
    result = connection.exec_driver_sql(f"EXPLAIN (ANALYZE, FORMAT JSON) {statement}", values)
    ((found,),) = result.all()
    return found


def reads_of_ledger(plan: Any) -> list[LedgerRead]:
    """Return the scans of events in a plan that looked at any."""
    return [
        LedgerRead(
            table=node["Relation Name"], rows=_read(node), is_whole="Seq Scan" in node["Node Type"]
        )
        for node in _nodes(plan[0]["Plan"])
        if node.get("Relation Name", "").startswith("usage_events") and _read(node)
    ]


def _nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield a plan's nodes, its own first."""
    yield plan
    for lower in plan.get("Plans", ()):
        yield from _nodes(lower)


def _read(node: dict[str, Any]) -> int:
    """Return the rows that a scan looked at, in all its loops."""
    removed = node.get("Rows Removed by Filter", 0) + node.get("Rows Removed by Index Recheck", 0)
    return int((node["Actual Rows"] + removed) * node["Actual Loops"])
