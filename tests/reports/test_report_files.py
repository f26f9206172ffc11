"""The files of `--out`: one report in four formats, equal cell by cell."""

from __future__ import annotations

import csv
import json
import zipfile
from dataclasses import replace
from datetime import UTC, date, datetime
from decimal import Decimal
from io import BytesIO
from itertools import repeat
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from pyarrow import decimal128, parquet, timestamp

from gateway.errors import BadUsage
from gateway.reports.files.report_file import file_writer
from gateway.reports.json_and_csv import to_json
from gateway.reports.report import Cell, Column, ColumnKind, Export, Report

MOMENT = datetime(2026, 11, 20, 13, 5, 2, 123_000, tzinfo=UTC)
REPORT = Report(
    name="spend",
    title="Spend",
    dataset="real",
    columns=(
        Column(name="team", unit="", kind=ColumnKind.TEXT),
        Column(name="attempts", unit="attempts", kind=ColumnKind.COUNT),
        Column(name="cost_usd", unit="USD", kind=ColumnKind.MONEY),
        Column(name="share", unit="share", kind=ColumnKind.SHARE),
        Column(name="ttft_s", unit="s", kind=ColumnKind.SECONDS),
        Column(name="gpu_hours", unit="hours", kind=ColumnKind.HOURS),
        Column(name="day", unit="UTC", kind=ColumnKind.DAY),
        Column(name="occurred_at", unit="UTC", kind=ColumnKind.TIME),
        Column(name="streamed", unit="", kind=ColumnKind.FLAG),
    ),
    rows=(
        (
            '=HYPERLINK("http://evil")',
            2**62,
            Decimal("123456789012.000000001"),
            Decimal("0.333333"),
            0.1234567,
            Decimal("1.5"),
            date(2026, 11, 20),
            MOMENT,
            True,
        ),
        ('チーム\n"q"', 0, Decimal("-0.000000001"), Decimal(0), 0.0, Decimal(0), None, None, False),
        (None, None, None, None, None, None, None, None, None),
    ),
    total={"attempts": 2**62, "cost_usd": Decimal("123456789012")},
    complete_until=MOMENT,
    notes=("-1 is a note",),
)


def written(name: str, report: Report = REPORT) -> bytes:
    """Return the file that a report is written to."""
    file = BytesIO()
    file_writer(Path(name))(Export(report=report, rows=iter(report.rows)), file)
    return file.getvalue()


def sheets(content: bytes) -> list[list[list[tuple[str, str]]]]:
    """Return a workbook's cells as (type, text), sheet by sheet, read without our library."""
    space = "{http://schemas.openxmlformats.org/spreadsheetml/2006/main}"
    found = []
    with zipfile.ZipFile(BytesIO(content)) as book:
        shared = (
            [
                "".join(item.itertext())
                for item in ElementTree.fromstring(book.read("xl/sharedStrings.xml"))
            ]
            if "xl/sharedStrings.xml" in book.namelist()
            else []
        )
        for number in (1, 2):
            root = ElementTree.fromstring(book.read(f"xl/worksheets/sheet{number}.xml"))
            assert root.find(f".//{space}f") is None, "no cell is a formula"
            rows = []
            for row in root.iter(f"{space}row"):
                cells = []
                for cell in row:
                    kind, text = cell.get("t", "n"), "".join(cell.itertext())
                    cells.append(("s", shared[int(text)]) if kind == "s" else (kind, text))
                rows.append(cells)
            found.append(rows)
    return found


def test_csv_and_json_are_those_that_the_command_prints() -> None:
    """One definition: a file may not differ from the terminal."""
    assert written("a.json").decode() == to_json(REPORT) + "\n"
    first = next(csv.DictReader(written("a.csv").decode().splitlines()))
    assert first["team"] == '\'=HYPERLINK("http://evil")'
    assert first["cost_usd"] == "123456789012.000000001"


def test_parquet_keeps_every_digit_and_byte() -> None:
    """A warehouse adds these up: a float would drift, and a mark would make another team."""
    table = parquet.read_table(BytesIO(written("a.PARQUET")))
    names = [column.name for column in REPORT.columns]
    assert table.column_names == names
    assert table.schema.field("cost_usd").type == decimal128(38, 18)
    assert table.schema.field("occurred_at").type == timestamp("us", tz="UTC")
    assert table.schema.field("ttft_s").metadata == {b"unit": b"s"}
    as_read = [tuple(row.values()) for row in table.to_pylist()]
    wanted = [list(row) for row in REPORT.rows]
    wanted[0][4] = 0.123457  # to the microsecond, as in JSON
    assert as_read == [tuple(row) for row in wanted]
    about = json.loads(table.schema.metadata[b"tollgate"], parse_float=Decimal)
    assert about["total"]["attempts"] == 2**62
    assert about["notes"] == ["-1 is a note"]


def test_a_quotient_of_too_many_digits_is_rounded_half_even() -> None:
    """Postgres gives a quotient 20 digits and more: that may not stop an export."""
    report = changed("share", Decimal(1) / Decimal(3))
    (share,) = parquet.read_table(BytesIO(written("a.parquet", report)))["share"].to_pylist()
    assert share == Decimal("0.333333333333333333")


def test_a_file_without_rows_keeps_its_columns() -> None:
    """An empty month must stay readable for the program behind it."""
    empty = changed("share", None, rows=0)
    assert parquet.read_table(BytesIO(written("a.parquet", empty))).column_names == ["share"]
    assert sheets(written("a.xlsx", empty))[0] == [[("inlineStr", "share")]]


def test_a_workbook_has_the_same_cells_and_no_formula() -> None:
    """A team called `=HYPERLINK(...)` stays a name, also if the sheet is saved as CSV later."""
    rows, about = sheets(written("a.xlsx"))
    assert [text for _, text in rows[0]] == [column.name for column in REPORT.columns]
    assert rows[1][0] == ("inlineStr", '\'=HYPERLINK("http://evil")')
    assert Decimal(rows[1][2][1]) == Decimal("123456789012")  # 15 digits
    assert float(rows[1][4][1]) == 0.123457
    assert float(rows[1][7][1]) == pytest.approx(46346.54516346065)  # days since 1899-12-30
    assert (rows[1][-1], rows[2][-1]) == (("b", "1"), ("b", "0"))
    assert rows[2][0] == ("inlineStr", 'チーム\n"q"')
    assert len(rows) == 3, "a row of unknown cells has no cell"
    assert [("inlineStr", "note"), ("inlineStr", "'-1 is a note")] in about


def test_the_same_report_is_the_same_bytes() -> None:
    """A file that is made again can be compared with the first one."""
    for name in ("a.csv", "a.json", "a.parquet", "a.xlsx"):
        assert written(name) == written(name), name


def test_rows_and_texts_that_do_not_fit_are_refused() -> None:
    """A sheet would drop them without a word."""
    with pytest.raises(BadUsage, match=r"cell holds 32,767. Write .csv or .parquet"):
        written("a.xlsx", changed("share", "x" * 32_768, kind=ColumnKind.TEXT))
    bare = replace(REPORT, columns=(), rows=())  # a million rows without a cell are quick
    with pytest.raises(BadUsage, match="A sheet holds 1,048,575 rows"):
        file_writer(Path("a.xlsx"))(Export(report=bare, rows=repeat((), 1_048_576)), BytesIO())


@pytest.mark.parametrize("name", ["a", "a.xls", "a.gz", ".parquet"])
def test_another_suffix_names_the_formats(name: str) -> None:
    """The reader cannot guess which formats there are."""
    with pytest.raises(BadUsage, match=r"\.csv, \.json, \.parquet, \.xlsx"):
        file_writer(Path(name))


def changed(name: str, cell: Cell, *, rows: int = 1, kind: Any = ColumnKind.SHARE) -> Report:
    """Return a report with one column and the same cell in each row."""
    return Report(
        name="spend",
        title="Spend",
        dataset="real",
        columns=(Column(name=name, unit="", kind=kind),),
        rows=((cell,),) * rows,
        total={},
        complete_until=None,
        notes=(),
    )
