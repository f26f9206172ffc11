"""Importing a bill: each day counts once, and a file with a mistake changes nothing."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from gateway.storage.ledger.ledger import Ledger
from gateway.storage.postgres.database import Database
from tests.cli.conftest import Cli, Ran
from tests.invoices.generator import SHAPES, Call, make_month
from tests.invoices.ledger import event_of

NOON = datetime(2026, 10, 5, 12, tzinfo=UTC)
TOKENS = {"input": 0, "cached": 0, "output": 250}

FIRST_DAY = re.compile(r"\d{4}-\d\d-\d\d")
HEADER = "day,account,model,token_kind,quantity,amount\n"
FIRST = HEADER + "2026-10-01,a-1,m,output,10,0.50\n2026-10-03,a-1,m,output,20,1.00\n"


def imported(cli: Cli, path: Path, *more: str, kind: str = "csv") -> Ran:
    """Import a file as a bill of openai's."""
    return cli(
        *("reconcile", "import", str(path), "--provider", "openai", "--kind", kind),
        *("--format", "json", *more),
    )


def record(ran: Ran) -> Any:
    """Return the record that an import prints."""
    assert ran.code == 0, ran
    return json.loads(ran.out, parse_float=Decimal)


def stored(database: Database) -> list[tuple[Any, ...]]:
    """Return the lines that count."""
    with database.begin() as connection:
        found = connection.exec_driver_sql(
            "SELECT account, kind, day::text, model, quantity, amount_usd FROM "
            "finance.provider_bills ORDER BY 1, 2, 3, 4, 5, 6"
        )
        return [tuple(row) for row in found]


def test_a_file_counts_once_and_a_newer_one_replaces_its_days(
    cli: Cli, database: Database, tmp_path: Path
) -> None:
    """The same file twice would double the bill."""
    path = tmp_path / "bill.csv"
    path.write_text(FIRST)
    dry = record(imported(cli, path, "--dry-run"))
    assert (dry["import_id"], dry["rows"], dry["duplicates"]) == (None, 2, 0)
    assert stored(database) == []
    first = record(imported(cli, path))
    assert first["import_id"]
    assert (first["first_day"], first["last_day"]) == ("2026-10-01", "2026-10-03")
    assert first["amount_usd"] == Decimal("1.5")
    again = record(imported(cli, path))
    assert (again["import_id"], again["rows"], again["duplicates"]) == (None, 2, 2)
    newer = HEADER + "2026-10-03,a-1,m,input,7,0.20\n2026-10-04,a-2,m,output,1,0.05\n"
    path.write_text(newer)
    assert record(imported(cli, path))["duplicates"] == 0
    # The third is replaced whole, the first stays, and another account is another bill.
    assert stored(database) == [
        ("a-1", "csv", "2026-10-01", "m", 10, Decimal("0.5")),
        ("a-1", "csv", "2026-10-03", "m", 7, Decimal("0.2")),
        ("a-2", "csv", "2026-10-04", "m", 1, Decimal("0.05")),
    ]


def test_a_mapping_names_their_columns_and_models(
    cli: Cli, database: Database, tmp_path: Path
) -> None:
    """Their names stay out of the ledger."""
    path, mapping = tmp_path / "theirs.csv", tmp_path / "map.yaml"
    path.write_text("Date;x,Cost,Model,Art,Menge\n2026-10-02,1.25,M Large,output,5\n")
    mapping.write_text(
        "day: Date;x\namount: Cost\nmodel: Model\ntoken_kind: Art\nquantity: Menge\n"
        "models: {M Large: m-large}\n"
    )
    more = ("--mapping", str(mapping), "--account", "a-9")
    assert record(imported(cli, path, *more))["rows"] == 1
    assert stored(database) == [("a-9", "csv", "2026-10-02", "m-large", 5, Decimal("1.25"))]
    mapping.write_text("day: Date;x\nprice: Cost\n")
    ran = imported(cli, path, *more)
    assert (ran.code, "line 2" in ran.err, "price" in ran.err) == (1, True, True)


PAGE = '{"object":"page","data":[\n{"start_time":1790812800,"results":[%s]}],"has_more":%s}'
RESULT = '{"input_tokens":5,"output_tokens":1,"model":"m"}'
HOSTILE: dict[str, tuple[str, str | bytes, int, str]] = {
    "a page that is not the last": ("openai-usage", PAGE % (RESULT, "true"), 2, "has_more"),
    "a page cut short": ("openai-usage", (PAGE % (RESULT, "false"))[:70], 2, "too early"),
    "an empty file": ("openai-usage", "", 1, "too early"),
    "a list for a page": ("openai-usage", "\n[]", 2, "no object"),
    "an object for a list": ("anthropic-usage", '{"data":{}}', 1, "no list"),
    "a list for a bucket": ("anthropic-cost", '{"data":[\n[]]}', 2, "no object"),
    "a list for a result": ("openai-usage", PAGE % ("\n[1]", "false"), 3, "no object"),
    "a text for an amount": (
        "openai-costs",
        PAGE % ('{"amount":"5","line_item":"m, input"}', "false"),
        2,
        "amount",
    ),
    "NaN": ("openai-usage", PAGE % ('{"input_tokens":NaN,"model":"m"}', "false"), 2, "NaN"),
    "a huge number": (
        "openai-usage",
        PAGE % ('{"input_tokens":1e50,"output_tokens":1,"model":"m"}', "false"),
        2,
        "at most",
    ),
    "a number of many digits": (
        "openai-usage",
        PAGE % (f'{{"input_tokens":{"9" * 5000},"model":"m"}}', "false"),
        2,
        "digits",
    ),
    "a negative count": (
        "openai-usage",
        PAGE % ('{"input_tokens":-5,"output_tokens":1,"model":"m"}', "false"),
        2,
        "counted from 0",
    ),
    "a member twice": (
        "openai-usage",
        PAGE % ('{"output_tokens":1,"output_tokens":2,"model":"m"}', "false"),
        2,
        "twice",
    ),
    "data twice": ("openai-usage", '{"data":[],\n"data":[]}', 2, "twice"),
    "nested without end": ("openai-usage", '{"data":[{"x":' + "[" * 200_000, 1, ""),
    "another text behind it": ("openai-usage", PAGE % (RESULT, "false") + "\n{}", 3, "follows"),
    "UTF-16": ("csv", FIRST.encode("utf-16"), 1, "UTF-16"),
    "Latin-1": ("csv", FIRST.encode() + b"2026-10-04,K\xf6ln,m,output,1,1\n", 4, "UTF-8"),
    "a workbook": ("csv", b"PK\x03\x04", 1, "workbook"),
    "a formula": ("csv", FIRST + "2026-10-04,a,=1+1,output,1,1\n", 4, "formula"),
    "NaN in a cell": ("csv", FIRST + "2026-10-04,a,m,output,1,NaN\n", 4, "amount"),
    "a decimal comma": ("csv", FIRST + '2026-10-04,a,m,output,1,"1,50"\n', 4, "decimal point"),
    "a row too short": ("csv", FIRST + "2026-10-04,a,m\n", 4, "cells"),
    "no day": ("csv", FIRST + "yesterday,a,m,output,1,1\n", 4, "day"),
    "another currency": ("csv", "day,amount,currency\n2026-10-04,1,EUR\n", 2, "EUR"),
    "a column twice": ("csv", "day,day,amount\n", 1, "twice"),
    "no column of ours": ("csv", "a,b\n1,2\n", 2, "header"),
    "an endless line": ("csv", "day,amount\n" + "x" * 2_000_000, 2, "longer"),
    "an open quote": ("csv", FIRST + '2026-10-04,"a,m\n', 4, "CSV"),
    "a header alone": ("csv", HEADER, 1, "no line"),
    "not daily": (
        "openai-usage",
        '{"data":[{"start_time":1790812800,"end_time":1791417600,"results":[]}]}',
        1,
        "1d",
    ),
    "costs without items": (
        "openai-costs",
        PAGE % ('{"amount":{"value":5,"currency":"usd"},"line_item":null}', "false"),
        2,
        "group_by",
    ),
    "no report of AWS": ("aws-cur", "a,b\n1,2\n", 2, "Cost and Usage Report"),
    "no export of Google": ("gcp-billing", FIRST.replace("day", "x"), 2, "billing export"),
    "no FOCUS": ("focus", FIRST.replace("day", "x"), 2, "FOCUS"),
}


def test_a_file_with_a_mistake_changes_nothing(
    cli: Cli, database: Database, tmp_path: Path
) -> None:
    """Half of a bill would look like a difference."""
    path = tmp_path / "bill"
    path.write_text(FIRST)
    imported(cli, path)
    before = stored(database)
    for name, (kind, content, line, finding) in HOSTILE.items():
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        ran = imported(cli, path, "--account", "a-1", kind=kind)
        assert ran.code == 1, (name, ran)
        assert f"line {line}: " in ran.err, (name, ran.err)
        assert finding in ran.err, (name, ran.err)
        assert "nothing was imported" in ran.err, name
        assert "Traceback" not in ran.err, name
    assert stored(database) == before


@pytest.mark.parametrize("kind", ["csv", "focus", "aws-cur", "gcp-billing"])
def test_an_export_of_each_kind_counts_once(
    cli: Cli, database: Database, tmp_path: Path, kind: str
) -> None:
    """The same file twice, a newer export of one day, and a broken one, as clouds export them."""
    month = make_month(SHAPES.index(kind))
    path, mapping = tmp_path / "bill.csv", tmp_path / "map.yaml"
    mapping.write_text(month.mapping or "models: {}\n")
    text = month.files[kind]
    more = ("--account", "org-77", "--mapping", str(mapping))
    path.write_text(text)
    first = record(imported(cli, path, *more, kind=kind))
    before = stored(database)
    again = record(imported(cli, path, *more, kind=kind))
    assert (again["import_id"], again["duplicates"]) == (None, first["rows"])

    header, *lines = text.splitlines()
    day = before[-1][2]
    own = [line for line in lines if FIRST_DAY.findall(line)[0] == day]
    broken = [own[0], own[1].replace(day, "2026-13-99"), *own[2:]]
    path.write_text("\n".join((header, *broken)) + "\n")
    ran = imported(cli, path, *more, kind=kind)
    assert (ran.code, "line 3: " in ran.err, "nothing was imported" in ran.err) == (1, True, True)
    assert stored(database) == before

    path.write_text("\n".join((header, *own[1:])) + "\n")
    newer = record(imported(cli, path, *more, kind=kind))
    assert newer["import_id"]
    assert newer["duplicates"] == 0
    assert (newer["first_day"], newer["last_day"]) == (day, day)
    after = stored(database)
    assert len(after) == len(before) - 1
    assert [row for row in after if row[2] != day] == [row for row in before if row[2] != day]


def test_costs_alone_leave_a_difference_unexplained(
    cli: Cli, database: Database, tmp_path: Path
) -> None:
    """Without quantities it could be any cause: the command says so and exits 1."""
    Ledger(database).write([event_of(1, Call("steady-1", NOON, 1.0, dict(TOKENS)), "openai")])
    path = tmp_path / "costs.csv"
    path.write_text("day,account,model,token_kind,amount\n2026-10-05,a-1,steady-1,output,7.00\n")
    record(imported(cli, path))
    show = ("reconcile", "show", "--provider", "openai", "--month", "2026-10")
    ran = cli(*show, "--format", "json")
    assert ran.code == 1
    found = json.loads(ran.out, parse_float=Decimal)
    assert found["total"]["unexplained_usd"] == Decimal("6.9975")
    (row,) = (one for one in found["rows"] if one["token_kind"] == "output")
    assert (row["cause"], row["billed_quantity"]) == ("none", None)
    assert "Unexplained: 1 row(s)" in ran.err
    assert cli(*show).code == 1
    assert "none" in cli(*show, "--format", "csv").out
    empty = cli("reconcile", "show", "--provider", "groq", "--month", "2026-10")
    assert (empty.code, "No bill of groq" in empty.err) == (0, True)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("--provider", "acme", "--kind", "csv"), "acme"),
        (("--provider", "openai", "--kind", "pdf"), "pdf"),
        (("--provider", "openai", "--kind", "csv", "--mapping", "/no/such"), "/no/such"),
    ],
)
def test_wrong_usage_exits_2(
    cli: Cli, tmp_path: Path, arguments: tuple[str, ...], named: str
) -> None:
    """The message names the option."""
    path = tmp_path / "bill.csv"
    path.write_text(FIRST)
    ran = cli("reconcile", "import", str(path), *arguments)
    assert ran.code == 2
    assert named in ran.err
