"""Declares one attempt of a receipt (its event, price and adjustments), and derives its total and
its figures' sources.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal

from gateway.domain.ledger.usage_event import UsageEvent
from gateway.domain.money import usd_from_nusd
from gateway.domain.pricing.pricing import Price, UnknownTier, cache_saving_nusd
from gateway.domain.pricing.tokens import UNCACHED_KINDS, TokenKind, TokenUsage
from gateway.domain.routing.prediction_messages import degraded
from gateway.reports.receipts.messages import (
    HIDDEN_COST,
    ReceiptVerdict,
    cost_words,
    price_words,
    usage_words,
    verdicts,
)
from gateway.reports.sources.booked_event import COUNTS


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
    """A price and its date in the price book. Neither ever changes."""

    price: Price
    recorded_at: datetime | None = None

    @property
    def source(self) -> str:
        """Return the origin of the price's rates."""
        return self.price.source


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
# An attempt shows this in place of the figures that tell of a cache which teams share: a cached
# token is cheaper, and the upstream's own figures have its cost and its time.
_HIDDEN: dict[str, object] = {
    "cached_input_tokens": None,
    "cache_write_tokens": None,
    "usage_detail": {},
    "reported": None,
    "lines": (),
    "cost_usd": None,
    "cost_obtained": HIDDEN_COST,
    "cached_share": None,
    "cache_saving_usd": None,
    "adjustments": (),
    "total_usd": None,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptReceipt:
    """One attempt: its event, the source of its price if known, and its adjustments.

    The `_obtained` members name the source of a figure in words. `hides_cache`: its members show
    neither cached tokens nor costs.
    """

    event: UsageEvent
    price: PriceFact | None
    adjustments: tuple[BookedAdjustment, ...]
    hides_cache: bool = False

    @property
    def usage_obtained(self) -> str:
        """Return in words the source of the attempt's token counts."""
        has_reported = self.event.reported is not None
        return usage_words(self.event.usage_source, has_reported=has_reported)

    @property
    def other_usage(self) -> Mapping[str, int]:
        """Return the attempt's counts that few upstreams report: audio, images, tool calls."""
        return _counts(self.event.usage, besides=COUNTS)

    @property
    def usage_detail(self) -> Mapping[str, object]:
        """Return the upstream's own figures beside tokens, in the order of their names: its cost,
        its times.
        """
        return dict(sorted(self.event.usage_detail.items()))  # Postgres has an order of its own

    @property
    def reported(self) -> Mapping[str, int] | None:
        """Return the upstream's usage if another usage was charged, else None."""
        return None if self.event.reported is None else _counts(self.event.reported)

    @property
    def price_obtained(self) -> str | None:
        """Return in words the source of the attempt's price; None if it is unknown."""
        if self.price is None:
            return None
        source, recorded_at = self.price.source, self.price.recorded_at
        return price_words(source, recorded_at, is_stand_in=self.event.is_stand_in_price)

    @property
    def cost_usd(self) -> Decimal | None:
        """Return the attempt's cost when it ended; None if unknown."""
        return None if self.event.cost_nusd is None else usd_from_nusd(self.event.cost_nusd)

    @property
    def cost_obtained(self) -> str:
        """Return in words how the attempt's cost was computed."""
        return cost_words(
            is_known=self.cost_usd is not None,
            has_lines=bool(self.event.lines),
            is_settled=self._is_settled,
        )

    @property
    def cached_share(self) -> Decimal | None:
        """Return the share of the prompt that was read from the provider's cache, with four
        decimals; None if not reported.
        """
        usage = self.event.usage
        if usage.cached_input_tokens is None or not usage.input_tokens:
            return None
        return round(Decimal(usage.cached_input_tokens) / usage.input_tokens, 4)

    @property
    def cache_saving_usd(self) -> Decimal | None:
        """Return how much less the cached tokens cost than uncached ones, whole nano-dollars;
        negative if the surcharge of cache writes is larger.

        None if the cost, the cached tokens or the rate of uncached ones is unknown. The report
        `savings` computes the same amount in SQL: `sources/cache_savings.py`.
        """
        event = self.event
        if event.cost_nusd is None or event.usage.cached_input_tokens is None:
            return None
        rates: dict[TokenKind, Decimal] = {}
        for line in event.lines:
            kind = UNCACHED_KINDS.get(line.kind)
            if kind is not None:
                rate = self._usd_per_mtok(kind)
                if rate is None:
                    return None
                rates[kind] = rate
        if not rates:
            return Decimal(0)
        return usd_from_nusd(cache_saving_nusd(event.lines, usd_per_mtok=rates))

    @property
    def held_usd(self) -> Decimal | None:
        """Return the upper bound of the attempt's cost if that was unknown when it ended; a later
        settlement does not change it.
        """
        return None if self.event.held_nusd is None else usd_from_nusd(self.event.held_nusd)

    @property
    def total_usd(self) -> Decimal | None:
        """Return the attempt's cost with all adjustments; None while it is unknown."""
        if self.cost_usd is None and not self._is_settled:
            return None
        return known_sum((self.cost_usd, *(one.amount_usd for one in self.adjustments)))

    @property
    def verdicts(self) -> tuple[ReceiptVerdict, ...]:
        """Return the stored decision in words: the verdict on each deployment."""
        return verdicts(self.event.decision)

    @property
    def degraded_because(self) -> str | None:
        """Return in words why the attempt was degraded; None if it was not."""
        return degraded(self.event.decision)

    def _usd_per_mtok(self, kind: TokenKind) -> Decimal | None:
        """Return the rate of a kind that the attempt was charged by, or would have been if all its
        tokens were cached; None if unknown.
        """
        for line in self.event.lines:
            if line.kind is kind:
                return line.usd_per_mtok
        if self.price is None:
            return None
        try:
            price = self.price.price.for_tier(self.event.service_tier)
        except UnknownTier:
            return None
        return price.rate(kind, input_tokens=self.event.usage.input_tokens or 0)

    @property
    def _is_settled(self) -> bool:
        """Return True if an adjustment has settled the attempt's unknown cost."""
        return any(one.settles for one in self.adjustments)

    def members(self) -> dict[str, object]:
        """Return the members of the attempt's JSON object in a receipt, in their order."""
        members = self._all_members()
        if not self.hides_cache:
            return members
        other = {name: count for name, count in self.other_usage.items() if "cache" not in name}
        return members | _HIDDEN | {"other_usage": other}

    def _all_members(self) -> dict[str, object]:
        """Return the members with all figures."""
        event, price = self.event, self.price
        return {
            **{name: getattr(event, name) for name in _PLACE},
            "sent_as": event.features.get("sent_as"),  # None in the caller's own dialect
            **{name: getattr(event.usage, name) for name in COUNTS},
            "usage_source": event.usage_source,
            "usage_obtained": self.usage_obtained,
            "other_usage": self.other_usage,
            "usage_detail": self.usage_detail,
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
            "cached_share": self.cached_share,
            "cache_saving_usd": self.cache_saving_usd,
            "held_usd": self.held_usd,
            "adjustments": self.adjustments,
            "total_usd": self.total_usd,
            **{name: getattr(event, name) for name in _TIMES},
            "objective": event.decision.get("objective"),
            "rule": event.decision.get("rule"),
            "degraded_because": self.degraded_because,
            "verdicts": self.verdicts,
        }


def _counts(usage: TokenUsage, *, besides: Container[str] = ()) -> dict[str, int]:
    """Return the reported token counts of a usage by name, without those in `besides`; an
    unreported one is left out.
    """
    names = (name for name in TokenUsage.__struct_fields__ if name not in besides)
    found = ((name, getattr(usage, name)) for name in names)
    return {name: count for name, count in found if count is not None}


def known_sum(amounts: Iterable[Decimal | None]) -> Decimal | None:
    """Return the sum of the known amounts, None if none is known: unknown is never 0."""
    known = [amount for amount in amounts if amount is not None]
    return sum(known, Decimal(0)) if known else None
