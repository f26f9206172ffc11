"""Declares the columns of FOCUS 1.2 and 1.3, with the value of each for a charge, and our own `x_`
columns; the reference page is made from this list.

Source: the FOCUS specification 1.2 (2025-05-29) and 1.3 (2025-12-04), https://focus.finops.org.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from enum import StrEnum
from typing import Any

import msgspec

from gateway.domain.calendar_months import next_month
from gateway.domain.pricing.tokens import CALL_KINDS, TokenKind
from gateway.reports.exports.focus.charge import Charge, LineKind
from gateway.reports.report import Cell, Column, ColumnKind, Notation

MILLION = Decimal(1_000_000)
UNKNOWN = "unallocated"
OWN_PROVIDER = "Self-hosted"
_GPU_LINES = frozenset({LineKind.EMPTY, LineKind.UNDERFILLED, LineKind.VARIANCE})
_CALLS = frozenset(kind.value for kind in CALL_KINDS)


class FocusVersion(StrEnum):
    """A version of FOCUS that can be written."""

    V1_2 = "1.2"
    V1_3 = "1.3"


@dataclass(frozen=True, slots=True, kw_only=True)
class FocusColumn:
    """A column of the export: its name, its value for a charge, and its meaning here.

    `since` is the first version that has it; before it, it is written with the prefix `x_`.
    """

    name: str
    kind: ColumnKind
    meaning: str
    value: Callable[[Charge], Cell] = field(compare=False, default=lambda _: None)
    since: FocusVersion = FocusVersion.V1_2

    def report_column(self, version: FocusVersion) -> Column:
        """Return the report's column in a version."""
        unit = {ColumnKind.MONEY: "USD", ColumnKind.TIME: "UTC"}.get(self.kind, "")
        name = self.name if self.since <= version else f"x_{self.name}"
        return Column(name=name, unit=unit, kind=self.kind, notation=Notation.FOCUS)


def columns_of(version: FocusVersion) -> tuple[Column, ...]:
    """Return the columns of the export in a version."""
    return tuple(column.report_column(version) for column in COLUMNS)


def cells_of(charge: Charge, *, is_billed_elsewhere: bool) -> tuple[Cell, ...]:
    """Return the cells of a charge; with `is_billed_elsewhere` its `BilledCost` is 0."""
    cells = [column.value(charge) for column in COLUMNS]
    if is_billed_elsewhere:
        cells[_BILLED] = Decimal(0)
    return tuple(cells)


def _midnight(day: date) -> datetime:
    return datetime.combine(day, time(), UTC)


def _is_usage(charge: Charge) -> bool:
    """Return True if a charge has the FOCUS category Usage."""
    return charge.line_kind in (LineKind.USAGE, LineKind.EMPTY, LineKind.UNDERFILLED)


def _category(charge: Charge) -> str:
    """Return the charge's category: a negative adjustment is a credit."""
    if _is_usage(charge):
        return "Usage"
    return "Credit" if charge.amount_usd < 0 else "Adjustment"


def _class(charge: Charge) -> str | None:
    """Return `Correction` for a charge that corrects an earlier billing period."""
    is_later = charge.posted_period > charge.day.replace(day=1)
    return "Correction" if is_later and charge.line_kind is LineKind.ADJUSTMENT else None


def _provider(charge: Charge) -> str:
    if charge.is_self_hosted:
        return OWN_PROVIDER
    return charge.provider or "Tollgate"


def _description(charge: Charge) -> str:
    """Return the charge's description for people, of names that a policy chooses: the validator
    allows only ASCII, and a reason or a tag may be in any script.
    """
    match charge.line_kind:
        case LineKind.USAGE:
            return f"{charge.model}: {charge.token_kind or 'attempts'}"
        case LineKind.ADJUSTMENT:
            return f"Adjustment: {charge.adjustment_kind}"
        case LineKind.EMPTY:
            return f"GPU time of {charge.deployment} without any request"
        case LineKind.UNDERFILLED:
            return f"GPU time of {charge.deployment} that its requests left unused"
        case LineKind.VARIANCE:
            return f"GPU bill of {charge.deployment} less its hours at the declared rate"


def _unit(charge: Charge) -> str | None:
    if not _is_usage(charge):
        return None
    if charge.line_kind is not LineKind.USAGE:
        return "GPU Hours"
    if charge.token_kind is None:
        return "Attempts"
    return "Calls" if charge.token_kind in _CALLS else "Tokens"


def _quantity(charge: Charge) -> Decimal | None:
    if not _is_usage(charge):
        return None
    return charge.count if charge.count is not None else Decimal(charge.attempts or 0)


def _unit_price(charge: Charge) -> Decimal | None:
    if charge.usd_per_million is None or not _is_usage(charge):
        return None
    return charge.usd_per_million / MILLION


def _at_rate(charge: Charge) -> Decimal:
    """Return the cost at the rate, before it was rounded for each attempt; the charge itself
    without a rate.
    """
    price, quantity = _unit_price(charge), _quantity(charge)
    return charge.amount_usd if price is None or quantity is None else price * quantity


def _sku(charge: Charge) -> str | None:
    if not _is_usage(charge):
        return None
    return f"{_provider(charge)}/{charge.model or charge.deployment}"


def _meter(charge: Charge) -> str | None:
    if not _is_usage(charge):
        return None
    if charge.line_kind is LineKind.USAGE:
        return charge.token_kind or "attempts"
    return charge.line_kind.value


def _sku_price(charge: Charge) -> str | None:
    if charge.usd_per_million is None or not _is_usage(charge):
        return None
    return f"{charge.price_id or 'gpu'}/{_meter(charge)}"


def _json(value: object) -> str:
    return msgspec.json.encode(value, order="sorted").decode()


def _tags(charge: Charge) -> str | None:
    return None if charge.tags is None else _json(dict(charge.tags))


def _allocated(value: Callable[[Charge], Cell]) -> Callable[[Charge], Cell]:
    """Return a value that only the parts of a known GPU bill have."""
    return lambda charge: None if charge.allocated_share is None else value(charge)


def _method_details(charge: Charge) -> str:
    """Return the share of the origin charge as FOCUS 1.3 writes it."""
    assert charge.allocated_share is not None
    element: dict[str, Any] = {
        "AllocatedRatio": msgspec.Raw(f"{charge.allocated_share:f}".encode())
    }
    quantity = _quantity(charge)
    if quantity is not None:
        element |= {
            "UsageUnit": _unit(charge),
            "UsageQuantity": msgspec.Raw(f"{quantity:f}".encode()),
        }
    return _json({"Elements": [element]})


def _columns() -> Iterator[FocusColumn]:
    """Yield the columns in the order of the export: FOCUS' by name, then ours."""
    text, money = ColumnKind.TEXT, ColumnKind.MONEY

    def of(
        name: str,
        meaning: str,
        value: Callable[[Charge], Cell] = lambda _: None,
        kind: ColumnKind = text,
        since: FocusVersion = FocusVersion.V1_2,
    ) -> FocusColumn:
        return FocusColumn(name=name, kind=kind, meaning=meaning, value=value, since=since)

    none = "empty: Tollgate knows none"
    yield of("AvailabilityZone", none)
    yield of(
        "BilledCost",
        "as EffectiveCost; 0 with --billed-elsewhere, if the provider's own file is loaded too",
        lambda c: c.amount_usd,
        money,
    )
    yield of("BillingAccountId", "the cost centre", lambda c: c.cost_centre or UNKNOWN)
    yield of("BillingAccountName", "the cost centre", lambda c: c.cost_centre or UNKNOWN)
    yield of("BillingAccountType", "Cost centre", lambda _: "Cost centre")
    yield of("BillingCurrency", "USD", lambda _: "USD")
    yield of(
        "BillingPeriodEnd",
        "the first moment after the month",
        lambda c: _midnight(next_month(c.posted_period)),
        ColumnKind.TIME,
    )
    yield of(
        "BillingPeriodStart",
        "the month that the charge is posted to",
        lambda c: _midnight(c.posted_period),
        ColumnKind.TIME,
    )
    yield of("CapacityReservationId", none)
    yield of("CapacityReservationStatus", none)
    yield of("ChargeCategory", "Usage, Adjustment, or Credit if it is negative", _category)
    yield of("ChargeClass", "Correction, if an adjustment is of an earlier month", _class)
    yield of(
        "ChargeDescription",
        "the charge in words, without names in other scripts than ASCII",
        _description,
    )
    yield of(
        "ChargeFrequency",
        "Usage-Based, or One-Time for an adjustment",
        lambda c: "One-Time" if c.line_kind is LineKind.ADJUSTMENT else "Usage-Based",
    )
    yield of(
        "ChargePeriodEnd",
        "the next midnight, UTC",
        lambda c: _midnight(c.day + timedelta(days=1)),
        ColumnKind.TIME,
    )
    yield of(
        "ChargePeriodStart",
        "the day on which the requests came, UTC",
        lambda c: _midnight(c.day),
        ColumnKind.TIME,
    )
    for name in ("Category", "Id", "Name", "Quantity", "Status", "Type", "Unit"):
        yield of(f"CommitmentDiscount{name}", none, kind=money if name == "Quantity" else text)
    yield of("ConsumedQuantity", "as PricingQuantity", _quantity, money)
    yield of("ConsumedUnit", "as PricingUnit", _unit)
    yield of("ContractedCost", "ContractedUnitPrice × PricingQuantity", _at_rate, money)
    yield of("ContractedUnitPrice", "USD per unit, as charged", _unit_price, money)
    yield of("EffectiveCost", "the exact amount in the ledger", lambda c: c.amount_usd, money)
    yield of("InvoiceId", none)
    yield of("InvoiceIssuerName", "as ProviderName", _provider)
    yield of("ListCost", "as ContractedCost: the price book has one rate", _at_rate, money)
    yield of("ListUnitPrice", "as ContractedUnitPrice", _unit_price, money)
    yield of(
        "PricingCategory",
        "Standard; empty without a rate",
        lambda c: None if _unit_price(c) is None else "Standard",
    )
    yield of("PricingCurrency", none)
    for name in ("ContractedUnitPrice", "EffectiveCost", "ListUnitPrice"):
        yield of(f"PricingCurrency{name}", none, kind=money)
    yield of("PricingQuantity", "tokens, calls, attempts or GPU hours", _quantity, money)
    yield of("PricingUnit", "Tokens, Calls, Attempts or GPU Hours", _unit)
    yield of("ProviderName", "the provider, or Self-hosted", _provider)
    yield of("PublisherName", "the provider or engine", lambda c: c.provider or _provider(c))
    yield of("RegionId", "the deployment's region", lambda c: c.region)
    yield of("RegionName", "the deployment's region", lambda c: c.region)
    yield of("ResourceId", "the deployment", lambda c: c.deployment)
    yield of("ResourceName", "the deployment", lambda c: c.deployment)
    yield of(
        "ResourceType",
        "Model deployment",
        lambda c: None if c.deployment is None else "Model deployment",
    )
    yield of("ServiceCategory", "AI and Machine Learning", lambda _: "AI and Machine Learning")
    yield of("ServiceName", "Model inference", lambda _: "Model inference")
    yield of("ServiceSubcategory", "Generative AI", lambda _: "Generative AI")
    yield of("SkuId", "provider and model", _sku)
    yield of("SkuMeter", "the kind of token or call, or of idle GPU time", _meter)
    yield of("SkuPriceDetails", none)
    yield of("SkuPriceId", "the price in finance.prices, and the meter", _sku_price)
    yield of("SubAccountId", "the team", lambda c: c.team)
    yield of("SubAccountName", "the team", lambda c: c.team)
    yield of("SubAccountType", "Team", lambda c: None if c.team is None else "Team")
    yield of("Tags", "the requests' tags (JSON)", _tags)
    v1_3 = FocusVersion.V1_3
    yield of(
        "AllocatedMethodDetails",
        "its share of the day's GPU bill of the deployment, to 12 decimals (JSON)",
        _allocated(_method_details),
        since=v1_3,
    )
    yield of(
        "AllocatedMethodId",
        "gpu-seconds: by the GPU time of the tokens, at calibrated weights",
        _allocated(lambda _: "gpu-seconds"),
        since=v1_3,
    )
    yield of(
        "AllocatedResourceId",
        "the deployment whose GPU bill is divided",
        _allocated(lambda c: c.deployment),
        since=v1_3,
    )
    yield of(
        "AllocatedResourceName",
        "the same",
        _allocated(lambda c: c.deployment),
        since=v1_3,
    )
    yield of("AllocatedTags", "as Tags", _allocated(_tags), since=v1_3)
    yield of("ContractApplied", none, since=v1_3)
    yield of("HostProviderName", "as ProviderName", _provider, since=v1_3)
    yield of("ServiceProviderName", "as ProviderName", _provider, since=v1_3)
    yield of(
        "x_LineKind",
        "usage, adjustment, empty, underfilled or variance",
        lambda c: c.line_kind.value,
    )
    yield of(
        "x_TokenKind", "the kind of token or call; empty for whole attempts", lambda c: c.token_kind
    )
    yield of("x_Project", "the project", lambda c: c.project)
    yield of("x_Model", "the model", lambda c: c.model)
    yield of("x_DataClass", "the data class of the requests", lambda c: c.data_class)
    yield of("x_IsSelfHosted", "true for own GPUs", lambda c: c.is_self_hosted, ColumnKind.FLAG)
    yield of(
        "x_ServiceTier", "the tier that the provider says it served in", lambda c: c.service_tier
    )
    yield of("x_UsageSource", "provider, derived or estimated", lambda c: c.usage_source)
    yield of(
        "x_Attempts",
        "attempts in this row; 0 in the shares of the other cost centres",
        lambda c: c.attempts,
        ColumnKind.COUNT,
    )
    yield of("x_PriceId", "the price in finance.prices", lambda c: c.price_id)
    yield of(
        "x_UsdPerMillion",
        "its rate per million tokens or calls",
        lambda c: c.usd_per_million,
        money,
    )
    yield of("x_AdjustmentId", "the adjustment in finance.adjustments", lambda c: c.adjustment_id)
    yield of("x_AdjustmentKind", "its kind", lambda c: c.adjustment_kind)
    yield of("x_AdjustmentReason", "its reason", lambda c: c.reason)
    yield of("x_RequestId", "the request that it adjusts", lambda c: c.request_id)
    yield of("x_BookedAt", "when it was booked", lambda c: c.booked_at, ColumnKind.TIME)


COLUMNS = tuple(_columns())
_BILLED = next(place for place, column in enumerate(COLUMNS) if column.name == "BilledCost")
assert all(TokenKind(kind) for kind in _CALLS)
