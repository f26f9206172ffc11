"""The cost of one request line by line, and the reasons for its deployment."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

from sqlalchemy import select

from gateway.domain.ids import occurred_at
from gateway.domain.ledger.usage_event import UsageEvent
from gateway.domain.money import EXACT, plain_usd
from gateway.domain.pricing.pricing import Line
from gateway.domain.pricing.tokens import TokenKind, TokenUsage
from gateway.domain.routing.prediction_messages import degraded
from gateway.reports.plain import plain_decimal
from gateway.reports.receipts.messages import (
    ReceiptVerdict,
    cost_words,
    notes,
    price_words,
    usage_words,
    verdicts,
)
from gateway.reports.report import Dataset
from gateway.reports.sources.connection import ReadSnapshot, Row
from gateway.reports.sources.event_row import row_of
from gateway.reports.sources.facts import EVENTS


@dataclass(frozen=True, slots=True, kw_only=True)
class BookedAdjustment:
    """A signed correction of an attempt, booked after it. The event itself is never changed.

    `settles`: the cost was unknown, and this correction releases its hold.
    """

    amount_usd: Decimal
    kind: str
    reason: str
    author: str
    settles: bool
    posted_period: str
    created_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptReceipt:
    """One attempt. `cost_usd` is None if unknown; `held_usd` is then its upper bound.

    `total_usd` is the cost with all adjustments, None while it is unknown. `other_usage` are counts
    that few upstreams report (audio, images, tool calls). `reported` is the upstream's usage, if
    another usage was charged. The `_obtained` members name the source of a figure in words.
    """

    attempt: int
    started_at: datetime
    route: str
    deployment: str
    provider: str
    model: str
    region: str
    is_self_hosted: bool
    outcome: str
    http_status: int | None
    streamed: bool
    finish_reason: str | None
    service_tier: str | None
    input_tokens: int | None
    cached_input_tokens: int | None
    cache_write_tokens: int | None
    output_tokens: int | None
    reasoning_tokens: int | None
    usage_source: str
    usage_obtained: str
    other_usage: Mapping[str, int]
    reported: Mapping[str, int] | None
    is_suspect: bool
    price_id: str | None
    price_source: str | None
    price_recorded_at: datetime | None
    price_obtained: str | None
    is_stand_in_price: bool
    lines: tuple[Line, ...]
    cost_usd: Decimal | None
    cost_obtained: str
    held_usd: Decimal | None
    adjustments: tuple[BookedAdjustment, ...]
    total_usd: Decimal | None
    ttft_s: float | None
    tpot_s: float | None
    duration_s: float
    overhead_s: float | None
    queue_s: float | None
    max_gap_s: float | None
    engine_queue_s: float | None
    degraded: str | None
    upstream_request_id: str | None
    objective: str | None
    rule: str | None
    degraded_because: str | None
    verdicts: tuple[ReceiptVerdict, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Receipt:
    """One request with all its attempts.

    `cost_usd` sums the costs known when the attempts ended; `total_usd` sums those known now,
    adjustments included. Each is None if no cost is known. `held_usd` covers the attempts that are
    still unknown.
    """

    request_id: UUID
    dataset: Dataset
    occurred_at: datetime
    team: str
    project: str | None
    cost_centre: str
    key_id: str
    end_user: str | None
    tags: Mapping[str, str]
    data_class: str
    policy_version: int
    operation: str
    posted_period: str
    client_request_id: str | None
    attempts: tuple[AttemptReceipt, ...]
    cost_usd: Decimal | None
    total_usd: Decimal | None
    held_usd: Decimal
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PriceFact:
    """The source of a price and its date in the price book. Neither ever changes."""

    source: str
    recorded_at: datetime | None = None


def arithmetic(line: Line) -> str:
    """Return the calculation of one line with every digit: `1,234 x 0.25 USD / 1,000,000 =
    0.0003085 USD`.
    """
    rate = plain_decimal(line.usd_per_mtok)
    exact = EXACT.multiply(line.tokens, line.usd_per_mtok) == EXACT.scaleb(
        Decimal(line.cost_nusd), -3
    )
    return (
        f"{line.tokens:,} × {rate} USD / 1,000,000 {'=' if exact else '≈'} "
        f"{plain_usd(line.cost_nusd)} USD"
    )


def receipt(
    snapshot: ReadSnapshot,
    request_id: UUID,
    *,
    dataset: Dataset,
    team: str | None,
    recent: Sequence[UsageEvent] = (),
) -> Receipt | None:
    """Return the receipt of a request, None if there is none, or none of this team.

    `team` None is for readers of all teams. `recent` are events of the request that may not be in
    the ledger yet; the ledger's own events override them. The time inside the id excludes all other
    months.
    """
    row = EVENTS[dataset].c
    attempts = (
        select(*row)
        .where(row.request_id == request_id, row.occurred_at == occurred_at(request_id))
        .order_by(row.attempt)
    )
    stored = snapshot.rows(attempts if team is None else attempts.where(row.team == team))
    rows = _with_recent(stored, recent, dataset=dataset, team=team)
    if not rows:
        return None
    adjustments = snapshot.rows(
        "SELECT * FROM finance.adjustments WHERE request_id = :request_id ORDER BY created_at, "
        "adjustment_id",
        request_id=request_id,
    )
    prices = snapshot.rows(
        "SELECT price_id, source, created_at FROM finance.prices WHERE price_id = ANY(:price_ids)",
        price_ids=sorted({row["price_id"] for row in rows if row["price_id"] is not None}),
    )
    facts = {
        row["price_id"]: PriceFact(source=row["source"], recorded_at=row["created_at"])
        for row in prices
    }
    return _receipt(rows, dataset, prices=facts, adjustments=adjustments)


def receipt_of_events(
    events: Sequence[UsageEvent], *, team: str, prices: Mapping[str, PriceFact]
) -> Receipt | None:
    """Return the receipt of events while Postgres is unavailable, None if none is of this team.

    It lacks the facts that only Postgres has: adjustments, and a price's recording day if `prices`
    lacks it.
    """
    rows = _with_recent((), events, dataset=Dataset.REAL, team=team)
    return _receipt(rows, Dataset.REAL, prices=prices, adjustments=()) if rows else None


def _with_recent(
    stored: Sequence[Row], recent: Sequence[UsageEvent], *, dataset: Dataset, team: str | None
) -> list[Row]:
    wanted = [
        e for e in recent if e.is_demo == (dataset is Dataset.DEMO) and team in (None, e.team)
    ]
    by_attempt: dict[int, Row] = {event.attempt: row_of(event) for event in wanted}
    by_attempt.update((row["attempt"], row) for row in stored)
    return [by_attempt[attempt] for attempt in sorted(by_attempt)]


def _receipt(
    rows: Sequence[Row],
    dataset: Dataset,
    *,
    prices: Mapping[str, PriceFact],
    adjustments: Sequence[Row],
) -> Receipt:
    attempts = tuple(
        _attempt(
            row, prices, [found for found in adjustments if found["attempt"] == row["attempt"]]
        )
        for row in rows
    )
    first = rows[0]
    return Receipt(
        request_id=first["request_id"],
        dataset=dataset,
        occurred_at=first["occurred_at"],
        team=first["team"],
        project=first["project"],
        cost_centre=first["cost_centre"],
        key_id=first["key_id"],
        end_user=first["end_user"],
        tags=dict(sorted((first["tags"] or {}).items())),  # Postgres sorts them in its own order
        data_class=first["data_class"],
        policy_version=first["policy_version"],
        operation=first["operation"],
        posted_period=_month(first["posted_period"]),
        client_request_id=first["client_request_id"],
        attempts=attempts,
        cost_usd=_sum(attempt.cost_usd for attempt in attempts),
        total_usd=_sum(attempt.total_usd for attempt in attempts),
        held_usd=sum(
            (a.held_usd for a in attempts if a.total_usd is None and a.held_usd is not None),
            Decimal(0),
        ),
        notes=notes(attempts, dataset),
    )


def _attempt(row: Row, prices: Mapping[str, PriceFact], adjusted: Sequence[Row]) -> AttemptReceipt:
    decision = row["decision"] or {}
    price = prices.get(row["price_id"] or "")
    is_stand_in = bool(row.get("is_stand_in_price"))
    reported = row.get("reported_usage")
    adjustments = tuple(_adjustment(found) for found in adjusted)
    is_known, is_settled = (
        row["cost_usd"] is not None,
        any(adjustment.settles for adjustment in adjustments),
    )
    figures = [row["cost_usd"], *(adjustment.amount_usd for adjustment in adjustments)]
    computed: dict[str, Any] = {
        "service_tier": row.get("service_tier"),
        "usage_obtained": usage_words(row["usage_source"], has_reported=reported is not None),
        "other_usage": _counts(
            row.get("usage_detail") or {}, besides=AttemptReceipt.__dataclass_fields__
        ),
        "reported": None if reported is None else _counts(reported),
        "price_source": price.source if price else None,
        "price_recorded_at": price.recorded_at if price else None,
        "price_obtained": price_words(price.source, price.recorded_at, is_stand_in=is_stand_in)
        if price
        else None,
        "is_stand_in_price": is_stand_in,
        "lines": tuple(_line(line) for line in row["lines"] or ()),
        "cost_obtained": cost_words(
            is_known=is_known, has_lines=bool(row["lines"]), is_settled=is_settled
        ),
        "adjustments": adjustments,
        "total_usd": _sum(figures) if is_known or is_settled else None,
        "objective": decision.get("objective"),
        "rule": decision.get("rule"),
        "degraded_because": degraded(decision),
        "verdicts": verdicts(decision),
    }
    plain = {
        name: row[name] for name in AttemptReceipt.__dataclass_fields__ if name not in computed
    }
    return AttemptReceipt(**plain, **computed)


def _counts(usage: Mapping[str, Any], *, besides: Container[str] = ()) -> dict[str, int]:
    """Return the reported counts in a fixed order; Postgres sorts them in another."""
    names = (name for name in TokenUsage.__struct_fields__ if name not in besides)
    return {name: usage[name] for name in names if usage.get(name) is not None}


def _line(line: Mapping[str, Any]) -> Line:
    return Line(
        kind=TokenKind(line["kind"]),
        tokens=int(line["tokens"]),
        usd_per_mtok=Decimal(str(line["usd_per_mtok"])),
        cost_nusd=int(line["cost_nusd"]),
    )


def _adjustment(row: Row) -> BookedAdjustment:
    return BookedAdjustment(
        amount_usd=row["amount_usd"],
        kind=row["kind"],
        reason=row["reason"],
        author=row["author"],
        settles=row["settles"],
        posted_period=_month(row["posted_period"]),
        created_at=row["created_at"],
    )


def _month(first_day: date) -> str:
    return f"{first_day:%Y-%m}"


def _sum(amounts: Iterable[Decimal | None]) -> Decimal | None:
    """Return the sum of the known amounts, None if none is known: unknown is never 0."""
    known = [amount for amount in amounts if amount is not None]
    return sum(known, Decimal(0)) if known else None
