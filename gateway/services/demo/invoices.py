"""Makes each provider's invoice out of the metered usage, and plants known gaps in it.

Each gap is a difference that `tollgate reconcile` has to find and name, with its exact amount.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import date, timedelta
from decimal import ROUND_HALF_UP, Decimal
from typing import NamedTuple

from gateway.domain.money import EXACT, nusd_from_usd, usd_from_nusd
from gateway.domain.pricing.pricing import MTOK, Line, Price, lines
from gateway.domain.pricing.tokens import TokenKind, TokenUsage
from gateway.services.demo.catalogue import (
    DESTINATIONS,
    OPENAI_US,
    PARTNER,
    PARTNER_PRICES,
    BilledAccount,
)
from gateway.services.demo.metered import Amount, Key, Metered, NotedAttempt
from gateway.services.demo.organisation import Calendar

CENT = Decimal("0.01")
FEE_USD, FEE_TEXT = Decimal("250.00"), "support plan"
BYPASS_DAYS, BYPASS_REQUESTS = 9, 40  # of the bypassing key: its days, and its requests on each
BYPASS_KEY, BYPASS_MODEL = "key_jsmith_laptop", "gpt-5-mini"
BYPASS_USAGE = TokenUsage(
    input_tokens=5_200, cached_input_tokens=1_920, output_tokens=510, reasoning_tokens=64
)
LEAST_UNSEEN_TOKENS = 4_000  # of the aborted stream, which the provider went on to write
PRICE_RISE = Decimal("1.0625")
PRICE_RISE_AFTER_DAYS = 14  # of the second contract
ROUNDED = "gemini"  # prints whole cents


class InvoiceKey(NamedTuple):
    """The place of usage on an invoice."""

    day: date
    billed_to: BilledAccount
    model: str


class Fee(NamedTuple):
    """A charge that is for no usage."""

    day: date
    billed_to: BilledAccount
    text: str
    nusd: int


@dataclass(slots=True)
class Invoice:
    """The billed usage and fees of one provider; the days are those on which it reports usage."""

    provider: str
    usage: dict[InvoiceKey, Metered] = field(default_factory=dict)
    fees: list[Fee] = field(default_factory=list)
    missing_days: set[date] = field(default_factory=set)

    def rows(self) -> list[tuple[InvoiceKey, TokenKind, Amount]]:
        """Return the billed amounts by day, account, model and kind, in this order."""
        return [
            (key, kind, self.usage[key].amounts[kind])
            for key in sorted(self.usage)
            for kind in sorted(self.usage[key].amounts)
        ]


class PlantedGap(NamedTuple):
    """A planted difference: billed less metered, as `reconcile` has to explain it."""

    cause: str
    provider: str
    model: str
    first: date
    last: date
    tokens: int
    nusd: int
    text: str


def invoices_of(usage: Mapping[Key, Metered]) -> dict[str, Invoice]:
    """Return the invoices, by provider, that bill exactly the metered usage."""
    found: dict[str, Invoice] = {}
    for (day, deployment), one in sorted(usage.items()):
        place = DESTINATIONS[deployment]
        if place.billed_to is None or not one.amounts:
            continue
        invoice = found.setdefault(place.provider, Invoice(place.provider))
        key = InvoiceKey(day, place.billed_to, place.model)
        invoice.usage.setdefault(key, Metered()).add(one)
    return found


def plant_gaps(
    invoices: Mapping[str, Invoice], calendar: Calendar, prices: Mapping[str, Price]
) -> list[PlantedGap]:
    """Change the invoices by each known gap, and return the gaps; `prices` are by deployment.

    A gap is left out if the organisation does not have the provider or attempt that it needs.
    """
    planters: tuple[tuple[str, Callable[[Invoice], Iterable[PlantedGap]]], ...] = (
        ("openai", lambda invoice: _bypassing_key(invoice, calendar, prices["mini-us"])),
        ("openai", _request_over_midnight),
        ("anthropic", _aborted_stream),
        ("anthropic", lambda invoice: _missing_day(invoice, calendar)),
        ("openai_compatible", lambda invoice: _new_price(invoice, calendar)),
        ("openai_compatible", lambda invoice: _fees(invoice, calendar)),
        (ROUNDED, _rounding),
    )
    found = [
        gap
        for provider, plant in planters
        if provider in invoices
        for gap in plant(invoices[provider])
    ]
    return sorted(found, key=lambda gap: (gap.provider, gap.first, gap.cause))


def _bypassing_key(invoice: Invoice, calendar: Calendar, price: Price) -> Iterable[PlantedGap]:
    """Bill requests of a key that the gateway does not have."""
    receipt = lines(BYPASS_USAGE, price)
    account = OPENAI_US._replace(key=BYPASS_KEY)
    first = calendar.new_price
    last = min(calendar.last, first + timedelta(days=BYPASS_DAYS - 1))
    days = (last - first).days + 1
    for n in range(days):
        billed = Metered(requests=BYPASS_REQUESTS)
        billed.add_lines(receipt, times=BYPASS_REQUESTS)
        invoice.usage[InvoiceKey(first + timedelta(days=n), account, BYPASS_MODEL)] = billed
    requests = days * BYPASS_REQUESTS
    yield PlantedGap(
        "unmetered",
        invoice.provider,
        BYPASS_MODEL,
        first,
        last,
        requests * sum(line.tokens for line in receipt),
        requests * sum(line.cost_nusd for line in receipt),
        f"key {BYPASS_KEY} of project {account.project} sends {BYPASS_REQUESTS} requests a day "
        "past the gateway",
    )


def _request_over_midnight(invoice: Invoice) -> Iterable[PlantedGap]:
    """Bill a request that ran over midnight on the day on which it ended."""
    for key, one in sorted(invoice.usage.items()):
        tomorrow = key._replace(day=key.day + timedelta(days=1))
        if one.over_midnight is None or tomorrow not in invoice.usage:
            continue
        late = one.over_midnight
        one.add_lines(late.lines, times=-1)
        one.requests -= 1
        invoice.usage[tomorrow].add_lines(late.lines)
        invoice.usage[tomorrow].requests += 1
        tokens, nusd = _sums(late)
        for day, sign, where in ((key.day, -1, "begins"), (tomorrow.day, 1, "is billed")):
            yield PlantedGap(
                "timing",
                invoice.provider,
                key.model,
                day,
                day,
                sign * tokens,
                sign * nusd,
                f"request {late.request_id} runs over midnight and {where} here",
            )
        return


def _aborted_stream(invoice: Invoice) -> Iterable[PlantedGap]:
    """Bill the whole answer of a stream whose caller left."""
    for key, one in sorted(invoice.usage.items()):
        if one.aborted is None:
            continue
        seen = next((line for line in one.aborted.lines if line.kind is TokenKind.OUTPUT), None)
        if seen is None:
            continue
        tokens = max(LEAST_UNSEEN_TOKENS, 2 * seen.tokens)
        nusd = _nusd(tokens, seen.usd_per_mtok)
        one.amounts[TokenKind.OUTPUT].add(tokens, nusd)
        yield PlantedGap(
            "aborted",
            invoice.provider,
            key.model,
            key.day,
            key.day,
            tokens,
            nusd,
            f"request {one.aborted.request_id} was aborted after {seen.tokens} output tokens; the "
            "provider wrote and billed the whole answer",
        )
        return


def _missing_day(invoice: Invoice, calendar: Calendar) -> Iterable[PlantedGap]:
    """Leave a whole day out of the export."""
    day = calendar.new_price + timedelta(days=20)
    gone = [key for key in sorted(invoice.usage) if key.day == day]
    if gone:
        invoice.missing_days.add(day)
    for key in gone:
        one = invoice.usage.pop(key)
        yield PlantedGap(
            "missing_bill",
            invoice.provider,
            key.model,
            day,
            day,
            -sum(amount.tokens for amount in one.amounts.values()),
            -one.nusd,
            "the export has no line of this day",
        )


def _new_price(invoice: Invoice, calendar: Calendar) -> Iterable[PlantedGap]:
    """Bill by a price that the ledger does not know, from a day on."""
    since = calendar.new_price + timedelta(days=PRICE_RISE_AFTER_DAYS)
    rates = {rate.kind: rate.usd_per_mtok for rate in PARTNER_PRICES[-1].rates}
    total, models = 0, set()
    for key, kind, amount in invoice.rows():
        if key.day < since:
            continue
        nusd = _nusd(amount.tokens, EXACT.multiply(rates[kind], PRICE_RISE))
        total += nusd - amount.nusd
        amount.nusd = nusd
        models.add(key.model)
    for model in sorted(models):
        yield PlantedGap(
            "price",
            invoice.provider,
            model,
            since,
            calendar.last,
            0,
            total,
            f"every token costs {PRICE_RISE} times the agreed price from {since} on",
        )


def _fees(invoice: Invoice, calendar: Calendar) -> Iterable[PlantedGap]:
    """Bill a fee on the first day of each month."""
    nusd = nusd_from_usd(FEE_USD)
    day = calendar.first
    while day <= calendar.last:
        invoice.fees.append(Fee(day, PARTNER, FEE_TEXT, nusd))
        yield PlantedGap(
            "fee", invoice.provider, "", day, day, 0, nusd, f"{FEE_TEXT}, for no usage"
        )
        day = (day + timedelta(days=32)).replace(day=1)


def _rounding(invoice: Invoice) -> Iterable[PlantedGap]:
    """Print whole cents: the difference of a line is at most half a cent."""
    totals: dict[tuple[int, int], list[int]] = {}
    for key, _, amount in invoice.rows():
        exact = usd_from_nusd(amount.nusd)
        printed = nusd_from_usd(exact.quantize(CENT, rounding=ROUND_HALF_UP))
        totals.setdefault((key.day.year, key.day.month), []).append(printed - amount.nusd)
        amount.nusd = printed
    days = sorted({key.day for key in invoice.usage})
    for (year, month), differences in sorted(totals.items()):
        own = [day for day in days if (day.year, day.month) == (year, month)]
        yield PlantedGap(
            "rounding",
            invoice.provider,
            "",
            own[0],
            own[-1],
            0,
            sum(differences),
            f"{len(differences)} lines are printed in whole cents",
        )


def _nusd(tokens: int, usd_per_mtok: Decimal) -> int:
    """Return the cost of tokens in nano-dollars, rounded once, half-even."""
    return nusd_from_usd(EXACT.divide(EXACT.multiply(Decimal(tokens), usd_per_mtok), Decimal(MTOK)))


def _sums(attempt: NotedAttempt) -> tuple[int, int]:
    """Return the tokens and the cost of an attempt."""
    found: tuple[Line, ...] = attempt.lines
    return sum(line.tokens for line in found), sum(line.cost_nusd for line in found)
