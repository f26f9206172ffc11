"""Converts an event, from its `finance` row or from memory before it is booked, into the form that
receipts show.

A receipt must read alike before and after the commit. `recorded_at`, which only Postgres knows, is
left out: nothing in a receipt may depend on it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from typing import Any

from msgspec import convert

from gateway.domain.ledger.usage_event import Outcome, UsageEvent
from gateway.domain.money import nusd_from_usd
from gateway.domain.pricing.pricing import Line
from gateway.domain.pricing.tokens import TokenKind, TokenUsage, UsageSource
from gateway.reports.report import Dataset
from gateway.reports.sources.connection import Row
from gateway.storage.ledger.documents import decode_event, encode_event

# Members of the usage that have a column of their own.
COUNTS = (
    "input_tokens",
    "cached_input_tokens",
    "cache_write_tokens",
    "output_tokens",
    "reasoning_tokens",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class BookedEvent:
    """An event and the month that it is posted to, as its first day."""

    event: UsageEvent
    posted_period: date


def to_be_booked(event: UsageEvent) -> BookedEvent:
    """Return an event that is not in the ledger yet in the form in which the ledger will book it.

    It goes through the event's document, so that its text equals the text in Postgres.
    """
    written = decode_event(encode_event(event))
    return BookedEvent(event=written, posted_period=written.occurred_at.date().replace(day=1))


def from_row(row: Row, dataset: Dataset) -> BookedEvent:
    """Return the booked event of a row of its view."""
    reshaped = {
        "outcome": Outcome(row["outcome"]),
        "usage": convert(
            (row["usage_detail"] or {}) | {name: row[name] for name in COUNTS}, TokenUsage
        ),
        "usage_detail": {
            name: value
            for name, value in (row["usage_detail"] or {}).items()
            if name not in TokenUsage.__struct_fields__
        },
        "usage_source": UsageSource(row["usage_source"]),
        "lines": tuple(_line(line) for line in row["lines"] or ()),
        "reported": None
        if row["reported_usage"] is None
        else convert(row["reported_usage"], TokenUsage),
        "cost_nusd": None if row["cost_usd"] is None else nusd_from_usd(row["cost_usd"]),
        "held_nusd": None if row["held_usd"] is None else nusd_from_usd(row["held_usd"]),
        "is_demo": dataset is Dataset.DEMO,
    }
    plain = {
        name: row[name]
        for name in UsageEvent.__struct_fields__
        if name in row and name not in reshaped
    }
    return BookedEvent(event=UsageEvent(**plain | reshaped), posted_period=row["posted_period"])


def _line(line: Mapping[str, Any]) -> Line:
    """Return the priced line that an event's JSON states."""
    return Line(
        kind=TokenKind(line["kind"]),
        tokens=int(line["tokens"]),
        usd_per_mtok=Decimal(str(line["usd_per_mtok"])),
        cost_nusd=int(line["cost_nusd"]),
    )
