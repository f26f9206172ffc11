"""Reads the lines of Amazon Bedrock in an AWS Cost and Usage Report as CSV: CUR 2.0 (Data Exports),
or the former one with columns such as `lineItem/UsageType`. Lines of other services are left out.

Shapes: the Bedrock user guide, "Understanding your Amazon Bedrock Cost and Usage Report data" (read
2026-11-26): usage types end in `-input-tokens`, `-output-tokens`, `-cache-read-input-token-count`
or `-cache-write-input-token-count`, with `mantle-` before and a tier or `cross-region` behind.
Quantities are in `pricing_unit`. Models of AWS Marketplace (`MP:…_InputTokenCount-Units`) and the
exact columns are from memory. The models' names in usage types are Amazon's own: `models` of a
mapping gives ours, by the name or by the whole usage type.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from decimal import Decimal

from gateway.wire.bills.exports.cells import (
    WrongCell,
    check_usd,
    kind_word,
    read_amount,
    read_day,
    read_name,
    read_quantity,
    unit_size,
)
from gateway.wire.bills.exports.collected import ReadLine
from gateway.wire.bills.exports.csv_rows import Row, rows_of
from gateway.wire.bills.exports.mapping import ExportMapping
from gateway.wire.bills.exports.text import WrongExport

_USAGE = frozenset({"", "usage", "discountedusage", "savingsplancoveredusage"})
_TYPE = re.compile(
    r"(?:[A-Z]{2,4}[0-9]?-)?(?P<model>.+?)-(?:mantle-)?"
    r"(?P<kind>cache-read-input-token-count|cache-write-input-token-count|input-tokens?"
    r"|output-tokens?)(?P<rest>-.*)?"
)
_MARKETPLACE = re.compile(
    r".*MP:[A-Z0-9]+_(?P<kind>CacheReadInput|CacheWriteInput|Input|Output)TokenCount.*"
)
_NEEDED = ("line_item_usage_start_date", "line_item_unblended_cost", "line_item_usage_type")


def read(texts: Iterable[str], mapping: ExportMapping) -> Iterator[ReadLine]:
    """Yield the lines of Bedrock in a report. Raises `WrongExport`."""
    for row in rows_of(texts, mapping, is_loose=True):
        try:
            line = _line(row, mapping)
        except WrongCell as wrong:
            raise WrongExport(row.line, str(wrong)) from None
        if line is not None:
            yield line


def _line(row: Row, mapping: ExportMapping) -> ReadLine | None:
    """Return the line of a row; None if it is of another service. Raises `WrongCell`."""
    for ours, name in zip(("day", "amount", "model"), _NEEDED, strict=True):
        if not row.has(name) and not row.has(ours):
            raise WrongCell(f"the header has no {name}: it is no Cost and Usage Report")
    usage_type = row.get("line_item_usage_type")
    about = (
        usage_type,
        row.get("line_item_product_code"),
        row.get("product_product_name", "product"),
        row.get("line_item_line_item_description"),
    )
    if not any("bedrock" in text.lower() for text in about) and not _TYPE.fullmatch(usage_type):
        return None
    check_usd(row.get("currency", "line_item_currency_code"), "line_item_currency_code")
    is_usage = row.get("line_item_line_item_type").lower() in _USAGE
    model, kind = _model_and_kind(row, mapping) if is_usage else ("", "")
    text = ""
    if not kind:
        text = row.get("line_item_line_item_description") or usage_type or "a charge"
    return ReadLine(
        row.line,
        read_day(row.get("day", "line_item_usage_start_date"), "line_item_usage_start_date"),
        read_name(row.get("account", "line_item_usage_account_id"), "line_item_usage_account_id"),
        read_name(row.get("project"), "project"),
        read_name(row.get("key", "line_item_iam_principal"), "line_item_iam_principal"),
        model,
        kind,
        _quantity(row) if kind else None,
        read_amount(row.get("amount", "line_item_unblended_cost"), "line_item_unblended_cost"),
        text[:300],
    )


def _model_and_kind(row: Row, mapping: ExportMapping) -> tuple[str, str]:
    """Return the model and kind of a line of usage; both empty if it is for no tokens."""
    usage_type = row.get("line_item_usage_type")
    stated = row.get("model"), row.get("token_kind")
    found = _TYPE.fullmatch(usage_type)
    if found is not None:
        word = "batch input" if "batch" in (found["rest"] or "") else found["kind"]
        model = found["model"]
    else:
        found = _MARKETPLACE.fullmatch(usage_type)
        word = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", found["kind"]) if found else ""
        model = row.get("product_product_name", "product").partition(" (")[0]
    if usage_type in mapping.models:
        model = mapping.models[usage_type]
    kind = kind_word(stated[1] or word)
    model = read_name(stated[0] or model, "line_item_usage_type") or ""
    return (model, kind) if kind else ("", "")


def _quantity(row: Row) -> Decimal:
    """Return a line's tokens. Raises `WrongCell` without a known unit."""
    amount = row.get("quantity", "line_item_usage_amount")
    unit = row.get("pricing_unit")
    size = unit_size(unit)
    if size is None or not unit:
        raise WrongCell(
            f"pricing_unit is '{unit[:60]}': the report must say in which unit tokens are counted"
        )
    return read_quantity(amount, "line_item_usage_amount") * size
