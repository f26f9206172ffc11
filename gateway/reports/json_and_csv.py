"""Formats reports, receipts and usage figures as JSON and CSV texts, with every digit of money;
writes no file.

Money and rates are written with every digit; the CLI has tables for people.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from io import StringIO
from typing import Any

import msgspec

from gateway.domain.money import plain_usd
from gateway.domain.pricing.pricing import Line
from gateway.domain.words import spreadsheet_text
from gateway.reports.plain_decimal import plain_decimal
from gateway.reports.questions.usage_me import OwnUsage
from gateway.reports.receipts.attempt import AttemptReceipt
from gateway.reports.receipts.receipt import Receipt, arithmetic
from gateway.reports.report import Cell, Column, ColumnKind, Export, Notation, Report

LATENCY_DIGITS = 6  # a microsecond, the clock's resolution


def to_json(report: Report) -> str:
    """Return a report as JSON, `{"columns": [{"name", "unit"}], "rows": [{…}], "total": {…}, …}`;
    unknown is null.
    """
    return "".join(json_pieces(Export(report=report, rows=iter(report.lines))))


def json_pieces(export: Export) -> Iterator[str]:
    """Yield an exported report as JSON, in the form of `to_json`, row by row."""
    report = export.report
    head = {
        "report": report.name,
        "title": report.title,
        "dataset": report.dataset,
        "columns": [{"name": column.name, "unit": column.unit} for column in report.columns],
    }
    yield _json_text(head).removesuffix("}") + ',"rows":['
    names, separator = [column.name for column in report.columns], ""
    for row in export.rows:
        yield separator + _json_text(dict(zip(names, row, strict=True)))
        separator = ","
    yield "]," + _json_text(_rest_of(report)).removeprefix("{")


def about_json(report: Report) -> str:
    """Return everything of a report but its columns and rows as JSON."""
    head = {"report": report.name, "title": report.title, "dataset": report.dataset}
    return _json_text(head | _rest_of(report))


def _rest_of(report: Report) -> dict[str, object]:
    """Return the part of a report's JSON that follows the rows."""
    return {
        "total": dict(report.total),
        "complete_until": report.complete_until,
        "notes": report.notes,
    }


def receipt_to_json(receipt: Receipt) -> str:
    """Return a receipt as JSON, with the arithmetic of every line."""
    return _json_text(receipt)


def usage_me_to_json(usage: OwnUsage, *, limits: Sequence[Mapping[str, object]] = ()) -> str:
    """Return the body of `GET /v1/usage/me`; only the gateway knows the `limits` beside the
    budgets.
    """
    return _json_text(_as_json(usage) | {"limits": limits})


def to_csv(report: Report) -> str:
    """Return a report as CSV (RFC 4180) with a header row.

    Unknown is an empty cell; text cannot become a formula.
    """
    return "".join(csv_lines(Export(report=report, rows=iter(report.lines))))


def csv_lines(export: Export) -> Iterator[str]:
    """Yield an exported report as CSV, in the form of `to_csv`, line by line."""
    columns = export.report.columns
    yield _csv_line([column.name for column in columns])
    for row in export.rows:
        yield _csv_line(
            [
                without_formula(cell) if column.kind is ColumnKind.TEXT else _csv_cell(cell, column)
                for column, cell in zip(columns, row, strict=True)
            ]
        )


def _csv_line(cells: Sequence[str]) -> str:
    """Return cells as one line of CSV, with its line end."""
    out = StringIO()
    csv.writer(out).writerow(cells)
    return out.getvalue()


def _csv_cell(cell: Cell, column: Column) -> str:
    """Return a report's cell as text for CSV, in its column's notation: plain decimals and ISO
    dates, empty if it is unknown.
    """
    if column.notation is Notation.FOCUS and isinstance(cell, Decimal):
        text = plain_decimal(cell)
        return text if "." in text else f"{text}.0"
    match cell:
        case None:
            return ""
        case bool():
            return "true" if cell else "false"
        case Decimal() | float():
            return plain_decimal(number_of(cell))
        case datetime():
            return _moment(cell, "seconds" if column.notation is Notation.FOCUS else "milliseconds")
        case date():
            return cell.isoformat()
        case _:
            return str(cell)


def number_of(cell: Cell) -> Decimal:
    """Return a number's cell as it is written: with every digit, or a time to the microsecond."""
    assert isinstance(cell, Decimal | float | int)
    return Decimal(repr(round(cell, LATENCY_DIGITS))) if isinstance(cell, float) else Decimal(cell)


def without_formula(cell: Cell) -> str:
    """Return a text cell, with an apostrophe before one that a spreadsheet would calculate."""
    return "" if cell is None else spreadsheet_text(str(cell))


def _json_text(value: object) -> str:
    """Return a report's value as JSON text, with every digit of money."""
    return msgspec.json.encode(_as_json(value)).decode()


def _as_json(value: Any) -> Any:
    """Return a report's value as plain JSON values; numbers that must stay exact become raw
    text.
    """
    match value:
        case Decimal():
            return msgspec.Raw(plain_decimal(value).encode())
        case float():
            return round(value, LATENCY_DIGITS)
        case datetime():
            return _moment(value)
        case Line():
            return {
                "kind": value.kind.value,
                "tokens": value.tokens,
                "usd_per_mtok": _as_json(value.usd_per_mtok),
                "cost_usd": msgspec.Raw(plain_usd(value.cost_nusd).encode()),
                "arithmetic": arithmetic(value),
            }
        case AttemptReceipt():
            return _as_json(value.members())
        case dict():
            return {name: _as_json(part) for name, part in value.items()}
        case list() | tuple():
            return [_as_json(part) for part in value]
        case _ if is_dataclass(value):
            return {field.name: _as_json(getattr(value, field.name)) for field in fields(value)}
        case _:
            return value


def _moment(moment: datetime, timespec: str = "milliseconds") -> str:
    """Return a moment in ISO 8601, in UTC: `2026-11-20T13:05:02.123Z`. FOCUS's Date/Time Format is
    the same with `seconds`.
    """
    return moment.astimezone(UTC).isoformat(timespec=timespec).replace("+00:00", "Z")
