"""`tollgate engine bill import`: what it shows, asks, writes and refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Cli

HEADER = "deployment,from,to,gpu_hours,amount,currency,invoice_id\n"
GOOD = "qwen-eu,2026-11-01T00:00:00Z,2026-11-01T03:00:00Z,3,10,USD,INV-1\n"


@pytest.fixture
def bill(tmp_path: Path) -> Path:
    """A bill of three hours as a file."""
    path = tmp_path / "november.csv"
    path.write_text(HEADER + GOOD)
    return path


def test_a_bill_is_imported_once_and_audited(applied: Cli, bill: Path) -> None:
    """Twice the same file changes nothing; the log has the person and the file."""
    first = json.loads(applied.ok("engine", "bill", "import", str(bill), "--yes", "-f", "json"))
    again = applied("engine", "bill", "import", str(bill), "--yes", "--format", "json")
    assert {name: first[name] for name in first if name != "import_id"} == {
        "rows": 1,
        "duplicates": 0,
        "hours": 3,
        "amount_usd": 10,
    }
    assert json.loads(again.out) == first | {"duplicates": 1}
    assert "nothing was changed" in again.err
    (act,) = [
        row
        for row in json.loads(applied.ok("audit", "list", "--format", "json"))
        if row["action"] == "gpu_bill.import"
    ]
    assert act["subject"] == first["import_id"]
    log = json.loads(applied.ok("audit", "list", "--format", "json"))
    sums = {row["action"]: row["subject"] for row in log if row["action"].startswith("gpu_bill.")}
    assert sums == dict.fromkeys(
        ("gpu_bill.import", "gpu_bill.lines", "gpu_bill.hours"), first["import_id"]
    )
    assert act["operator"]
    report = json.loads(applied.ok("report", "gpu", "--format", "json"))
    assert report["total"]["bill_usd"] == report["total"]["empty_usd"] == 10


def test_a_line_that_was_taken_out_of_an_invoice_counts_no_more(applied: Cli, bill: Path) -> None:
    """All lines of the corrected file counted already, so nothing was changed, though the effect
    was shown as $15 replaced.
    """
    wrong = GOOD.replace("2026-11-01", "2026-11-02").replace(",10,", ",5,")
    bill.write_text(HEADER + GOOD + wrong)
    applied.ok("engine", "bill", "import", str(bill), "--yes")
    bill.write_text(HEADER + GOOD)
    ran = applied("engine", "bill", "import", str(bill), "--yes")
    assert "nothing was changed" not in ran.err
    report = json.loads(applied.ok("report", "gpu", "--format", "json"))
    assert report["total"]["bill_usd"] == 10
    assert "nothing was changed" in applied("engine", "bill", "import", str(bill), "--yes").err


def test_a_cell_does_not_move_the_cursor(applied: Cli, bill: Path) -> None:
    """A bill is written by somebody else, and its wrong cells are shown."""
    bill.write_text(HEADER + GOOD.replace("USD", "\x1b[2J\x1b]0;x\x07"))
    ran = applied("engine", "bill", "import", str(bill), "--yes")
    assert ran.code == 1
    assert "currency is '?[2J?]0;x?'" in ran.err


def test_nothing_is_written_without_a_yes(applied: Cli, bill: Path) -> None:
    """The effect is shown first; without a terminal there is no question."""
    ran = applied("engine", "bill", "import", str(bill))
    assert ran.code == 2
    assert "Use --yes" in ran.err
    assert "qwen-eu" in ran.err
    assert "$10.00" in ran.err
    assert json.loads(applied.ok("report", "gpu", "--format", "json"))["rows"] == []


def test_one_wrong_line_refuses_the_whole_file(applied: Cli, bill: Path) -> None:
    """gpt-eu is no deployment of one's own: its bill is the provider's."""
    bill.write_text(HEADER + GOOD + GOOD.replace("qwen-eu", "gpt-eu"))
    ran = applied("engine", "bill", "import", str(bill), "--yes")
    assert (ran.code, ran.out) == (1, "")
    assert "line 3: there is no self-hosted deployment 'gpt-eu'" in ran.err
    assert json.loads(applied.ok("report", "gpu", "--format", "json"))["rows"] == []


def test_a_file_that_is_not_there_is_bad_usage(applied: Cli, tmp_path: Path) -> None:
    """The name is wrong, not the bill."""
    ran = applied("engine", "bill", "import", str(tmp_path / "absent.csv"))
    assert ran.code == 2
    assert "cannot be read" in ran.err
