"""Formats the figures, times and headings of reports as text for people, with units, the reader's
separators and `unknown` for an unknown figure; it draws nothing.
"""

from __future__ import annotations

import re
from datetime import date, datetime
from decimal import Decimal

from dashboard.shell.viewer import local_moment, localised, zone_name
from gateway.domain.money import format_amount, format_unit_cost, in_place_of_dollars
from gateway.reports.plain_decimal import plain_decimal
from gateway.reports.report import Cell, Column, ColumnKind

UNKNOWN = "unknown"
NOTHING = "–"  # for values that do not apply, as opposed to unknown ones
_CURRENCY = re.compile(r"[A-Z]{3}\b")
_MARKDOWN = re.compile(r"([\\`*_{}\[\]()<>#+\-.!|~$:&^=@/])")


def inert(name: str) -> str:
    """Return a name that Markdown shows unchanged: a team may be called `**x**`, `$y$` or
    `:red[z]`.
    """
    return _MARKDOWN.sub(r"\\\1", " ".join(name.split()))


def money(amount: Cell, currency: str = "USD") -> str:
    """Return an amount as `$1,234.56` or `1,234.56 EUR`, four significant digits below a cent,
    `unknown` for None.
    """
    assert amount is None or isinstance(amount, (Decimal, int)), "money is exact"
    if amount is None:
        return UNKNOWN
    return localised(format_amount(Decimal(amount), currency))


def metric_money(amount: Cell, currency: str = "USD") -> str:
    """Return an amount for a metric: it reads Markdown, which would typeset two dollar signs."""
    return money(amount, currency).replace("$", "\\$")


def currency_of(column: Column) -> str:
    """Return the currency of a column of money, the first word of its unit."""
    found = _CURRENCY.match(column.unit)
    return "USD" if found is None else found[0]


def exact_money(amount: Decimal | None) -> str:
    """Return every digit of an amount, `$0.0001234`: on a receipt the lines must visibly add up."""
    return UNKNOWN if amount is None else f"${plain_decimal(amount)}"


def rate(usd_per_mtok: Decimal) -> str:
    """Return every digit of a rate, at least two: `$0.80`. A rounded rate is another rate."""
    text = plain_decimal(usd_per_mtok)
    whole, _, decimals = text.partition(".")
    return f"${whole}.{decimals.ljust(2, '0')}"


def counted(number: Cell, noun: str) -> str:
    """Return a number with its noun, `1 request` or `1,234 requests`."""
    return f"{count(number)} {noun}{'' if number == 1 else 's'}"


def count(number: Cell) -> str:
    """Return a number with thousands separators, `1,234`."""
    return UNKNOWN if number is None else localised(f"{number:,}")


def seconds(duration_s: Cell) -> str:
    """Return a duration as `0.55 s`, in milliseconds below a tenth of a second, a dash without a
    measurement.
    """
    if duration_s is None:
        return NOTHING
    value = float(str(duration_s))
    return localised(f"{value * 1000:.3g} ms" if value < 0.1 else f"{value:,.2f} s")


def share(part: Cell) -> str:
    """Return a share as a percentage; a positive share is never `0.00 %`."""
    if part is None:
        return NOTHING
    percent = f"{100 * float(str(part)):.2f}"
    return localised("< 0.01 %" if part and percent == "0.00" else f"{percent} %")


def change(part: Cell) -> str:
    """Return a change as a signed percentage, `+12.5 %`; a dash without one."""
    if part is None:
        return NOTHING
    value = 100 * float(str(part))
    return localised(f"{value:+,.1f} %" if abs(value) < 1000 else f"{value:+,.0f} %")


def moment(at: Cell) -> str:
    """Return a time as text in the reader's time zone to the second, a dash without one."""
    return local_moment(at) if isinstance(at, datetime) else NOTHING


def means_nothing(column: Column) -> bool:
    """Return True if an empty cell of this column means that there is none (shown as a dash),
    rather than unknown.
    """
    return (
        column.kind in (ColumnKind.TEXT, ColumnKind.SECONDS, ColumnKind.SHARE)
        or column.name == "held_usd"
        or column.name.startswith("usd_per_")  # nothing was counted
        or column.name.endswith("_usd_per_mtok")  # a price without a rate of this kind
    )


def cell(column: Column, value: Cell) -> str:
    """Return any cell of a report as text for people, by its column's kind."""
    if value is None:
        return NOTHING if means_nothing(column) else UNKNOWN
    match column.kind:
        case ColumnKind.MONEY if column.name.endswith("_usd_per_mtok"):
            return rate(Decimal(str(value)))
        case ColumnKind.MONEY if " per " in column.unit:
            text = format_unit_cost(Decimal(str(value)))
            return localised(in_place_of_dollars(text, currency_of(column)))
        case ColumnKind.MONEY:
            return money(value, currency_of(column))
        case ColumnKind.COUNT:
            return count(value)
        case ColumnKind.SECONDS:
            return seconds(value)
        case ColumnKind.HOURS:
            return localised(f"{value:,.2f}")
        case ColumnKind.SHARE:
            return (change if "change_share" in column.name else share)(value)
        case ColumnKind.TIME:
            return moment(value)
        case ColumnKind.DAY:
            return value.isoformat() if isinstance(value, date) else NOTHING
        case ColumnKind.FLAG:
            return "yes" if value else "no"
        case _:
            text = str(value)
            return text.replace("_", " ") if column.name == "kind" else text  # of tokens


_HEADINGS = {
    "at": "Time (UTC)",
    "db_user": "Login",
    "operator": "Person",
    "data_class": "Class",
    "last_hour": "Last hour (UTC)",
    "valid_from": "From (UTC)",
    "valid_until": "Until (UTC)",
    "service_tier": "Tier",
    "from_input_tokens": "From input tok.",
    "input_usd_per_mtok": "Input, USD / 1M",
    "cached_input_usd_per_mtok": "Cached, USD / 1M",
    "cache_write_usd_per_mtok": "Cache write, USD / 1M",
    "output_usd_per_mtok": "Output, USD / 1M",
    "other_rates": "Other rates",
    "sha256": "SHA-256",
    "closed_at": "Closed (UTC)",
    "reopened_at": "Reopened (UTC)",
    "total_usd": "Total, USD",
    "usd_per_request": "USD / request",
    "usd_per_answer": "USD / answer",
    "usd_per_1k_tokens": "USD / 1k tok.",
    "usd_per_end_user": "USD / end user",
    "usd_per_task": "USD / task",
    "usd_per_session": "USD / session",
    "compared_attempts": "Compared",
    "compared_usd": "Cost of these, USD",
    "dearest_usd": "At the dearest, USD",
    "dearest_saving_usd": "Saved against the dearest, USD",
    "default_usd": "At the first listed, USD",
    "default_saving_usd": "Saved against the first listed, USD",
    "previous_usd": "Before, USD",
    "change_usd": "Change, USD",
    "change_share": "Change",
    "year_before_usd": "Year before, USD",
    "year_change_usd": "Change in a year, USD",
    "year_change_share": "Change in a year",
    "final_attempts": "Final",
    "running_attempts": "Running",
    "estimated_attempts": "Estimated",
    "unreported_usage_attempts": "Unknown usage",
    "unknown_attempts": "Open holds",
    "final_usd": "Final, USD",
    "derived_usd": "Running or estimated, USD",
    "ttft_p50_s": "TTFT p50",
    "ttft_p95_s": "TTFT p95",
    "tpot_p50_s": "TPOT p50",
    "tpot_p95_s": "TPOT p95",
    "duration_p50_s": "Duration p50",
    "duration_p95_s": "Duration p95",
    "ttft_measured": "Measured",
    "ttft_not_measured": "Not measured",
    "ttft_s": "TTFT",
    "tpot_s": "TPOT",
    "duration_s": "Duration",
    "cost_usd": "Cost, USD",
    "held_usd": "Not yet known, at most",
    "cost_per_mtok_usd": "USD / 1M tok.",
    "input_tokens": "Input tok.",
    "cached_input_tokens": "Cached",
    "cache_write_tokens": "Cache writes",
    "cache_saving_usd": "Saved, USD",
    "output_tokens": "Output tok.",
    "reasoning_tokens": "Reasoning",
    "unknown_share": "Share unknown",
    "derived_share": "Share estimated",
    "usage_source": "Usage from",
    "request_id": "Request",
    "key_id": "Key",
    "day": "Day (UTC)",
    "amount_usd": "Amount, USD",
    "bill_usd": "Bill, USD",
    "applied_usd": "Applied, USD",
    "empty_usd": "Empty, USD",
    "underfilled_usd": "Underfilled, USD",
    "variance_usd": "Variance, USD",
    "estimated_usd": "Uptime × rate, USD",
    "imported_usd": "Imported, USD",
    "applied_without_bill_usd": "Applied without a bill, USD",
    "gpu_hours": "GPU hours",
    "api_model": "API",
    "total_tokens": "Tokens",
    "selfhost_usd": "Own GPUs, USD",
    "api_usd": "At the API, USD",
    "difference_usd": "Difference, USD",
    "break_even_tokens_per_day": "Break-even, tok. a day",
    "break_even_utilisation": "Break-even use",
}


def heading(column: Column) -> str:
    """Return a column's heading: a fixed text for some names, else the words of its name, and its
    currency.
    """
    if column.name == "occurred_at":
        return f"Time ({zone_name()})"
    currency = currency_of(column)
    name = column.name
    if column.kind is ColumnKind.MONEY and currency != "USD":
        name = name.replace(currency.lower(), "usd")
    return _usd_heading(name).replace("USD", currency)


def heading_of_name(name: str) -> str | None:
    """Return the heading of a column that a text names, None for a name without one of its own."""
    return _HEADINGS.get(name)


def _usd_heading(name: str) -> str:
    """Return the heading of a column by its name, with its money in USD."""
    if name in _HEADINGS:
        return _HEADINGS[name]
    is_money = name.endswith("_usd")
    words = name.removesuffix("_usd").replace("_", " ")
    return f"{words[:1].upper()}{words[1:]}{', USD' if is_money else ''}"
