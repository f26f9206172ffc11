"""Reads a plain CSV: `day, account, project, key, model, token_kind, quantity, amount, currency`,
in any order; a mapping names other columns. Other columns are left alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from gateway.wire.bills.exports.cells import (
    WrongCell,
    check_usd,
    kind_word,
    read_amount,
    read_day,
    read_name,
    read_quantity,
)
from gateway.wire.bills.exports.collected import ReadLine
from gateway.wire.bills.exports.csv_rows import Row, rows_of
from gateway.wire.bills.exports.mapping import COLUMNS, ExportMapping
from gateway.wire.bills.exports.text import WrongExport


def read(texts: Iterable[str], mapping: ExportMapping) -> Iterator[ReadLine]:
    """Yield the lines of a plain CSV. Raises `WrongExport`."""
    for row in rows_of(texts, mapping):
        try:
            yield _line(row)
        except WrongCell as wrong:
            raise WrongExport(row.line, str(wrong)) from None


def _line(row: Row) -> ReadLine:
    """Return the line of a row. Raises `WrongCell`."""
    if not row.has("day") or not (row.has("amount") or row.has("quantity")):
        raise WrongCell(
            f"the header needs `day`, and `amount` or `quantity`. The columns are: "
            f"{', '.join(COLUMNS)}; --mapping names others"
        )
    check_usd(row.get("currency"), "currency")
    model = read_name(row.get("model"), "model") or ""
    word = read_name(row.get("token_kind"), "token_kind") or ""
    kind = kind_word(word)
    quantity, amount = row.get("quantity"), row.get("amount")
    if not quantity and not amount:
        raise WrongCell("quantity and amount are empty")
    is_charge = not model and kind == word and word != ""
    return ReadLine(
        row.line,
        read_day(row.get("day"), "day"),
        read_name(row.get("account"), "account"),
        read_name(row.get("project"), "project"),
        read_name(row.get("key"), "key"),
        model,
        "" if is_charge else kind,
        read_quantity(quantity, "quantity") if quantity else None,
        read_amount(amount, "amount") if amount else None,
        word if is_charge else "",
    )
