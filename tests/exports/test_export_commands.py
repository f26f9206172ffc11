"""`tollgate export`: whole files with digest and watermark, and errors that change nothing."""

from __future__ import annotations

import csv
import gzip
import hashlib
import json
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from pyarrow import parquet

from gateway.storage.ledger.ledger import Ledger
from gateway.storage.postgres.database import Database
from gateway.storage.postgres.schema.finance_views import usage_events
from tests.cli.conftest import Cli
from tests.storage.factories import event

FORMULA = '=HYPERLINK("http://evil")'


@pytest.fixture
def filled(cli: Cli, database: Database) -> Cli:
    """A command line on a ledger with three events, one of a team with a dangerous name."""
    Ledger(database).write([event(3), event(1, team=FORMULA), event(2, client_request_id="@c")])
    return cli


def exported(cli: Cli, *arguments: str) -> dict[str, Any]:
    """Run an export that must succeed; return its record."""
    record: dict[str, Any] = json.loads(cli.ok("export", *arguments, "--format", "json"))
    return record


def table(text: str) -> list[dict[str, str]]:
    """Return the rows of CSV."""
    return list(csv.DictReader(StringIO(text)))


def test_events_have_the_columns_of_the_view_in_every_format(filled: Cli, tmp_path: Path) -> None:
    """A warehouse's table is made from the view's definition."""
    names = [column.name for column in usage_events.columns]
    for suffix in (".csv", ".csv.gz", ".parquet", ".xlsx"):
        out = tmp_path / f"events{suffix}"
        record = exported(filled, "events", "--month", "all", "--out", str(out))
        content = out.read_bytes()
        assert record["sha256"] == hashlib.sha256(content).hexdigest()
        assert (record["path"], record["rows"]) == (str(out), 3)
    text = (tmp_path / "events.csv").read_bytes().decode()
    assert gzip.decompress((tmp_path / "events.csv.gz").read_bytes()).decode() == text
    rows = table(text)
    loaded = parquet.read_table(tmp_path / "events.parquet")
    assert list(rows[0]) == loaded.column_names == names
    assert [row["request_id"] for row in rows] == [str(event(n).request_id) for n in (1, 2, 3)]
    assert [row["request_id"] for row in rows] == loaded["request_id"].to_pylist()
    # In a spreadsheet a formula would run; a program gets the text as it is.
    assert (rows[0]["team"], rows[1]["client_request_id"]) == (f"'{FORMULA}", "'@c")
    assert loaded["team"].to_pylist()[0] == FORMULA
    assert json.loads(rows[0]["tags"]) == {"app": "bot"}
    assert rows[0]["cost_usd"] == "0.0006"


def test_the_same_export_has_the_same_bytes(filled: Cli, tmp_path: Path) -> None:
    """A job that runs twice must not look like a change."""
    for suffix in (".csv.gz", ".parquet", ".xlsx"):
        digests = {
            exported(
                filled, "events", "--month", "2026-11", "--out", str(tmp_path / f"{n}{suffix}")
            )["sha256"]
            for n in range(2)
        }
        assert len(digests) == 1, suffix


def test_standard_output_has_the_rows_alone(filled: Cli) -> None:
    """The watermark goes beside them, or a pipe could not read the rows."""
    ran = filled("export", "events", "--from", "2026-11-20", "--to", "2026-11-20")
    assert (ran.code, len(table(ran.out))) == (0, 3)
    assert "watermark" in ran.err
    # A reader of text would turn the line ends of CSV into others.
    sent = ran.out.replace("\n", "\r\n") if "\r" not in ran.out else ran.out
    assert hashlib.sha256(sent.encode()).hexdigest() in ran.err
    assert table(filled.ok("export", "events", "--from", "2026-11-21", "--to", "2026-11-21")) == []


def test_the_next_export_begins_at_the_watermark(
    filled: Cli, database: Database, tmp_path: Path
) -> None:
    """The loop of a warehouse job."""
    out = tmp_path / "events.csv"
    first = exported(filled, "events", "--since", "0", "--out", str(out))
    Ledger(database).write([event(4), event(5, team="search")])
    since = ("--since", first["watermark"])
    assert exported(filled, "events", *since, "--out", str(out))["rows"] == 2
    narrow = exported(filled, "events", *since, "--where", "team=search", "--out", str(out))
    assert narrow["rows"] == 1
    assert exported(filled, "adjustments", "--since", "0", "--out", str(out))["rows"] == 0


@pytest.mark.parametrize(
    ("options", "code", "words"),
    [
        ([], 2, "--since 0"),
        (["--since", "0", "--month", "2026-11"], 2, "leave the time out"),
        (["--since", "0", "--from", "2026-11-01"], 2, "leave the time out"),
        (["--since", "yesterday"], 2, "not a watermark"),
        (["--since", "1-1-00000001/5:9:"], 1, "--since 0"),
        (["--month", "2026-11", "--out", "events.json"], 2, ".parquet"),
        (["--month", "2026-11", "--out", "missing/events.csv"], 2, "no folder"),
    ],
)
def test_an_error_names_the_next_step(
    filled: Cli, options: list[str], code: int, words: str
) -> None:
    """No file is written, and no row printed."""
    ran = filled("export", "events", *options)
    assert (ran.code, ran.out) == (code, "")
    assert words in ran.err


def test_an_error_leaves_the_file_as_it_was(filled: Cli, tmp_path: Path) -> None:
    """The load of yesterday is better than half of today's."""
    out = tmp_path / "events.csv"
    out.write_text("older")
    assert filled("export", "events", "--since", "1-1-00000001/5:9:", "--out", str(out)).code == 1
    assert out.read_text() == "older"
    assert [path.name for path in tmp_path.glob("*.csv*")] == ["events.csv"]
