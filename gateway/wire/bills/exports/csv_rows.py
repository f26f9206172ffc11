"""Reads the rows of a CSV file with a header, each with its line; memory stays flat."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from gateway.wire.bills.exports.mapping import ExportMapping
from gateway.wire.bills.exports.text import WrongExport, lines_of

MOST_COLUMNS = 2_000


@dataclass(frozen=True, slots=True)
class Row:
    """A row of a CSV file: its line, and its cells by column."""

    line: int
    cells: Mapping[str, str]

    def get(self, *names: str) -> str:
        """Return the first of some columns that the file has, empty if it has none of them."""
        for name in names:
            found = self.cells.get(name)
            if found is not None:
                return found
        return ""

    def has(self, name: str) -> bool:
        """Return True if the file has a column."""
        return name in self.cells


def rows_of(
    texts: Iterable[str], mapping: ExportMapping, *, is_loose: bool = False
) -> Iterator[Row]:
    """Yield the rows below the header. A mapped column goes by our name too.

    `is_loose`: names of columns are compared as words, so `lineItem/UsageAmount` is
    `line_item_usage_amount`. Raises `WrongExport` if the file is no CSV, or lacks a mapped column.
    """
    reader = csv.reader(lines_of(texts), strict=True)
    header: list[str] | None = None
    begin = 1
    try:
        for cells in reader:
            number, begin = begin, reader.line_num + 1
            if not any(cell.strip() for cell in cells):
                continue
            if header is None:
                header = _header(cells, number, mapping, is_loose=is_loose)
                continue
            if len(cells) != len(header):
                raise WrongExport(
                    number,
                    f"it has {len(cells)} cells, the header has {len(header)}. A number with a "
                    "comma needs no comma: write 1234.50",
                )
            yield Row(number, dict(zip(header, map(str.strip, cells), strict=True)))
    except csv.Error as broken:
        raise WrongExport(reader.line_num, f"it is no CSV: {broken}") from None


def column_word(name: str) -> str:
    """Return a column's name as lower-case words joined by `_`."""
    name = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name.strip())
    return re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_")


def _header(cells: list[str], number: int, mapping: ExportMapping, *, is_loose: bool) -> list[str]:
    """Return the names of the columns. Raises `WrongExport` if one stands there twice."""
    if len(cells) > MOST_COLUMNS:
        raise WrongExport(number, f"it has more than {MOST_COLUMNS:,} columns")
    names = [cell.strip() for cell in cells]
    ours = {theirs: our for our, theirs in mapping.columns.items()}
    missing = [theirs for theirs in ours if theirs not in names]
    if missing:
        raise WrongExport(number, f"there is no column {missing[0][:60]}, which the mapping names")
    found = [ours.get(name) or (column_word(name) if is_loose else name.lower()) for name in names]
    twice = sorted({name for name in found if name and found.count(name) > 1})
    if twice:
        raise WrongExport(number, f"column {twice[0][:60]} stands there twice")
    return found
