"""Writes a report as an XLSX workbook for people: one sheet with its rows, and one about it.

A spreadsheet calculates with 15 digits. CSV, JSON and Parquet have every digit.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, date, datetime
from typing import Any, BinaryIO

from gateway.errors import BadUsage
from gateway.reports.json_and_csv import number_of, without_formula
from gateway.reports.report import Cell, Column, ColumnKind, Export, Report

MOST_ROWS = 1_048_575  # of a sheet, below the header
LONGEST_TEXT = 32_767  # of a cell
_FORMATS = {
    ColumnKind.COUNT: "#,##0",
    ColumnKind.MONEY: "#,##0.00#######",
    ColumnKind.SHARE: "0.00%",
    ColumnKind.SECONDS: "0.000###",
    ColumnKind.HOURS: "#,##0.00",
    ColumnKind.DAY: "yyyy-mm-dd",
    ColumnKind.TIME: "yyyy-mm-dd hh:mm:ss.000",
}
_WIDTHS = {ColumnKind.TIME: 24, ColumnKind.TEXT: 24}
_WIDTH, _WIDE = 16, 100
Put = Callable[[int, int, Cell], None]


def write_xlsx(export: Export, file: BinaryIO) -> None:
    """Write an export as a workbook, row by row. No cell is a formula.

    Raises `BadUsage` if the rows or a text do not fit into a sheet.
    """
    import xlsxwriter  # only this format needs it
    from xlsxwriter.exceptions import FileCreateError

    report, kept = export.report, _FileUntilError(file)
    workbook = xlsxwriter.Workbook(
        kept,
        {"constant_memory": True, "strings_to_formulas": False, "strings_to_urls": False},
    )
    # Without a date of its own the same report would give other bytes at each run.
    created = report.complete_until or datetime(1970, 1, 1, tzinfo=UTC)
    workbook.set_properties({"title": report.title, "created": _naive(created)})
    bold = workbook.add_format({"bold": True})
    sheet = workbook.add_worksheet("Report")
    sheet.freeze_panes(1, 0)
    writers = [_writer(workbook, sheet, column) for column in report.columns]
    for place, column in enumerate(report.columns):
        sheet.set_column(place, place, _WIDTHS.get(column.kind, _WIDTH))
        sheet.write_string(0, place, without_formula(column.name), bold)
    number = 0
    for number, row in enumerate(export.rows, 1):
        if number > MOST_ROWS:
            raise BadUsage(
                f"A sheet holds {MOST_ROWS:,} rows, and this report has more. Narrow it with "
                "--where or --limit, or write .csv or .parquet."
            )
        for place, (put, cell) in enumerate(zip(writers, row, strict=True)):
            if cell is not None:
                put(number, place, cell)
    if report.columns:
        sheet.autofilter(0, 0, number, len(report.columns) - 1)
    _write_about(workbook, report, bold)
    try:
        workbook.close()
    except FileCreateError as failed:  # an error of the library's own temporary files too
        raise OSError(*failed.args[0].args) from None
    if kept.error is not None:
        raise kept.error


class _FileUntilError:
    """A file that keeps its first error, and ignores all that follows. Python's ZIP writer would
    print a traceback when it is collected, after the error was explained.
    """

    def __init__(self, file: BinaryIO) -> None:
        self._file, self._at = file, 0
        self.error: OSError | None = None

    def write(self, data: bytes) -> int:
        """Write bytes."""
        self._do(self._file.write, data)
        return len(data)

    def seek(self, place: int, whence: int = 0) -> int:
        """Move to a place, and return it."""
        self._do(self._file.seek, place, whence)
        return self._at

    def tell(self) -> int:
        """Return the present place; after an error the last one."""
        return self._at

    def flush(self) -> None:
        """Write what is buffered."""
        self._do(self._file.flush)

    def _do(self, act: Callable[..., object], *arguments: object) -> None:
        """Do something unless there was an error."""
        if self.error is None:
            try:
                act(*arguments)
                self._at = self._file.tell()
            except OSError as problem:
                self.error = problem
            except ValueError:  # it is closed: the ZIP writer is being collected
                self.error = OSError("the file is closed")


def _write_about(workbook: Any, report: Report, bold: Any) -> None:
    """Add the sheet with the report's title, freshness, total and notes."""
    sheet = workbook.add_worksheet("About")
    sheet.set_column(0, 0, _WIDTHS[ColumnKind.TEXT])
    sheet.set_column(1, 1, _WIDE)
    text = Column(name="", unit="", kind=ColumnKind.TEXT)
    moment = Column(name="", unit="UTC", kind=ColumnKind.TIME)
    columns = {column.name: column for column in report.columns}
    lines: list[tuple[str, Column, Cell]] = [
        ("report", text, report.name),
        ("title", text, report.title),
        ("dataset", text, report.dataset),
        ("complete until", moment, report.complete_until),
        *((f"total {name}", columns.get(name, text), cell) for name, cell in report.total.items()),
        *((f"unit of {column.name}", text, column.unit) for column in report.columns),
        *(("note", text, note) for note in report.notes),
    ]
    for number, (label, column, cell) in enumerate(lines):
        sheet.write_string(number, 0, label, bold)
        if cell is not None:
            _writer(workbook, sheet, column)(number, 1, cell)


def _writer(workbook: Any, sheet: Any, column: Column) -> Put:
    """Return the function that writes one cell of a column; the cell is known."""
    if column.kind is ColumnKind.TEXT:
        return lambda row, place, cell: _put_text(sheet, row, place, without_formula(cell))
    if column.kind is ColumnKind.FLAG:
        return lambda row, place, cell: sheet.write_boolean(row, place, cell)
    shape = workbook.add_format({"num_format": _FORMATS[column.kind], "align": "right"})
    if column.kind in (ColumnKind.DAY, ColumnKind.TIME):
        return lambda row, place, cell: sheet.write_datetime(row, place, _naive(cell), shape)
    return lambda row, place, cell: sheet.write_number(row, place, float(number_of(cell)), shape)


def _put_text(sheet: Any, row: int, place: int, text: str) -> None:
    """Write a text cell. Raises `BadUsage` for one that would be cut off."""
    if len(text) > LONGEST_TEXT:
        raise BadUsage(
            f"A text of row {row:,} has {len(text):,} characters, and a cell holds "
            f"{LONGEST_TEXT:,}. Write .csv or .parquet."
        )
    sheet.write_string(row, place, text)


def _naive(cell: Cell) -> date | datetime:
    """Return a day, or a moment in UTC without its zone: a sheet knows none."""
    assert isinstance(cell, date)
    return cell.astimezone(UTC).replace(tzinfo=None) if isinstance(cell, datetime) else cell
