"""Prices and GPU hours in a policy document: their fields, and the conversion to values and
back.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from decimal import Decimal
from typing import Any

from gateway.domain.pricing.pricing import Price, Rate
from gateway.domain.pricing.selfhost import BilledHours, GpuRate
from gateway.domain.pricing.tokens import CALL_KINDS, TokenKind
from gateway.wire.policy.names import tier_key, words
from gateway.wire.policy.readers import (
    Block,
    Entry,
    Field,
    decimal,
    declared_only,
    integer,
    map_of,
    one_of,
)

POLICY_SOURCE = "policy"
STAND_IN_SOURCE = "stand-in: policy"
# The fields of a price block by token kind: tokens are priced per million, calls of a provider's
# own tools per thousand.
RATES: dict[TokenKind, str] = {
    kind: f"{kind}_usd_per_1k_calls" if kind in CALL_KINDS else f"{kind}_usd_per_mtok"
    for kind in TokenKind
}
CALLS_PER_RATE = 1000

usd_per_mtok = decimal(least="0", most="1000000", unit="USD per million tokens")
usd_per_1k_calls = decimal(least="0", most="1000000", unit="USD per thousand calls")
tok_per_s = decimal(above="0", most="1000000000", unit="tokens per second")

GPU = Block(
    name="gpu block",
    fields=(
        Field(
            name="type",
            read=words,
            is_required=True,
            example="H200",
            meaning="The GPU's name, for the price's source.",
        ),
        Field(
            name="count",
            read=integer(least=1, most=10_000),
            example="1",
            default=1,
            default_text="`1`",
            meaning="GPUs that this deployment occupies.",
        ),
        Field(
            name="usd_per_gpu_hour",
            read=decimal(above="0", most="10000", unit="USD per GPU hour"),
            is_required=True,
            example="3.10",
            meaning="Hourly cost of one GPU, in USD.",
        ),
        Field(
            name="input_tok_per_s",
            read=tok_per_s,
            is_required=True,
            example="40000",
            meaning="Prompt tokens per second of the whole deployment at full load.",
        ),
        Field(
            name="output_tok_per_s",
            read=tok_per_s,
            is_required=True,
            example="2500",
            meaning="Answer tokens per second of the whole deployment at full load.",
        ),
        Field(
            name="cached_input_tok_per_s",
            read=tok_per_s,
            example="400000",
            default_text="priced as plain input",
            meaning="Cached prompt tokens per second.",
        ),
        Field(
            name="target_utilisation",
            read=decimal(above="0", most="1", unit="a share"),
            is_required=True,
            example="0.5",
            meaning="Share of an hour in which the GPU is expected to work; 0.5 doubles a "
            "token's price.",
        ),
        Field(
            name="hours",
            read=one_of(tuple(BilledHours)),
            example="always",
            default="seen",
            default_text="`seen`",
            meaning="Which hours are billed: `seen` those in which the engine was up; `always` all "
            "of them, as on a reserved machine.",
        ),
    ),
)

_HELD = "none: such tokens are held as unknown"
_HELD_CALLS = "none: such calls are held as unknown"
_RATE_FIELDS = (
    Field(
        name="input_usd_per_mtok",
        read=usd_per_mtok,
        is_required=True,
        example="0.80",
        meaning="USD per million input tokens.",
    ),
    Field(
        name="cached_input_usd_per_mtok",
        read=usd_per_mtok,
        example="0.20",
        default_text="priced as input",
        meaning="USD per million input tokens read from the provider's cache.",
    ),
    Field(
        name="cache_write_usd_per_mtok",
        read=usd_per_mtok,
        example="1.00",
        default_text="priced as input",
        meaning="USD per million input tokens written to the provider's cache.",
    ),
    Field(
        name="cache_write_30m_usd_per_mtok",
        read=usd_per_mtok,
        example="1.00",
        default_text="as input without `cache_write`, else none: held as unknown",
        meaning="The same, kept for 30 minutes.",
    ),
    Field(
        name="cache_write_1h_usd_per_mtok",
        read=usd_per_mtok,
        example="1.60",
        default_text="as input without `cache_write`, else none: held as unknown",
        meaning="The same, kept for an hour.",
    ),
    Field(
        name="cache_write_12h_usd_per_mtok",
        read=usd_per_mtok,
        example="2.40",
        default_text="as input without `cache_write`, else none: held as unknown",
        meaning="The same, kept for twelve hours.",
    ),
    Field(
        name="audio_input_usd_per_mtok",
        read=usd_per_mtok,
        example="32",
        default_text=_HELD,
        meaning="USD per million audio tokens of the prompt, if the upstream counts them "
        "separately.",
    ),
    Field(
        name="image_input_usd_per_mtok",
        read=usd_per_mtok,
        example="0.80",
        default_text=_HELD,
        meaning="USD per million image tokens of the prompt, if the upstream counts them "
        "separately.",
    ),
    Field(
        name="output_usd_per_mtok",
        read=usd_per_mtok,
        example="3.20",
        default_text="required, unless `operations` is `[embeddings]`",
        meaning="USD per million output tokens.",
    ),
    Field(
        name="reasoning_usd_per_mtok",
        read=usd_per_mtok,
        example="3.20",
        default_text="priced as output",
        meaning="USD per million reasoning tokens.",
    ),
    Field(
        name="audio_output_usd_per_mtok",
        read=usd_per_mtok,
        example="64",
        default_text=_HELD,
        meaning="USD per million audio tokens of the answer.",
    ),
    Field(
        name="image_output_usd_per_mtok",
        read=usd_per_mtok,
        example="30",
        default_text=_HELD,
        meaning="USD per million image tokens of the answer.",
    ),
    Field(
        name="web_search_usd_per_1k_calls",
        read=usd_per_1k_calls,
        example="10",
        default_text=_HELD_CALLS,
        meaning="USD per thousand web searches that the provider ran.",
    ),
    Field(
        name="file_search_usd_per_1k_calls",
        read=usd_per_1k_calls,
        example="2.50",
        default_text=_HELD_CALLS,
        meaning="USD per thousand file searches that the provider ran.",
    ),
    Field(
        name="code_interpreter_usd_per_1k_calls",
        read=usd_per_1k_calls,
        example="30",
        default_text=_HELD_CALLS,
        meaning="USD per thousand runs of the provider's code interpreter.",
    ),
    Field(
        name="image_generation_usd_per_1k_calls",
        read=usd_per_1k_calls,
        example="40",
        default_text=_HELD_CALLS,
        meaning="USD per thousand images that the provider's tool drew.",
    ),
)

TIER_PRICE = Block(name="service tier's price", fields=_RATE_FIELDS)

PRICE = Block(
    name="price block",
    fields=(
        *_RATE_FIELDS,
        Field(
            name="service_tiers",
            read=map_of(tier_key, TIER_PRICE),
            example="{priority: {input_usd_per_mtok: 1.60, output_usd_per_mtok: 6.40}}",
            default_text="none: answers from another tier are held as unknown",
            meaning="All rates of answers with another `service_tier` than the standard one, by "
            "its name; the fields are those above.",
        ),
    ),
)


def gpu_from_wire(values: dict[str, Any]) -> GpuRate:
    return GpuRate(**values | {"hours": BilledHours(values["hours"])})


def price_from_wire(values: dict[str, Any], declared: Entry, source: str) -> Price:
    tiers = declared.values["service_tiers"].values if declared.values["service_tiers"] else {}
    rates = [
        *_rates(declared, None),
        *(rate for tier, own in tiers.items() for rate in _rates(own, tier)),
    ]
    return Price(
        provider=values["provider"], model=values["model"], source=source, rates=tuple(rates)
    )


def stand_in_from_wire(values: dict[str, Any]) -> Price:
    return replace(
        price_from_wire(values, values["stand_in_price"], STAND_IN_SOURCE), is_stand_in=True
    )


def _rates(declared: Entry, tier: str | None) -> Iterator[Rate]:
    for kind, name in RATES.items():
        usd = declared.values[name]
        if usd is not None:
            per_mtok = usd * CALLS_PER_RATE if kind in CALL_KINDS else usd
            yield Rate(kind=kind, usd_per_mtok=per_mtok, service_tier=tier)


def gpu_to_wire(gpu: GpuRate) -> dict[str, Any]:
    document = {
        "type": gpu.type,
        "count": gpu.count,
        "usd_per_gpu_hour": gpu.usd_per_gpu_hour,
        "input_tok_per_s": gpu.input_tok_per_s,
        "output_tok_per_s": gpu.output_tok_per_s,
        "cached_input_tok_per_s": gpu.cached_input_tok_per_s,
        "target_utilisation": gpu.target_utilisation,
        "hours": gpu.hours.value,
    }
    return declared_only(document)


def price_to_wire(price: Price) -> dict[str, Any]:
    document: dict[str, Any] = _rates_to_wire(price, None)
    if price.service_tiers:
        document["service_tiers"] = {
            tier: _rates_to_wire(price, tier) for tier in price.service_tiers
        }
    return document


def _rates_to_wire(price: Price, tier: str | None) -> dict[str, Decimal]:
    return {
        RATES[rate.kind]: rate.usd_per_mtok / CALLS_PER_RATE
        if rate.kind in CALL_KINDS
        else rate.usd_per_mtok
        for rate in price.rates
        if rate.service_tier == tier
    }
