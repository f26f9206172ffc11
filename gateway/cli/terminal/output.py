"""Prints the results of commands: tables for people, exact JSON and CSV for programs, and notes on
standard error.
"""

from __future__ import annotations

import csv
import io
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Context, Decimal
from enum import StrEnum
from typing import Annotated, Any, Literal

import typer

from gateway.domain.money import format_usd
from gateway.domain.words import spreadsheet_text

FOLD_FROM = 40  # longer cells are prose
NARROW = 24  # a column of prose is at least as wide, however narrow the terminal
WIDE = 100_000  # without a terminal nothing is wrapped or cut: the reader may be a program


class Format(StrEnum):
    """The output format of a command: a table for people, JSON or CSV."""

    TABLE = "table"
    JSON = "json"
    CSV = "csv"


FormatOption = Annotated[
    Format, typer.Option("--format", "-f", help="How to print: table, json or csv.")
]


@dataclass(frozen=True, slots=True)
class Table:
    """A table for output: rows under named columns. Decimals are US dollars; None is unknown or
    absent.
    """

    columns: tuple[str, ...]
    rows: Sequence[tuple[Any, ...]]

    def records(self) -> list[dict[str, Any]]:
        """Return the rows as records by column name."""
        return [dict(zip(self.columns, row, strict=True)) for row in self.rows]


def show(table: Table, format: Format, *, empty: str) -> None:
    """Print a table in the chosen format; `empty` replaces a table without rows."""
    if format is Format.JSON:
        print_json(table.records())
    elif format is Format.CSV:
        write(csv_of(table))
    elif table.rows:
        write(
            table_text(
                table.columns,
                [_cell_texts(table.columns, row) for row in table.rows],
                _numeric(table),
            )
        )
    else:
        note(empty)


def show_record(record: Mapping[str, Any], format: Format) -> None:
    """Print one record: its fields below each other, or as one object or one row."""
    if format is Format.JSON:
        print_json(record)
    elif format is Format.CSV:
        write(csv_of(Table(tuple(record), [tuple(record.values())])))
    else:
        width = max(map(len, record))
        write(
            "".join(f"{name:<{width}}  {visible(_text(value))}\n" for name, value in record.items())
        )


def print_json(value: object) -> None:
    """Print JSON with plain decimals, digit by digit."""
    import msgspec

    write(msgspec.json.format(msgspec.json.encode(_plain(value)), indent=2).decode() + "\n")


def write(text: str) -> None:
    """Write text to standard output unchanged."""
    sys.stdout.write(text)
    sys.stdout.flush()


def note(text: str) -> None:
    """Print a remark on standard error, beside the data; it may hold words of a file or a
    server.
    """
    typer.echo("\n".join(map(visible, text.split("\n"))), err=True)


def table_text(
    columns: Sequence[str], rows: Sequence[Sequence[str]], is_numeric: Callable[[int], bool]
) -> str:
    """Lay out a table: a terminal folds long texts; elsewhere each row is one line without
    colour.
    """
    from rich.console import Console
    from rich.table import Table as RichTable
    from rich.text import Text

    is_terminal = sys.stdout.isatty()
    style = "bold" if is_terminal and "NO_COLOR" not in os.environ else ""
    table = RichTable(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style=style)
    widths = [
        max(map(len, (column, *(row[place] for row in rows))))
        for place, column in enumerate(columns)
    ]
    for place, column in enumerate(columns):
        justify: Literal["left", "right"] = "right" if is_numeric(place) else "left"
        table.add_column(
            Text(column), justify=justify, overflow="fold", no_wrap=widths[place] <= FOLD_FROM
        )
    for row in rows:
        table.add_row(*(Text(visible(cell)) for cell in row))
    # Ids and names are never folded or cut: they are there to be copied. A narrow terminal wraps
    # their rows.
    least = sum((NARROW if width > FOLD_FROM else width) + 2 for width in widths)
    console = Console(file=sys.stdout, highlight=False)
    console.width = max(console.width, least) if is_terminal else WIDE
    with console.capture() as capture:
        console.print(table)
    return "".join(f"{line.rstrip()}\n" for line in capture.get().splitlines())


def csv_text(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return columns and rows of ready texts as RFC 4180 text with a header row; nothing is marked
    as text.
    """
    out = io.StringIO()
    writer = csv.writer(out)
    writer.writerow(columns)
    writer.writerows(rows)
    return out.getvalue()


def rate_text(usd_per_mtok: Decimal) -> str:
    """Return a rate for people: at least two decimals, and up to six significant digits, because
    0.075 is not 0.08.
    """
    whole, _, decimals = f"{Context(prec=6).plus(usd_per_mtok):f}".partition(".")
    return f"${int(whole):,}.{decimals.rstrip('0'):0<2}"


def moment(time: datetime) -> str:
    """Return a time as text for people, in UTC, to the second."""
    return f"{time.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"


def csv_of(table: Table) -> str:
    """Return a table as RFC 4180 text; cells that a spreadsheet would run as formulas are marked
    as text.
    """
    return csv_text(table.columns, [[_csv_cell(cell) for cell in row] for row in table.rows])


def _csv_cell(cell: Any) -> str:
    """Return a cell as CSV text; a text that a spreadsheet would run as a formula is marked as
    text.
    """
    plain = _plain(cell)
    if plain is None:
        return ""
    if isinstance(plain, bool):
        return "true" if plain else "false"
    if isinstance(plain, list):
        return " ".join(map(str, plain))
    if isinstance(plain, str):
        return spreadsheet_text(plain)
    return bytes(plain).decode() if isinstance(cell, Decimal) else str(plain)


def _plain(value: Any) -> Any:
    """Return a cell as a value that JSON has; decimals become raw digits, never a float."""
    import msgspec

    match value:
        case Decimal():
            return msgspec.Raw(f"{value:f}".encode())
        case datetime():
            return value.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        case Mapping():
            return {str(name): _plain(part) for name, part in value.items()}
        case list() | tuple():
            return [_plain(part) for part in value]
        case _:
            return value


def _cell_texts(columns: Sequence[str], row: Sequence[Any]) -> list[str]:
    """Return a row's cells as text for people; rates keep up to six significant digits."""
    return [
        rate_text(cell)
        if isinstance(cell, Decimal) and column.endswith("_per_mtok")
        else _text(cell)
        for column, cell in zip(columns, row, strict=True)
    ]


def _text(cell: Any) -> str:
    """Return one cell as text for people."""
    match cell:
        case None:
            return "—"
        case bool():
            return "yes" if cell else "no"
        case Decimal():
            return format_usd(cell)
        case datetime():
            return moment(cell)
        case list() | tuple():
            return ", ".join(map(str, cell)) or "—"
        case Mapping():
            return "; ".join(f"{name}: {part}" for name, part in cell.items()) or "—"
        case _:
            return str(cell)


def visible(text: str) -> str:
    """Return the text without characters that would move the cursor or colour the terminal."""
    return "".join(letter if letter.isprintable() else "?" for letter in text)


def _numeric(table: Table) -> Callable[[int], bool]:
    """Return a function that is True for the position of a column with only numbers."""

    def is_numeric(position: int) -> bool:
        cells = [row[position] for row in table.rows if row[position] is not None]
        return bool(cells) and all(
            isinstance(c, (int, float, Decimal)) and not isinstance(c, bool) for c in cells
        )

    return is_numeric
