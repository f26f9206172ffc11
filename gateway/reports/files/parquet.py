"""Writes a report as Parquet: money and shares as exact decimals, moments as UTC timestamps.

The types depend on the columns' kinds alone, so each file of a report has the same schema. Texts
are kept as they are: a program reads the file, not a spreadsheet.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from decimal import ROUND_HALF_EVEN, Context, Decimal
from itertools import islice
from typing import Any, BinaryIO

from gateway.reports.json_and_csv import about_json, number_of
from gateway.reports.report import Cell, Column, ColumnKind, Export

# Amounts have at most 9 decimals and rates at most 12. Quotients have more: they are rounded.
DIGITS, DECIMALS = 38, 18
_SMALLEST = Decimal(1).scaleb(-DECIMALS)
_ROUNDING = Context(prec=DIGITS, rounding=ROUND_HALF_EVEN)
_BATCH = 10_000  # rows in memory


def write_parquet(export: Export, file: BinaryIO) -> None:
    """Write an export as Parquet, a batch of rows at a time.

    The file's metadata has the report's name, title, dataset, total, notes and `complete_until` as
    JSON under `tollgate`; a field's metadata has its `unit`.
    """
    import pyarrow  # 100 ms, and only this format needs it
    from pyarrow import parquet

    columns = export.report.columns
    schema = pyarrow.schema(
        [
            pyarrow.field(column.name, _type(pyarrow, column.kind), metadata={"unit": column.unit})
            for column in columns
        ],
        metadata={"tollgate": about_json(export.report)},
    )
    with parquet.ParquetWriter(file, schema, compression="zstd") as out:
        for rows in _batches(export.rows):
            arrays = [
                pyarrow.array([_value(row[place], column) for row in rows], field.type)
                for place, (column, field) in enumerate(zip(columns, schema, strict=True))
            ]
            out.write_table(pyarrow.Table.from_arrays(arrays, schema=schema))


def _batches(rows: Iterator[tuple[Cell, ...]]) -> Iterator[Sequence[tuple[Cell, ...]]]:
    """Yield the rows in batches."""
    while batch := list(islice(rows, _BATCH)):
        yield batch


def _type(pyarrow: Any, kind: ColumnKind) -> Any:
    """Return the Arrow type of a column's kind."""
    match kind:
        case ColumnKind.MONEY | ColumnKind.SHARE | ColumnKind.HOURS:
            return pyarrow.decimal128(DIGITS, DECIMALS)
        case ColumnKind.COUNT:
            return pyarrow.int64()
        case ColumnKind.SECONDS:
            return pyarrow.float64()
        case ColumnKind.DAY:
            return pyarrow.date32()
        case ColumnKind.TIME:
            return pyarrow.timestamp("us", tz="UTC")
        case ColumnKind.FLAG:
            return pyarrow.bool_()
        case ColumnKind.TEXT:
            return pyarrow.string()


def _value(cell: Cell, column: Column) -> object:
    """Return a cell as a value of its column's Arrow type; None stays unknown."""
    if cell is None:
        return None
    match column.kind:
        case ColumnKind.MONEY | ColumnKind.SHARE | ColumnKind.HOURS:
            return number_of(cell).quantize(_SMALLEST, context=_ROUNDING)
        case ColumnKind.SECONDS:
            return float(number_of(cell))
        case ColumnKind.TIME:
            assert isinstance(cell, datetime)
            return cell.astimezone(UTC)
        case ColumnKind.TEXT:
            return str(cell)
        case _:
            return cell
