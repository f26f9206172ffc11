"""Reads an export in the FOCUS format as CSV (FinOps Open Cost and Usage Specification 1.2, with
the names of 1.0 to 1.4); rows outside `AI and Machine Learning` are left out.

The model is `x_Model` or `SkuId`, the kind of token `x_TokenType` or `SkuMeter`, else the words of
`ChargeDescription`. A mapping names other columns. Charges that are no usage, or not of tokens, are
fees.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import timedelta
from decimal import Decimal

from gateway.domain.reconciliation.bills import is_known_kind
from gateway.wire.bills.exports.cells import (
    WrongCell,
    check_usd,
    kind_word,
    read_amount,
    read_moment,
    read_name,
    read_quantity,
    unit_size,
)
from gateway.wire.bills.exports.collected import ReadLine
from gateway.wire.bills.exports.csv_rows import Row, rows_of
from gateway.wire.bills.exports.mapping import ExportMapping
from gateway.wire.bills.exports.text import WrongExport

_CATEGORY = "ai and machine learning"


def read(texts: Iterable[str], mapping: ExportMapping) -> Iterator[ReadLine]:
    """Yield the lines of AI in an export. Raises `WrongExport`."""
    for row in rows_of(texts, mapping, is_loose=True):
        try:
            line = _line(row)
        except WrongCell as wrong:
            raise WrongExport(row.line, str(wrong)) from None
        if line is not None:
            yield line


def _line(row: Row) -> ReadLine | None:
    """Return the line of a row; None if it is of another category. Raises `WrongCell`."""
    if not row.has("day") and not row.has("charge_period_start"):
        raise WrongCell("the header has no ChargePeriodStart: it is no FOCUS export")
    if not row.has("amount") and not row.has("billed_cost"):
        raise WrongCell("the header has no BilledCost: it is no FOCUS export")
    if row.get("service_category").lower() not in ("", _CATEGORY):
        return None
    check_usd(row.get("currency", "billing_currency"), "BillingCurrency")
    begin = read_moment(row.get("day", "charge_period_start"), "ChargePeriodStart")
    model, kind, quantity = _usage(row)
    end = row.get("charge_period_end")
    if kind and end and read_moment(end, "ChargePeriodEnd") - begin > timedelta(days=1):
        raise WrongCell("its charge period is longer than a day: export daily rows")
    text = row.get("charge_description") or row.get("charge_category") or "a charge"
    return ReadLine(
        row.line,
        begin.date(),
        read_name(row.get("account", "billing_account_id"), "BillingAccountId"),
        read_name(row.get("project", "sub_account_id"), "SubAccountId"),
        read_name(row.get("key", "x_key_id"), "key"),
        model,
        kind,
        quantity,
        read_amount(row.get("amount", "billed_cost"), "BilledCost"),
        "" if kind else (read_name(text[:300], "ChargeDescription") or ""),
    )


def _usage(row: Row) -> tuple[str, str, Decimal | None]:
    """Return the model, kind and quantity of a row; empty for a charge that is for no tokens."""
    if row.get("charge_category").lower() not in ("", "usage"):
        return "", "", None
    word = row.get("token_kind", "x_token_type", "sku_meter") or row.get("charge_description")
    kind = kind_word(read_name(word, "SkuMeter") or "")
    has_consumed = bool(row.get("consumed_quantity"))
    unit = row.get("consumed_unit" if has_consumed else "pricing_unit")
    size = unit_size(unit)
    model = read_name(row.get("model", "x_model", "sku_id"), "SkuId") or ""
    if size is None or not (model or is_known_kind(kind)):
        return "", "", None
    amount = row.get("quantity") or row.get("consumed_quantity") or row.get("pricing_quantity")
    quantity = read_quantity(amount, "ConsumedQuantity") * size if amount else None
    return model, kind, quantity
