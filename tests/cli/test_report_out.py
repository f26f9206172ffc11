"""`report --out FILE`: the whole report in one step, or an error and the file as it was."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
from pyarrow import parquet

from gateway.storage.ledger.ledger import Ledger
from gateway.storage.postgres.database import Database
from tests.cli.conftest import Cli
from tests.storage.factories import event

EVENTS = 1_100  # more than the largest page


@pytest.fixture
def filled(cli: Cli, database: Database) -> Cli:
    """A command line on a ledger with more events than any page holds."""
    Ledger(database).write([event(number) for number in range(1, EVENTS + 1)])
    return cli


def test_a_file_has_every_row_and_its_digest(filled: Cli, tmp_path: Path) -> None:
    """A script checks the file by what the command printed."""
    out = tmp_path / "events.parquet"
    printed = json.loads(filled.ok("report", "events", "--out", str(out), "--format", "json"))
    assert printed == {
        "path": str(out),
        "rows": EVENTS,
        "sha256": hashlib.sha256(out.read_bytes()).hexdigest(),
    }
    assert parquet.read_table(out).num_rows == EVENTS
    text = filled.ok("report", "spend", "--format", "csv")
    filled.ok("report", "spend", "--out", str(tmp_path / "spend.csv"))
    assert (tmp_path / "spend.csv").read_text() == text


def test_an_existing_file_is_replaced_whole(filled: Cli, tmp_path: Path) -> None:
    """Its mode and the link to it stay: another program reads it."""
    out, link = tmp_path / "spend.json", tmp_path / "link.json"
    out.write_text("x" * 100_000)
    out.chmod(0o640)
    link.symlink_to(out)
    filled.ok("report", "spend", "--out", str(link))
    assert json.loads(out.read_text())["report"] == "spend"
    assert (link.is_symlink(), out.stat().st_mode & 0o777) == (True, 0o640)
    assert sorted(tmp_path.glob("*.json*")) == sorted([out, link])


def test_an_error_leaves_the_file_as_it_was(filled: Cli, tmp_path: Path) -> None:
    """Half a month looks like a whole one."""
    out = tmp_path / "events.xlsx"
    out.write_text("older")
    before = sorted(tmp_path.iterdir())
    assert filled("report", "spend", "--where", "team=none", "--out", str(out)).code == 1
    assert out.read_text() == "older"
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("spend.txt", ".csv, .json, .parquet, .xlsx"),
        ("missing/spend.csv", "There is no folder"),
        ("folder.csv", "it is a folder"),
    ],
)
def test_a_file_that_cannot_be_is_refused(cli: Cli, tmp_path: Path, name: str, words: str) -> None:
    """Before the question is asked, where that can be known."""
    (tmp_path / "folder.csv").mkdir()
    for report in ("spend", "selfhost-vs-api"):
        ran = cli("report", report, "--out", str(tmp_path / name))
        assert (ran.code, ran.out) == (2, "")
        assert words in ran.err


def test_a_comparison_with_an_api_is_written_too(cli: Cli, tmp_path: Path) -> None:
    """Each report has the option, also one with a command of its own."""
    out = tmp_path / "compared.csv"
    cli.ok("report", "selfhost-vs-api", "--out", str(out))
    assert out.read_text().startswith("route,deployment,api_model,")
