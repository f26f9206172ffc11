"""Formats the demo's invoices as the exports of their providers, and the GPU bill; reads none.

OpenAI's shapes: openai-openapi of 2026-08-21, `GET /organization/usage/completions` and
`/organization/costs`. Anthropic's: platform.claude.com/docs/en/api/admin, `usage_report/messages`
and `cost_report` (read 2026-11-26); its amounts are cents as decimal strings.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, date, datetime, time, timedelta
from io import StringIO
from typing import Any, NamedTuple

from msgspec import Raw
from msgspec.json import encode, format

from gateway.domain.money import EXACT, plain_usd, usd_from_nusd
from gateway.domain.pricing.selfhost import gpu_bill_nusd
from gateway.domain.pricing.tokens import TokenKind
from gateway.services.demo.catalogue import DESTINATIONS
from gateway.services.demo.invoices import Invoice, InvoiceKey
from gateway.services.demo.metered import Amount, Metered
from gateway.services.demo.organisation import Calendar

DAY = timedelta(days=1)
HOUR_MS = 3_600_000
CSV_COLUMNS = (
    "day",
    "account",
    "project",
    "key",
    "model",
    "token_kind",
    "quantity",
    "amount",
    "currency",
)
GPU_COLUMNS = ["deployment", "from", "to", "gpu_hours", "amount", "currency", "invoice_id"]
_OPENAI_ITEMS = {
    TokenKind.INPUT: "input",
    TokenKind.CACHED_INPUT: "cached input",
    TokenKind.OUTPUT: "output",
}
_ANTHROPIC_TYPES = {
    TokenKind.INPUT: ("uncached_input_tokens", "Input Tokens"),
    TokenKind.CACHED_INPUT: ("cache_read_input_tokens", "Input Tokens, Cache Read"),
    TokenKind.CACHE_WRITE: (
        "cache_creation.ephemeral_5m_input_tokens",
        "Input Tokens, Cache Write",
    ),
    TokenKind.CACHE_WRITE_1H: (
        "cache_creation.ephemeral_1h_input_tokens",
        "Input Tokens, Cache Write 1h",
    ),
    TokenKind.OUTPUT: ("output_tokens", "Output Tokens"),
}


class DemoFile(NamedTuple):
    """One file of the demo. `provider` and `account` are empty for a GPU bill."""

    kind: str
    provider: str
    account: str
    name: str
    text: str


def files_of(invoice: Invoice, calendar: Calendar) -> Iterable[DemoFile]:
    """Yield the exports of one provider: usage and costs, or one CSV with both."""
    formats: Mapping[str, Callable[[Invoice, Calendar], str]] = {
        "openai": {"openai-usage": openai_usage, "openai-costs": openai_costs},
        "anthropic": {"anthropic-usage": anthropic_usage, "anthropic-cost": anthropic_cost},
    }.get(invoice.provider, {"csv": generic_csv})
    account = min(key.billed_to.account for key in invoice.usage)
    for kind, text_of in formats.items():
        ending = "csv" if kind == "csv" else "json"
        stem = f"{invoice.provider}-usage-and-costs" if kind == "csv" else kind
        yield DemoFile(
            kind, invoice.provider, account, f"{stem}.{ending}", text_of(invoice, calendar)
        )


def openai_usage(invoice: Invoice, calendar: Calendar) -> str:
    """Return OpenAI's usage of completions by day, project, key and model, as one page."""
    return _openai_page(
        invoice,
        calendar,
        lambda key, billed: [
            {
                "object": "organization.usage.completions.result",
                "input_tokens": _tokens(billed, TokenKind.INPUT, TokenKind.CACHED_INPUT),
                "input_cached_tokens": _tokens(billed, TokenKind.CACHED_INPUT),
                "input_cache_write_tokens": 0,
                "input_uncached_tokens": _tokens(billed, TokenKind.INPUT),
                "output_tokens": _tokens(billed, TokenKind.OUTPUT),
                "input_text_tokens": _tokens(billed, TokenKind.INPUT),
                "output_text_tokens": _tokens(billed, TokenKind.OUTPUT),
                "input_cached_text_tokens": _tokens(billed, TokenKind.CACHED_INPUT),
                **dict.fromkeys(_OTHER_INPUT, 0),
                "num_model_requests": billed.requests,
                "project_id": key.billed_to.project,
                "user_id": None,
                "api_key_id": key.billed_to.key,
                "model": key.model,
                "batch": False,
                "service_tier": "default",
            }
        ],
    )


_OTHER_INPUT = (
    "input_audio_tokens",
    "input_cached_audio_tokens",
    "output_audio_tokens",
    "input_image_tokens",
    "input_cached_image_tokens",
    "output_image_tokens",
)


def openai_costs(invoice: Invoice, calendar: Calendar) -> str:
    """Return OpenAI's costs by day, project, key and line item, as one page."""
    return _openai_page(
        invoice,
        calendar,
        lambda key, billed: [
            {
                "object": "organization.costs.result",
                "amount": {"value": Raw(plain_usd(amount.nusd).encode()), "currency": "usd"},
                "line_item": f"{key.model}, {_OPENAI_ITEMS[kind]}",
                "project_id": key.billed_to.project,
                "api_key_id": key.billed_to.key,
                "quantity": amount.tokens,
                "quantity_unit": "tokens",
            }
            for kind, amount in sorted(billed.amounts.items())
        ],
    )


def anthropic_usage(invoice: Invoice, calendar: Calendar) -> str:
    """Return Anthropic's usage of messages by day, workspace, key and model, as one page."""
    return _anthropic_page(
        invoice,
        calendar,
        lambda key, billed: [
            {
                "uncached_input_tokens": _tokens(billed, TokenKind.INPUT),
                "cache_creation": {
                    "ephemeral_1h_input_tokens": _tokens(billed, TokenKind.CACHE_WRITE_1H),
                    "ephemeral_5m_input_tokens": _tokens(billed, TokenKind.CACHE_WRITE),
                },
                "cache_read_input_tokens": _tokens(billed, TokenKind.CACHED_INPUT),
                "output_tokens": _tokens(billed, TokenKind.OUTPUT),
                "server_tool_use": {"web_search_requests": 0},
                "api_key_id": key.billed_to.key,
                "workspace_id": key.billed_to.project,
                "model": key.model,
                "service_tier": "standard",
                "context_window": "0-200k",
            }
        ],
    )


def anthropic_cost(invoice: Invoice, calendar: Calendar) -> str:
    """Return Anthropic's costs by day, workspace and description, as one page."""
    return _anthropic_page(
        invoice,
        calendar,
        lambda key, billed: [
            {
                "currency": "USD",
                "amount": f"{EXACT.scaleb(usd_from_nusd(amount.nusd), 2):f}",
                "workspace_id": key.billed_to.project,
                "description": f"{key.model} Usage - {_ANTHROPIC_TYPES[kind][1]}",
                "cost_type": "tokens",
                "context_window": "0-200k",
                "model": key.model,
                "service_tier": "standard",
                "token_type": _ANTHROPIC_TYPES[kind][0],
            }
            for kind, amount in sorted(billed.amounts.items())
        ],
    )


def generic_csv(invoice: Invoice, calendar: Calendar) -> str:
    """Return usage and costs as CSV, one line a day, account, model and kind of token, and the
    fees.
    """
    rows: list[tuple[object, ...]] = [
        (key.day, *key.billed_to, key.model, kind, amount.tokens, plain_usd(amount.nusd), "USD")
        for key, kind, amount in invoice.rows()
    ]
    rows += [
        (fee.day, *fee.billed_to, "", fee.text, "", plain_usd(fee.nusd), "USD")
        for fee in invoice.fees
    ]
    return _csv(CSV_COLUMNS, sorted(rows, key=lambda row: tuple(map(str, row))))


def gpu_bill(calendar: Calendar, *, machines: int) -> DemoFile:
    """Return the bill of the own GPUs: a line a day, an invoice a month."""
    rows: list[tuple[object, ...]] = []
    for name, place in DESTINATIONS.items():
        if place.gpu is None:
            continue
        ms = 24 * HOUR_MS * machines
        for day in _days(calendar):
            rows.append(
                (
                    name,
                    f"{day}T00:00:00Z",
                    f"{day + DAY}T00:00:00Z",
                    24 * place.gpu.count * machines,
                    plain_usd(gpu_bill_nusd(place.gpu, ms)),
                    "USD",
                    f"{name}-{day:%Y-%m}",
                )
            )
    return DemoFile("gpu-bill", "", "", "gpu-bill.csv", _csv(GPU_COLUMNS, rows))


def _openai_page(
    invoice: Invoice,
    calendar: Calendar,
    results_of: Callable[[InvoiceKey, Metered], list[dict[str, Any]]],
) -> str:
    """Return a page of daily buckets, whose times are Unix seconds."""
    buckets = [
        {
            "object": "bucket",
            "start_time": _unix_s(day),
            "end_time": _unix_s(day + DAY),
            "results": results,
        }
        for day, results in _by_day(invoice, calendar, results_of)
    ]
    return _json({"object": "page", "data": buckets, "has_more": False, "next_page": None})


def _anthropic_page(
    invoice: Invoice,
    calendar: Calendar,
    results_of: Callable[[InvoiceKey, Metered], list[dict[str, Any]]],
) -> str:
    """Return a page of daily buckets, whose times are RFC 3339."""
    buckets = [
        {
            "starting_at": f"{day}T00:00:00Z",
            "ending_at": f"{day + DAY}T00:00:00Z",
            "results": results,
        }
        for day, results in _by_day(invoice, calendar, results_of)
    ]
    return _json({"data": buckets, "has_more": False, "next_page": None})


def _by_day(
    invoice: Invoice,
    calendar: Calendar,
    results_of: Callable[[InvoiceKey, Metered], list[dict[str, Any]]],
) -> Iterable[tuple[date, list[dict[str, Any]]]]:
    """Yield each reported day with its results; a day without usage has none."""
    by_day: dict[date, list[dict[str, Any]]] = {}
    for key in sorted(invoice.usage):
        by_day.setdefault(key.day, []).extend(results_of(key, invoice.usage[key]))
    for day in _days(calendar):
        if day not in invoice.missing_days:
            yield day, by_day.get(day, [])


def _days(calendar: Calendar) -> Iterable[date]:
    """Yield every day of the history."""
    return (calendar.first + n * DAY for n in range(calendar.days))


def _tokens(billed: Metered, *kinds: TokenKind) -> int:
    """Return the tokens of some kinds together."""
    return sum(billed.amounts.get(kind, Amount()).tokens for kind in kinds)


def _unix_s(day: date) -> int:
    """Return a day's begin in UTC as Unix seconds."""
    return int(datetime.combine(day, time(), UTC).timestamp())


def _json(value: object) -> str:
    """Return a value as JSON text for people."""
    return format(encode(value), indent=1).decode() + "\n"


def _csv(columns: Iterable[str], rows: Iterable[Iterable[object]]) -> str:
    """Return rows as CSV with a header."""
    out = StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(rows)
    return out.getvalue()
