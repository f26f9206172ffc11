"""Reads Anthropic's exports: a page of `usage_report/messages`, and one of `cost_report`.

Shapes: platform.claude.com/docs/en/api/admin (read 2026-11-26). Amounts are cents as decimal
strings. The default workspace is null, and so is the key of use in the console. Costs of the
priority tier are not in the report.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import date, timedelta
from decimal import Decimal
from typing import Any

from gateway.domain.pricing.tokens import TokenKind
from gateway.wire.bills.exports.cells import (
    WrongCell,
    check_usd,
    kind_word,
    read_amount,
    read_count,
    read_moment,
    read_name,
)
from gateway.wire.bills.exports.collected import ReadLine
from gateway.wire.bills.exports.mapping import ExportMapping
from gateway.wire.bills.exports.page_lines import empty_day, page_lines, usage_lines

_TOKEN_TYPES = {
    "uncached_input_tokens": TokenKind.INPUT,
    "cache_read_input_tokens": TokenKind.CACHED_INPUT,
    "cache_creation.ephemeral_5m_input_tokens": TokenKind.CACHE_WRITE,
    "cache_creation.ephemeral_1h_input_tokens": TokenKind.CACHE_WRITE_1H,
    "output_tokens": TokenKind.OUTPUT,
}
_CALLS = {"web_search": TokenKind.WEB_SEARCH, "code_execution": TokenKind.CODE_INTERPRETER}


def read_usage(texts: Iterable[str], mapping: ExportMapping) -> Iterator[ReadLine]:
    """Return the lines of a page of messages' usage, read one by one, which raises
    `WrongExport`.
    """

    def usage(line: int, day: date, members: Mapping[str, Any]) -> Iterator[ReadLine]:
        """Yield the lines of a result of usage."""
        counts = _usage_counts(members)
        model = read_name(members.get(mapping.columns.get("model", "model")), "model")
        if model is None and any(counts.values()):
            raise WrongCell("model is null: ask for it with group_by[]=model")
        yield from usage_lines(line, day, _owner(members, mapping), model or "", counts)

    return page_lines(texts, day_of=_day, result=usage)


def read_cost(texts: Iterable[str], mapping: ExportMapping) -> Iterator[ReadLine]:
    """Return the lines of a page of costs, read one by one, which raises `WrongExport`."""

    def cost(line: int, day: date, members: Mapping[str, Any]) -> Iterator[ReadLine]:
        """Yield the line of a result of costs."""
        yield _cost(line, day, members, mapping)

    return page_lines(texts, day_of=_day, result=cost)


def _day(bucket: Mapping[str, Any]) -> date:
    """Return the UTC day of a bucket. Raises `WrongCell` if it is longer than a day."""
    begin = read_moment(bucket.get("starting_at"), "starting_at")
    if bucket.get("ending_at") is not None:
        length = read_moment(bucket["ending_at"], "ending_at") - begin
        if not timedelta(0) < length <= timedelta(days=1):
            raise WrongCell("the bucket is not within one day: ask for bucket_width=1d")
    return begin.date()


def _owner(
    members: Mapping[str, Any], mapping: ExportMapping
) -> tuple[str | None, str | None, str | None]:
    """Return the account, project and key of a result."""
    columns = mapping.columns
    account = read_name(members.get(columns.get("account", "organization_id")), "account")
    project = read_name(members.get(columns.get("project", "workspace_id")), "workspace_id")
    key = read_name(members.get(columns.get("key", "api_key_id")), "api_key_id")
    return account, project, key


def _usage_counts(members: Mapping[str, Any]) -> dict[TokenKind, Decimal]:
    """Return the tokens and calls of a result by kind. Raises `WrongCell`."""
    if "output_tokens" not in members:
        raise WrongCell("it has no output_tokens: it is no usage of messages")
    writes = members.get("cache_creation") or {}
    tools = members.get("server_tool_use") or {}
    if not isinstance(writes, dict) or not isinstance(tools, dict):
        raise WrongCell("cache_creation and server_tool_use are objects")
    found = {}
    for path, kind in _TOKEN_TYPES.items():
        holder, name = (writes, path.partition(".")[2]) if "." in path else (members, path)
        found[kind] = read_count(holder.get(name), path)
    found[TokenKind.WEB_SEARCH] = read_count(
        tools.get("web_search_requests"), "web_search_requests"
    )
    return found


def _cost(line: int, day: date, members: Mapping[str, Any], mapping: ExportMapping) -> ReadLine:
    """Return the line of a result of costs."""
    check_usd(members.get("currency"), "currency")
    amount = read_amount(members.get(mapping.columns.get("amount", "amount")), "amount", cents=True)
    cost_type = read_name(members.get("cost_type"), "cost_type")
    text = read_name(members.get("description"), "description")
    if cost_type is None and text is None:
        if not amount.usd:
            return empty_day(line, day)
        raise WrongCell("cost_type is null: ask for it with group_by[]=description")
    model = read_name(members.get(mapping.columns.get("model", "model")), "model") or ""
    kind = ""
    if cost_type in _CALLS:
        kind = _CALLS[cost_type].value
    elif model:
        word = read_name(members.get("token_type"), "token_type") or ""
        kind = _TOKEN_TYPES[word].value if word in _TOKEN_TYPES else kind_word(word)
    is_charge = not model and not kind
    return ReadLine(
        line,
        day,
        *_owner(members, mapping),
        model,
        kind,
        None,
        amount,
        (text or cost_type or "") if is_charge else "",
    )
