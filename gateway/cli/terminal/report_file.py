"""Writes a report to the file of `--out`, or row by row to standard output, with progress."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gateway.cli.terminal.output import Format, show_record, write
from gateway.cli.terminal.progress import ProgressStep
from gateway.cli.terminal.replaced_file import replaced_file
from gateway.errors import BadUsage
from gateway.reports.files.report_file import file_writer
from gateway.reports.json_and_csv import csv_lines, json_pieces

if TYPE_CHECKING:
    from gateway.reports.report import Cell, Export

QUIET_S, ROWS_A_LOOK = 2.0, 1_000

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
    show_record(save(export, out), format)


def save(export: Export, out: Path, *, expected: int | None = None) -> dict[str, object]:
    """Write an export to a file in one step, and return its path, number of rows and SHA-256.

    `expected` is the number of its rows, if known, for the share of the progress line.
    """
    with _counted(export, expected) as (rows, counted), replaced_file(out) as file:
        file_writer(out)(counted, file)
        file.flush()
        with open(file.name, "rb") as written:
            digest = hashlib.file_digest(written, "sha256").hexdigest()
    return {"path": str(out), "rows": rows.number, "sha256": digest}


def pour(export: Export, *, expected: int | None = None) -> dict[str, object]:
    """Write an export as CSV to standard output, and return the members of `save`, with the path
    `-`.
    """
    digest = hashlib.sha256()
    with _counted(export, expected) as (rows, counted):
        for line in csv_lines(counted):
            digest.update(line.encode())
            sys.stdout.write(line)
    sys.stdout.flush()
    return {"path": "-", "rows": rows.number, "sha256": digest.hexdigest()}


def print_export(export: Export, format: Format) -> None:
    """Print an export as JSON or CSV row by row: a month may have millions of rows."""
    is_json = format is Format.JSON
    with _counted(export, None) as (_, counted):
        for piece in json_pieces(counted) if is_json else csv_lines(counted):
            sys.stdout.write(piece)
    write("\n" if is_json else "")


@contextmanager
def _counted(export: Export, expected: int | None) -> Iterator[tuple[_Counted, Export]]:
    """Return an export whose rows are counted and shown on a progress line."""
    title = f"Writing {export.report.name}"
    with ProgressStep(title, quiet_s=QUIET_S, out=sys.stderr) as step:
        rows = _Counted(rows=export.rows, step=step, expected=expected)
        yield rows, replace(export, rows=iter(rows))


@dataclass(slots=True, kw_only=True)
class _Counted:
    """Rows that count themselves as they are read, and move a progress line."""

    rows: Iterator[tuple[Cell, ...]]
    step: ProgressStep
    expected: int | None
    number: int = 0

    def __iter__(self) -> Iterator[tuple[Cell, ...]]:
        """Yield the rows."""
        for row in self.rows:
            self.number += 1
            yield row
            if self.number % ROWS_A_LOOK == 0:
                share = self.number / self.expected if self.expected else None
                self.step.advance(f"{self.number:,} rows", done=share)
