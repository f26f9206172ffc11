"""Reads the lines of generative AI in Google Cloud's billing export as CSV, with the columns of the
BigQuery export (`sku.description` or `sku_description`). Lines of other services are left out.

Shape: the standard usage cost table of "Structure of Standard data export", from memory
(2026-11-26). A SKU's text names model and direction: `Gemini 2.5 Pro Input - Predictions`; `models`
of a mapping gives our model by the text of the model or of the whole SKU.
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

_SERVICES = ("vertex ai", "gemini", "generative")
_MODEL = re.compile(
    r"\b(?P<family>gemini|gemma|claude|llama|mistral|codestral)\b[ -]?"
    r"(?P<rest>(?:\d+(?:\.\d+)?|pro|flash|lite|ultra|nano|opus|sonnet|haiku|large|small|preview|"
    r"instruct|\d+b)(?:[ -]|$))*",
    re.IGNORECASE,
)
_KIND_WORDS = (
    (re.compile(r"cache[d]?.{0,20}(write|creat)", re.IGNORECASE), "cache_write"),
    (re.compile(r"cache", re.IGNORECASE), "cached_input"),
    (re.compile(r"input audio|audio input", re.IGNORECASE), "audio_input"),
    (re.compile(r"output audio|audio output", re.IGNORECASE), "audio_output"),
    (re.compile(r"input image|image input", re.IGNORECASE), "image_input"),
    (re.compile(r"output image|image output", re.IGNORECASE), "image_output"),
    (re.compile(r"\binput\b|\bprompt\b", re.IGNORECASE), "input"),
    (re.compile(r"\boutput\b|\bresponse\b", re.IGNORECASE), "output"),
)


def read(texts: Iterable[str], mapping: ExportMapping) -> Iterator[ReadLine]:
    """Yield the lines of generative AI in an export. Raises `WrongExport`."""
    for row in rows_of(texts, mapping, is_loose=True):
        try:
            yield from _lines(row, mapping)
        except WrongCell as wrong:
            raise WrongExport(row.line, str(wrong)) from None


def _lines(row: Row, mapping: ExportMapping) -> Iterator[ReadLine]:
    """Yield the line of a row and that of its credits; none if it is of another service."""
    if not row.has("usage_start_time") and not row.has("day"):
        raise WrongCell("the header has no usage_start_time: it is no billing export")
    if not row.has("cost") and not row.has("amount"):
        raise WrongCell("the header has no cost: it is no billing export")
    service = row.get("service_description").lower()
    if service and not any(word in service for word in _SERVICES):
        return
    check_usd(row.get("currency"), "currency")
    sku = read_name(row.get("sku_description"), "sku.description") or ""
    model, kind, quantity = _usage(row, sku, mapping)
    day = read_day(row.get("day", "usage_start_time"), "usage_start_time")
    account = read_name(row.get("account", "billing_account_id"), "billing_account_id")
    project = read_name(row.get("project", "project_id"), "project.id")
    key = read_name(row.get("key"), "key")
    amount = read_amount(row.get("amount", "cost"), "cost")
    yield ReadLine(
        row.line,
        day,
        account,
        project,
        key,
        model,
        kind,
        quantity,
        amount,
        "" if kind else sku or "a charge",
    )
    credits = row.get("credits_amount")
    if credits:
        credit = read_amount(credits, "credits.amount")
        if credit.usd:
            yield ReadLine(
                row.line, day, account, project, key, "", "", None, credit, f"Credit: {sku}"[:300]
            )


def _usage(row: Row, sku: str, mapping: ExportMapping) -> tuple[str, str, Decimal | None]:
    """Return the model, kind and quantity of a row; empty for a charge that is for no tokens."""
    if row.get("cost_type").lower() not in ("", "regular"):
        return "", "", None
    word = row.get("token_kind") or next(
        (kind for pattern, kind in _KIND_WORDS if pattern.search(sku)), ""
    )
    size = unit_size(row.get("usage_unit"))
    if not word or size is None:
        return "", "", None
    model = row.get("model") or mapping.models.get(sku) or model_in(sku)
    amount = row.get("quantity", "usage_amount")
    quantity = read_quantity(amount, "usage.amount") * size if amount else None
    return read_name(model, "model") or "", kind_word(word), quantity


def model_in(sku: str) -> str:
    """Return the model's name in a SKU's text, written as an id; without one the whole text."""
    found = _MODEL.search(sku)
    if found is None:
        return sku
    return re.sub(r"[ -]+", "-", found[0].strip(" -").lower())
