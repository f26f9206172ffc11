"""The cost of one request line by line, and the reasons for its deployment."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from uuid import UUID

from sqlalchemy import select

from gateway.domain.ids import occurred_at
from gateway.domain.ledger.usage_event import UsageEvent
from gateway.domain.money import EXACT, plain_usd, usd_from_nusd
from gateway.domain.pricing.pricing import Line
from gateway.domain.pricing.tokens import TokenUsage
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
from gateway.reports.sources.booked_event import COUNTS, BookedEvent, from_row, to_be_booked
from gateway.reports.sources.connection import ReadSnapshot, Row
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
class PriceFact:
    """The source of a price and its date in the price book. Neither ever changes."""

    source: str
    recorded_at: datetime | None = None


# Members of a receipt's document that are members of the event, in the order of the document.
_PLACE = (
    "attempt",
    "started_at",
    "route",
    "deployment",
    "provider",
    "model",
    "region",
    "is_self_hosted",
    "outcome",
    "http_status",
    "streamed",
    "finish_reason",
    "service_tier",
)
_TIMES = (
    "ttft_s",
    "tpot_s",
    "duration_s",
    "overhead_s",
    "queue_s",
    "max_gap_s",
    "engine_queue_s",
    "degraded",
    "upstream_request_id",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptReceipt:
    """One attempt: its event, the source of its price if known, and its adjustments.

    The `_obtained` members name the source of a figure in words.
    """

    event: UsageEvent
    price: PriceFact | None
    adjustments: tuple[BookedAdjustment, ...]

    @property
    def usage_obtained(self) -> str:
        """Return the source of the usage."""
        has_reported = self.event.reported is not None
        return usage_words(self.event.usage_source, has_reported=has_reported)

    @property
    def other_usage(self) -> Mapping[str, int]:
        """Return the counts that few upstreams report: audio, images, tool calls."""
        return _counts(self.event.usage, besides=COUNTS)

    @property
    def reported(self) -> Mapping[str, int] | None:
        """Return the upstream's usage, if another usage was charged."""
        return None if self.event.reported is None else _counts(self.event.reported)

    @property
    def price_obtained(self) -> str | None:
        """Return the source of the price; None if it is unknown."""
        if self.price is None:
            return None
        source, recorded_at = self.price.source, self.price.recorded_at
        return price_words(source, recorded_at, is_stand_in=self.event.is_stand_in_price)

    @property
    def cost_usd(self) -> Decimal | None:
        """Return the cost when the attempt ended; None if unknown."""
        return None if self.event.cost_nusd is None else usd_from_nusd(self.event.cost_nusd)

    @property
    def cost_obtained(self) -> str:
        """Return the source of the cost."""
        return cost_words(
            is_known=self.cost_usd is not None,
            has_lines=bool(self.event.lines),
            is_settled=self._is_settled,
        )

    @property
    def held_usd(self) -> Decimal | None:
        """Return the upper bound of an unknown cost."""
        return None if self.event.held_nusd is None else usd_from_nusd(self.event.held_nusd)

    @property
    def total_usd(self) -> Decimal | None:
        """Return the cost with all adjustments; None while it is unknown."""
        if self.cost_usd is None and not self._is_settled:
            return None
        return _sum((self.cost_usd, *(one.amount_usd for one in self.adjustments)))

    @property
    def verdicts(self) -> tuple[ReceiptVerdict, ...]:
        """Return the stored decision in words."""
        return verdicts(self.event.decision)

    @property
    def degraded_because(self) -> str | None:
        """Return why the attempt was degraded; None if it was not."""
        return degraded(self.event.decision)

    @property
    def _is_settled(self) -> bool:
        return any(one.settles for one in self.adjustments)

    def members(self) -> dict[str, object]:
        """Return the members of its document, in their order."""
        event, price = self.event, self.price
        return {
            **{name: getattr(event, name) for name in _PLACE},
            **{name: getattr(event.usage, name) for name in COUNTS},
            "usage_source": event.usage_source,
            "usage_obtained": self.usage_obtained,
            "other_usage": self.other_usage,
            "reported": self.reported,
            "is_suspect": event.is_suspect,
            "price_id": event.price_id,
            "price_source": None if price is None else price.source,
            "price_recorded_at": None if price is None else price.recorded_at,
            "price_obtained": self.price_obtained,
            "is_stand_in_price": event.is_stand_in_price,
            "lines": event.lines,
            "cost_usd": self.cost_usd,
            "cost_obtained": self.cost_obtained,
            "held_usd": self.held_usd,
            "adjustments": self.adjustments,
            "total_usd": self.total_usd,
            **{name: getattr(event, name) for name in _TIMES},
            "objective": event.decision.get("objective"),
            "rule": event.decision.get("rule"),
            "degraded_because": self.degraded_because,
            "verdicts": self.verdicts,
        }


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
        "SELECT price_id, source, created_at FROM finance.prices WHERE price_id = ANY(:price_ids)",
        price_ids=sorted({one.event.price_id for one in booked if one.event.price_id is not None}),
    )
    facts = {
        row["price_id"]: PriceFact(source=row["source"], recorded_at=row["created_at"])
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


def _with_recent(
    stored: Sequence[BookedEvent],
    recent: Sequence[UsageEvent],
    *,
    dataset: Dataset,
    team: str | None,
) -> list[BookedEvent]:
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
        cost_usd=_sum(attempt.cost_usd for attempt in attempts),
        total_usd=_sum(attempt.total_usd for attempt in attempts),
        held_usd=sum(
            (a.held_usd for a in attempts if a.total_usd is None and a.held_usd is not None),
            Decimal(0),
        ),
        notes=notes(attempts, dataset),
    )


def _counts(usage: TokenUsage, *, besides: Container[str] = ()) -> dict[str, int]:
    """Return the reported counts; an unreported one is left out."""
    names = (name for name in TokenUsage.__struct_fields__ if name not in besides)
    found = ((name, getattr(usage, name)) for name in names)
    return {name: count for name, count in found if count is not None}


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
