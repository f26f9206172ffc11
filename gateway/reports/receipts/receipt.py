"""Builds the receipt of one request from stored and recent events: each attempt's cost line by
line, its deployment's reasons, sums and notes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date, datetime
from decimal import Decimal
from uuid import UUID

from sqlalchemy import select

from gateway.domain.ids import has_moment, occurred_at
from gateway.domain.ledger.usage_event import UsageEvent
from gateway.domain.money import EXACT, plain_usd
from gateway.domain.pricing.pricing import Line
from gateway.reports.plain_decimal import plain_decimal
from gateway.reports.receipts.attempt import AttemptReceipt, BookedAdjustment, PriceFact, known_sum
from gateway.reports.report import Dataset
from gateway.reports.sources.booked_event import BookedEvent, from_row, to_be_booked
from gateway.reports.sources.connection import ReadSnapshot, Row
from gateway.reports.sources.facts import EVENTS
from gateway.storage.policy.prices import price_from_row


@dataclass(frozen=True, slots=True, kw_only=True)
class Receipt:
    """One request with all its attempts.

    `cost_usd` sums the costs known when the attempts ended; `total_usd` sums those known now,
    adjustments included. Each is None if no cost is known. `held_usd` covers the attempts that are
    still unknown.
    """

    request_id: UUID
    dataset: str
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


def arithmetic(line: Line) -> str:
    """Return the calculation of one priced line with every digit: `1,234 x 0.25 USD / 1,000,000 =
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
    if not has_moment(request_id):
        return None
    row = EVENTS[dataset].c
    attempts = (
        select(*row)
        .where(row.request_id == request_id, row.occurred_at == occurred_at(request_id))
        .order_by(row.attempt)
    )
    stored = snapshot.rows(attempts if team is None else attempts.where(row.team == team))
    booked = _with_recent(
        [from_row(found, dataset) for found in stored], recent, dataset=dataset, team=team
    )
    if not booked:
        return None
    adjustments = snapshot.rows(
        "SELECT * FROM finance.adjustments WHERE request_id = :request_id ORDER BY created_at, "
        "adjustment_id",
        request_id=request_id,
    )
    prices = snapshot.rows(
        "SELECT * FROM finance.prices WHERE price_id = ANY(:price_ids)",
        price_ids=sorted({one.event.price_id for one in booked if one.event.price_id is not None}),
    )
    facts = {
        row["price_id"]: PriceFact(price=price_from_row(row), recorded_at=row["created_at"])
        for row in prices
    }
    return _receipt(booked, dataset, prices=facts, adjustments=adjustments)


def receipt_of_events(
    events: Sequence[UsageEvent], *, team: str, prices: Mapping[str, PriceFact]
) -> Receipt | None:
    """Return the receipt of events while Postgres is unavailable, None if none is of this team.

    It lacks the facts that only Postgres has: adjustments, and a price's recording day if `prices`
    lacks it.
    """
    found = _with_recent((), events, dataset=Dataset.REAL, team=team)
    return _receipt(found, Dataset.REAL, prices=prices, adjustments=()) if found else None


def for_caller(receipt: Receipt) -> Receipt:
    """Return a receipt for the team's own key: without cached tokens and costs if an attempt was at
    a deployment that shows callers neither.
    """
    hides = [bool(one.event.features.get("hides_cache")) for one in receipt.attempts]
    if not any(hides):
        return receipt
    attempts = tuple(
        replace(one, hides_cache=is_hidden)
        for one, is_hidden in zip(receipt.attempts, hides, strict=True)
    )
    note = "Cached tokens and costs of an attempt are not shown: teams share its cached prompts."
    return replace(
        receipt, attempts=attempts, cost_usd=None, total_usd=None, notes=(note, *receipt.notes)
    )


def _with_recent(
    stored: Sequence[BookedEvent],
    recent: Sequence[UsageEvent],
    *,
    dataset: Dataset,
    team: str | None,
) -> list[BookedEvent]:
    """Return a request's events in the order of its attempts: the stored ones, and recent ones that
    are not stored yet.
    """
    wanted = [
        e for e in recent if e.is_demo == (dataset is Dataset.DEMO) and team in (None, e.team)
    ]
    by_attempt = {event.attempt: to_be_booked(event) for event in wanted}
    by_attempt.update((one.event.attempt, one) for one in stored)
    return [by_attempt[attempt] for attempt in sorted(by_attempt)]


def _receipt(
    booked: Sequence[BookedEvent],
    dataset: Dataset,
    *,
    prices: Mapping[str, PriceFact],
    adjustments: Sequence[Row],
) -> Receipt:
    """Return the receipt of a request's events, with their prices, adjustments and sums."""
    attempts = tuple(
        AttemptReceipt(
            event=one.event,
            price=prices.get(one.event.price_id or ""),
            adjustments=tuple(
                _adjustment(row) for row in adjustments if row["attempt"] == one.event.attempt
            ),
        )
        for one in booked
    )
    first = booked[0].event
    return Receipt(
        request_id=first.request_id,
        dataset=dataset,
        occurred_at=first.occurred_at,
        team=first.team,
        project=first.project,
        cost_centre=first.cost_centre,
        key_id=first.key_id,
        end_user=first.end_user,
        tags=dict(sorted(first.tags.items())),  # Postgres sorts them in its own order
        data_class=first.data_class,
        policy_version=first.policy_version,
        operation=first.operation,
        posted_period=_month(booked[0].posted_period),
        client_request_id=first.client_request_id,
        attempts=attempts,
        cost_usd=known_sum(attempt.cost_usd for attempt in attempts),
        total_usd=known_sum(attempt.total_usd for attempt in attempts),
        held_usd=sum(
            (a.held_usd for a in attempts if a.total_usd is None and a.held_usd is not None),
            Decimal(0),
        ),
        notes=_notes(attempts, dataset),
    )


def _adjustment(row: Row) -> BookedAdjustment:
    """Return the booked adjustment of a row."""
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
    """Return the month of a day as text, `YYYY-MM`."""
    return f"{first_day:%Y-%m}"


def _notes(attempts: Sequence[AttemptReceipt], dataset: Dataset) -> tuple[str, ...]:
    """Return the notes below a receipt of these attempts."""
    found = ["Demo data: generated, not real spend."] if dataset is Dataset.DEMO else []
    if any(attempt.total_usd is None for attempt in attempts):
        found.append(
            "The cost of an attempt is unknown: it is not in the total; the amount held is the "
            "most it can be."
        )
    if any(attempt.event.usage_source in ("derived", "estimated") for attempt in attempts):
        found.append(
            "Usage of an attempt is derived: the gateway's own count or a running figure, not "
            "the provider's final figure."
        )
    if any(attempt.event.is_suspect for attempt in attempts):
        found.append(
            "The upstream's usage of an attempt contradicts itself or its price and was not "
            "charged as sent."
        )
    if any(attempt.event.is_stand_in_price for attempt in attempts):
        found.append(
            "An attempt is charged at a stand-in or estimated price: its own is not known."
        )
    if any(attempt.adjustments for attempt in attempts):
        found.append(
            "An attempt was adjusted after it was booked: total_usd includes that, cost_usd "
            "does not."
        )
    if any(attempt.event.is_self_hosted for attempt in attempts):
        found.append(
            "A self-hosted attempt is priced at standard cost; idle GPU time is not in it."
        )
    return (
        *found,
        "Money in USD, each line rounded once, half-even, to the nano-dollar; times in UTC.",
    )
