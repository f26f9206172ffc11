"""Writes a report to the file of `--out`, or row by row to standard output, with progress."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Annotated

import typer

from gateway.cli.terminal.output import Format, note, show_record, write
from gateway.cli.terminal.replaced_file import replaced_file
from gateway.errors import BadUsage
from gateway.reports import csv_lines, file_writer, json_pieces

if TYPE_CHECKING:
    from gateway.reports import Cell, Export

PROGRESS_EVERY_S, ROWS_A_LOOK = 2.0, 1_000

OutOption = Annotated[
    Path | None,
    typer.Option(
        "--out", metavar="FILE", help="Write a file: .csv, .json, .parquet or .xlsx, by its name."
    ),
]


def require_writable(out: Path) -> None:
    """Raise `BadUsage` before a long question if its file cannot be written."""
    file_writer(out)
    if not out.resolve().parent.is_dir():
        raise BadUsage(f"There is no folder {out.parent}. Make it, or name another file.")


def write_file(export: Export, out: Path, format: Format) -> None:
    """Write an export to a file in one step, and print its path, number of rows and SHA-256."""
    rows = _Counted(rows=export.rows)
    with replaced_file(out) as file:
        file_writer(out)(replace(export, rows=iter(rows)), file)
        file.flush()
        with open(file.name, "rb") as written:
            digest = hashlib.file_digest(written, "sha256").hexdigest()
    show_record({"path": str(out), "rows": rows.number, "sha256": digest}, format)


def print_export(export: Export, format: Format) -> None:
    """Print an export as JSON or CSV row by row: a month may have millions of rows."""
    is_json = format is Format.JSON
    counted = replace(export, rows=iter(_Counted(rows=export.rows)))
    for piece in json_pieces(counted) if is_json else csv_lines(counted):
        sys.stdout.write(piece)
    write("\n" if is_json else "")


@dataclass(slots=True, kw_only=True)
class _Counted:
    """Rows that count themselves as they are read, and print progress now and then."""

    rows: Iterator[tuple[Cell, ...]]
    number: int = 0

    def __iter__(self) -> Iterator[tuple[Cell, ...]]:
        """Yield the rows."""
        printed_s = monotonic()
        for row in self.rows:
            self.number += 1
            yield row
            if self.number % ROWS_A_LOOK == 0 and monotonic() - printed_s >= PROGRESS_EVERY_S:
                printed_s = monotonic()
                note(f"{self.number:,} rows written.")
