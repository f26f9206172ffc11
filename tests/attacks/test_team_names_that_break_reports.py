"""A team chooses its end users, tags and projects: none of these names breaks a report, runs in a
spreadsheet, moves a cursor or hides money.

Found by an attacker who simulated a hostile team, on 2026-11-26.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from decimal import Decimal
from io import StringIO
from pathlib import Path
from typing import Any
from xml.etree import ElementTree
from zipfile import ZipFile

import pytest
from pyarrow import parquet

from gateway.domain.ledger.usage_event import UsageEvent
from gateway.domain.pricing.tokens import TokenUsage, UsageSource
from gateway.domain.words import FORMULA_STARTS
from gateway.reports.sources.aggregate import MAX_ROWS, NOT_LISTED
from gateway.storage.ledger.adjustments import resolve
from gateway.storage.ledger.ledger import Ledger
from gateway.storage.postgres.database import Database
from tests.cli.conftest import Cli, cli, cli_at
from tests.storage.factories import event

__all__ = ["cli", "cli_at"]

NAMES = (
    '=HYPERLINK("http://x","y")',
    "+1+1",
    "-1",
    "@SUM(A1)",
    "\t=1",
    "\r=1",
    "\n=1",
    "＝1+1",
    "a\nb",
    'a\r\n"b',
    '"',
    ",,,",
    "\u202egnp.exe",
    "x\u2028y\u2029z\x85",
    "\x1b[2J\x1b]0;owned\x07",
    "<script>alert(1)</script>&amp;",
    "_x003D_1",
    "\ufeffx",
    "\ufffe\uffff",
    "unallocated",
    "Other",
    NOT_LISTED,
    "total",
    "None",
    " ",
    "l" * 256,
)
COST = 1_000_000


@pytest.fixture
def hostile(cli: Cli, database: Database) -> Cli:
    """A ledger whose end users, projects and tags have these names, one event each."""
    made: Iterator[UsageEvent] = (
        event(number, end_user=name, project=name, tags={"t": name}, cost_nusd=COST, lines=())
        for number, name in enumerate(NAMES)
    )
    Ledger(database).write([*made, event(99, end_user=None, project=None, tags={}, cost_nusd=COST)])
    return cli


QUESTIONS = (
    ("report", "spend", "--by", "end_user,project"),
    ("report", "spend", "--by", "tag"),
    ("report", "unit-costs", "--by", "tag:t"),
    ("report", "events"),
)


@pytest.mark.parametrize("question", QUESTIONS, ids=" ".join)
def test_every_output_has_one_line_a_row_and_no_formula(
    hostile: Cli, tmp_path: Path, question: tuple[str, ...]
) -> None:
    """Finance opens these files in a spreadsheet and a terminal."""
    shown: Any = json.loads(hostile.ok(*question, "--format", "json"), parse_float=Decimal)
    rows = shown["rows"]
    # The event without a name is in the line of the name `unallocated`, but for pairs and lists.
    assert len(rows) == len(NAMES) + (question[-1] in ("tag", "events"))

    table = hostile.ok(*question)
    assert len(table.splitlines()) == len(rows) + 2  # the header and the total
    assert all(letter.isprintable() or letter == "\n" for letter in table)

    lines = list(csv.reader(StringIO(hostile.ok(*question, "--format", "csv"), newline="")))
    assert [len(line) for line in lines] == [len(shown["columns"])] * (len(rows) + 1)
    numbers = {"total_usd", "change_usd"}
    heads = lines[0]
    for line in lines[1:]:
        for name, cell in zip(heads, line, strict=True):
            is_number = name.endswith(("_usd", "_tokens", "attempts", "share")) or name in numbers
            assert is_number or not cell.startswith(FORMULA_STARTS), (name, cell)

    book = tmp_path / "book.xlsx"
    hostile.ok(*question, "--out", str(book))
    with ZipFile(book) as parts:
        for name in parts.namelist():
            if name.endswith(".xml"):
                tree = ElementTree.fromstring(parts.read(name))
                assert not [one for one in tree.iter() if one.tag.endswith("}f")], name

    out = tmp_path / "table.parquet"
    hostile.ok(*question, "--out", str(out))
    for kept, row in zip(parquet.read_table(out).to_pylist(), rows, strict=True):
        texts = {name: cell for name, cell in kept.items() if isinstance(cell, str)}
        assert texts.items() <= row.items()


def test_no_name_takes_the_place_of_another_line(hostile: Cli) -> None:
    """A project called `unallocated` is in that line with the events that have none, and both are
    found there; `Other` and `(not listed)` are names like any other.
    """
    shown = json.loads(hostile.ok("report", "spend", "--by", "project", "--format", "json"))
    by_name = {row["project"]: row for row in shown["rows"]}
    assert len(by_name) == len(shown["rows"]) == len(NAMES)
    assert by_name["unallocated"]["attempts"] == 2
    assert all(row["attempts"] == 1 for name, row in by_name.items() if name != "unallocated")
    opened = json.loads(
        hostile.ok("report", "events", "--where", "project=unallocated", "--format", "json")
    )
    assert len(opened["rows"]) == 2


def test_an_error_that_lists_names_moves_no_cursor(hostile: Cli) -> None:
    """The names of others are in the message on a filter that matches nothing."""
    ran = hostile("report", "spend", "--where", "end_user=nobody")
    assert ran.code == 1
    assert all(letter.isprintable() or letter == "\n" for letter in ran.err)


def test_many_tags_push_no_money_out_of_a_report(cli: Cli, database: Database) -> None:
    """16 tags a request, each another one: beyond the most rows the rest is one line."""
    requests = MAX_ROWS // 16 + 20
    made = [
        event(
            number,
            tags={f"k{number}-{place}": "v" for place in range(16)},
            cost_nusd=number + 1,
            lines=(),
        )
        for number in range(requests)
    ]
    Ledger(database).write(made)
    shown = json.loads(
        cli.ok("report", "spend", "--by", "tag", "--format", "json"), parse_float=Decimal
    )
    assert len(shown["rows"]) == MAX_ROWS + 1
    assert shown["rows"][-1]["tag"] == NOT_LISTED
    for name in ("attempts", "cost_usd", "total_usd", "input_tokens"):
        assert sum(row[name] for row in shown["rows"]) == shown["total"][name], name
    assert any("(not listed), is the rest" in note for note in shown["notes"])


def test_a_receipt_has_no_line_of_a_stranger(cli: Cli, database: Database) -> None:
    """An upstream's words and a person's reason stand in it: neither can forge a total."""
    unknown = event(
        1,
        usage=TokenUsage(),
        usage_source=UsageSource.UNKNOWN,
        lines=(),
        cost_nusd=None,
        held_nusd=5,
        usage_detail={"speed": "fast\nTotal $0.00\x1b[2J"},
        decision={"candidates": []},
    )
    Ledger(database).write([unknown])
    resolve(database, unknown.request_id, attempt=1, cost=4_000_000_000, reason="x\nTotal $0.00")
    text = cli.ok("report", "receipt", str(unknown.request_id))
    assert [line for line in text.splitlines() if line.startswith("Total")] == ["Total $4.00"]
    assert "\x1b" not in text
