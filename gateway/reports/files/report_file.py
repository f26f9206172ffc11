"""Lists the formats of a report's file by the suffix of its name, and writes an export in one of
them; opens no file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from gzip import GzipFile
from importlib.util import find_spec
from pathlib import Path
from typing import BinaryIO

from gateway.errors import BadUsage
from gateway.reports.files.parquet import write_parquet
from gateway.reports.files.xlsx import write_xlsx
from gateway.reports.json_and_csv import csv_lines, json_pieces
from gateway.reports.report import Export

FileWriter = Callable[[Export, BinaryIO], None]


def file_writer(path: Path) -> FileWriter:
    """Return the function that writes a file with this name.

    Raises `BadUsage` for another suffix than the five, or without the library of the format.
    """
    suffix = ".csv.gz" if path.name.lower().endswith(".csv.gz") else path.suffix.lower()
    if suffix not in _WRITERS:
        raise BadUsage(
            f"'{path.name}' has no known format. Let the name end in one of: {', '.join(_WRITERS)}."
        )
    library = _LIBRARIES.get(suffix)
    if library is not None and find_spec(library) is None:
        others = ", ".join(one for one in _WRITERS if one not in _LIBRARIES)
        raise BadUsage(
            f"A {suffix} file needs the library {library}, which is not installed here. "
            f"{_INSTALL[library]}, or write one of: {others}."
        )
    return _WRITERS[suffix]


def _write_json(export: Export, file: BinaryIO) -> None:
    """Write an export as the JSON that the command prints."""
    _write_text(json_pieces(export), file)
    file.write(b"\n")


def _write_csv(export: Export, file: BinaryIO) -> None:
    """Write an export as the CSV that the command prints."""
    _write_text(csv_lines(export), file)


def _write_csv_gz(export: Export, file: BinaryIO) -> None:
    """Write an export as compressed CSV, without the time and name that would change its bytes."""
    with GzipFile(filename="", mode="wb", fileobj=file, mtime=0) as compressed:
        _write_text(csv_lines(export), compressed)


def _write_text(pieces: Iterator[str], file: BinaryIO | GzipFile) -> None:
    """Write pieces of text one by one, so that any number of rows fits into memory."""
    for piece in pieces:
        file.write(piece.encode())


_WRITERS: Mapping[str, FileWriter] = {
    ".csv": _write_csv,
    ".json": _write_json,
    ".parquet": write_parquet,
    ".xlsx": write_xlsx,
    ".csv.gz": _write_csv_gz,
}
_LIBRARIES = {".parquet": "pyarrow", ".xlsx": "xlsxwriter"}
_INSTALL = {
    "pyarrow": "It comes with the dashboard: pip install 'tollgate[dashboard]'",
    "xlsxwriter": "Install it: pip install xlsxwriter",
}
