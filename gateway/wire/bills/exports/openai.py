"""Reads OpenAI's exports: a page of `GET /organization/usage/completions`, and one of
`/organization/costs`, with daily or shorter buckets.

Shapes: openai-openapi of 2026-08-21 (`UsageCompletionsResult`, `CostsResult`). Costs name their
model and kind in `line_item` alone: `gpt-5-mini, cached input`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from datetime import date
from decimal import Decimal
from typing import Any

from gateway.domain.pricing.tokens import TokenKind
from gateway.domain.reconciliation.bills import is_known_kind
from gateway.wire.bills.exports.cells import (
    WrongCell,
    check_usd,
    kind_word,
    read_amount,
    read_count,
    read_name,
    read_quantity,
    read_unix_day,
)
from gateway.wire.bills.exports.collected import ReadLine
from gateway.wire.bills.exports.mapping import ExportMapping
from gateway.wire.bills.exports.page_lines import empty_day, page_lines, usage_lines

# The members that are parts of `input_tokens` and of `output_tokens`, and our kinds of them.
# `input_cached_tokens` has the cached audio and image tokens too.
_INPUT_PARTS = {
    TokenKind.CACHED_AUDIO_INPUT: "input_cached_audio_tokens",
    TokenKind.AUDIO_INPUT: "input_audio_tokens",
    TokenKind.IMAGE_INPUT: "input_image_tokens",
    TokenKind.CACHE_WRITE: "input_cache_write_tokens",
}
_OUTPUT_PARTS = {
    TokenKind.AUDIO_OUTPUT: "output_audio_tokens",
    TokenKind.IMAGE_OUTPUT: "output_image_tokens",
}
# Line items of calls, which name no model.
_CALLS = {
    "web search": TokenKind.WEB_SEARCH,
    "file search tool call": TokenKind.FILE_SEARCH,
    "code interpreter": TokenKind.CODE_INTERPRETER,
}
_ITEM = re.compile(r"(?P<model>[^,|]{1,200}), *(?P<kind>[a-z0-9 _-]{1,60})", re.IGNORECASE)


def read_usage(texts: Iterable[str], mapping: ExportMapping) -> Iterator[ReadLine]:
    """Return the lines of a page of completions' usage, read one by one, which raises
    `WrongExport`.
    """

    def usage(line: int, day: date, members: Mapping[str, Any]) -> Iterator[ReadLine]:
        """Yield the lines of a result of usage."""
        model = read_name(members.get(mapping.columns.get("model", "model")), "model")
        counts = _usage_counts(members)
        if model is None and any(counts.values()):
            raise WrongCell("model is null: ask for it with group_by=model")
        yield from usage_lines(line, day, _owner(members, mapping), model or "", counts)

    return page_lines(texts, day_of=_day, result=usage)


def read_costs(texts: Iterable[str], mapping: ExportMapping) -> Iterator[ReadLine]:
    """Return the lines of a page of costs, read one by one, which raises `WrongExport`."""

    def cost(line: int, day: date, members: Mapping[str, Any]) -> Iterator[ReadLine]:
        """Yield the line of a result of costs."""
        yield _cost(line, day, members, mapping)

    return page_lines(texts, day_of=_day, result=cost)


def _day(bucket: Mapping[str, Any]) -> date:
    """Return the UTC day of a bucket. Raises `WrongCell` if it is longer than a day."""
    day = read_unix_day(bucket.get("start_time"), "start_time")
    if bucket.get("end_time") is not None:
        end = read_quantity(bucket["end_time"], "end_time")
        length = end - read_quantity(bucket["start_time"], "start_time")
        if not 0 < length <= 86_400:
            raise WrongCell("the bucket is not within one day: ask for bucket_width=1d")
    return day


def _owner(
    members: Mapping[str, Any], mapping: ExportMapping
) -> tuple[str | None, str | None, str | None]:
    """Return the account, project and key of a result."""
    names = {
        ours: mapping.columns.get(ours, theirs)
        for ours, theirs in (
            ("account", "organization_id"),
            ("project", "project_id"),
            ("key", "api_key_id"),
        )
    }
    account, project, key = (read_name(members.get(name), name) for name in names.values())
    return account, project, key


def _usage_counts(members: Mapping[str, Any]) -> dict[TokenKind, Decimal]:
    """Return the tokens of a result by kind. Raises `WrongCell` if its parts exceed the whole."""
    if "input_tokens" not in members and "output_tokens" not in members:
        raise WrongCell("it has no input_tokens: it is no usage of completions")
    counts = {
        kind: read_count(members.get(name), name)
        for kind, name in (_INPUT_PARTS | _OUTPUT_PARTS).items()
    }
    cached = read_count(members.get("input_cached_tokens"), "input_cached_tokens")
    cached_images = read_count(
        members.get("input_cached_image_tokens"), "input_cached_image_tokens"
    )
    counts[TokenKind.AUDIO_INPUT] -= counts[TokenKind.CACHED_AUDIO_INPUT]
    counts[TokenKind.IMAGE_INPUT] -= cached_images
    counts[TokenKind.CACHED_INPUT] = cached - counts[TokenKind.CACHED_AUDIO_INPUT]
    input_parts = sum(counts[kind] for kind in (*_INPUT_PARTS, TokenKind.CACHED_INPUT))
    output_parts = sum(counts[kind] for kind in _OUTPUT_PARTS)
    counts[TokenKind.INPUT] = read_count(members.get("input_tokens"), "input_tokens") - input_parts
    counts[TokenKind.OUTPUT] = (
        read_count(members.get("output_tokens"), "output_tokens") - output_parts
    )
    if min(counts.values()) < 0:
        raise WrongCell("the parts of its tokens are more than the whole")
    return counts


def _cost(line: int, day: date, members: Mapping[str, Any], mapping: ExportMapping) -> ReadLine:
    """Return the line of a result of costs."""
    amount = members.get("amount")
    if not isinstance(amount, dict):
        raise WrongCell("amount is no object {value, currency}")
    check_usd(amount.get("currency"), "currency")
    value = read_amount(amount.get("value"), "amount.value")
    name = mapping.columns.get("model", "line_item")
    item = read_name(members.get(name), name)
    if item is None:
        if not value.usd:
            return empty_day(line, day)
        raise WrongCell(f"{name} is null: ask for it with group_by=line_item")
    model, kind, text = _model_and_kind(item, mapping)
    quantity = members.get("quantity")
    unit = members.get("quantity_unit")
    is_counted = kind and quantity is not None and (unit is None or "token" in str(unit).lower())
    return ReadLine(
        line,
        day,
        *_owner(members, mapping),
        model,
        kind,
        read_quantity(quantity, "quantity") if is_counted else None,
        value,
        text,
    )


def _model_and_kind(item: str, mapping: ExportMapping) -> tuple[str, str, str]:
    """Return the model, kind and text of a line item; without model and kind it is a charge for no
    usage.
    """
    found = _ITEM.fullmatch(item)
    if found is not None:
        kind = kind_word(found["kind"])
        if is_known_kind(kind) or "put" in kind or found["model"] in mapping.models:
            return found["model"].strip(), kind, ""
    for word, call in _CALLS.items():
        if item.lower().startswith(word):
            return "", call.value, ""
    return "", "", item
