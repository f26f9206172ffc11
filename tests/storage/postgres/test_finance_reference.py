"""The finance views are a contract: the reference lists exactly their columns."""

from __future__ import annotations

import re
from pathlib import Path

from sqlalchemy import text

from gateway.storage.postgres.database import Database

REFERENCE = (Path(__file__).parents[3] / "docs/reference/finance.md").read_text()


def test_every_view_and_column_is_documented(database: Database) -> None:
    """An undocumented column will be misread."""
    with database.begin() as connection:
        rows = connection.execute(
            text(
                "SELECT table_name, column_name FROM information_schema.columns WHERE "
                "table_schema = 'finance'"
            )
        )
        columns = {(str(view), str(column)) for view, column in rows}
    words = set(re.findall(r"[a-z][a-z0-9_]*", REFERENCE))
    assert columns
    assert {view for view, _ in columns} <= set(re.findall(r"finance\.([a-z_]+)", REFERENCE))
    assert {column for _, column in columns} <= words
    events = {column for view, column in columns if view == "usage_events"}
    promised = set(re.findall(r"`([a-z_]+)`", REFERENCE.partition("## The others")[0]))
    assert events <= promised
