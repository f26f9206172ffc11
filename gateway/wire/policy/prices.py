"""Declares the blocks of prices, service tiers and GPU hours in a policy document, and converts
them to domain values and back.
"""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal
from typing import Annotated, Any, Self, cast

from gateway.domain.pricing.pricing import Price, Rate
from gateway.domain.pricing.selfhost import BilledHours, GpuRate
from gateway.domain.pricing.tokens import CALL_KINDS, TokenKind
from gateway.wire.policy.scalars import Words, check_tier
from gateway.wire.yaml_blocks.blocks import Block, Entries, optional, required
from gateway.wire.yaml_blocks.scalars import decimal, integer, member_of

POLICY_SOURCE = "policy"
STAND_IN_SOURCE = "stand-in: policy"
# The fields of a price block by token kind: tokens are priced per million, calls of a provider's
# own tools per thousand.
RATES: dict[TokenKind, str] = {
    kind: f"{kind}_usd_per_1k_calls" if kind in CALL_KINDS else f"{kind}_usd_per_mtok"
    for kind in TokenKind
}
CALLS_PER_RATE = 1000
UsdPerMtok = Annotated[Decimal, decimal("USD per million tokens", least="0")]
UsdPerThousandCalls = Annotated[Decimal, decimal("USD per thousand calls", least="0")]
TokensPerSecond = Annotated[Decimal, decimal("tokens per second", above="0", most="1000000000")]
_HELD = "none: such tokens are held as unknown"
_HELD_CALLS = "none: such calls are held as unknown"
_AS_INPUT = "as input without `cache_write`, else none: held as unknown"


class GpuBlock(Block):
    """The GPU hours and the throughput of a self-hosted deployment."""

    title = "gpu block"
    makes = GpuRate
    type: Words = required("The GPU's name, for the price's source.", "H200")
    count: Annotated[int, integer(1, 10_000)] = optional(
        "GPUs that this deployment occupies.", "1", 1
    )
    usd_per_gpu_hour: Annotated[Decimal, decimal("USD per GPU hour", above="0", most="10000")] = (
        required("Hourly cost of one GPU, in USD.", "3.10")
    )
    input_tok_per_s: TokensPerSecond = required(
        "Prompt tokens per second of the whole deployment at full load.", "40000"
    )
    output_tok_per_s: TokensPerSecond = required(
        "Answer tokens per second of the whole deployment at full load.", "2500"
    )
    cached_input_tok_per_s: TokensPerSecond | None = optional(
        "Cached prompt tokens per second.", "400000", shown="priced as plain input"
    )
    target_utilisation: Annotated[Decimal, decimal("a share", above="0", most="1")] = required(
        "Share of an hour in which the GPU is expected to work; 0.5 doubles a token's price.", "0.5"
    )
    hours: Annotated[BilledHours, member_of(BilledHours)] = optional(
        "Which hours are billed: `seen` those in which the engine was up; `always` all of"
        " them, as on a reserved machine.",
        "always",
        BilledHours.SEEN,
    )


class TierPriceBlock(Block):
    """All rates of one service tier."""

    title = "service tier's price"
    input_usd_per_mtok: UsdPerMtok = required("USD per million input tokens.", "0.80")
    cached_input_usd_per_mtok: UsdPerMtok | None = optional(
        "USD per million input tokens read from the provider's cache.",
        "0.20",
        shown="priced as input",
    )
    cached_audio_input_usd_per_mtok: UsdPerMtok | None = optional(
        "USD per million audio tokens read from the provider's cache.",
        "0.10",
        shown="priced as cached input",
    )
    cache_write_usd_per_mtok: UsdPerMtok | None = optional(
        "USD per million input tokens written to the provider's cache.",
        "1.00",
        shown="priced as input",
    )
    cache_write_30m_usd_per_mtok: UsdPerMtok | None = optional(
        "The same, kept for 30 minutes.", "1.00", shown=_AS_INPUT
    )
    cache_write_1h_usd_per_mtok: UsdPerMtok | None = optional(
        "The same, kept for an hour.", "1.60", shown=_AS_INPUT
    )
    cache_write_12h_usd_per_mtok: UsdPerMtok | None = optional(
        "The same, kept for twelve hours.", "2.40", shown=_AS_INPUT
    )
    audio_input_usd_per_mtok: UsdPerMtok | None = optional(
        "USD per million audio tokens of the prompt, if the upstream counts them separately.",
        "32",
        shown=_HELD,
    )
    image_input_usd_per_mtok: UsdPerMtok | None = optional(
        "USD per million image tokens of the prompt, if the upstream counts them separately.",
        "0.80",
        shown=_HELD,
    )
    output_usd_per_mtok: UsdPerMtok | None = optional(
        "USD per million output tokens.",
        "3.20",
        shown="required, unless `operations` is only embeddings, rerank or score",
    )
    reasoning_usd_per_mtok: UsdPerMtok | None = optional(
        "USD per million reasoning tokens.", "3.20", shown="priced as output"
    )
    audio_output_usd_per_mtok: UsdPerMtok | None = optional(
        "USD per million audio tokens of the answer.", "64", shown=_HELD
    )
    image_output_usd_per_mtok: UsdPerMtok | None = optional(
        "USD per million image tokens of the answer.", "30", shown=_HELD
    )
    web_search_usd_per_1k_calls: UsdPerThousandCalls | None = optional(
        "USD per thousand web searches that the provider ran.", "10", shown=_HELD_CALLS
    )
    file_search_usd_per_1k_calls: UsdPerThousandCalls | None = optional(
        "USD per thousand file searches that the provider ran.", "2.50", shown=_HELD_CALLS
    )
    code_interpreter_usd_per_1k_calls: UsdPerThousandCalls | None = optional(
        "USD per thousand runs of the provider's code interpreter; at OpenAI, per thousand "
        "containers.",
        "30",
        shown=_HELD_CALLS,
    )
    image_generation_usd_per_1k_calls: UsdPerThousandCalls | None = optional(
        "USD per thousand images that the provider's tool drew.", "40", shown=_HELD_CALLS
    )
    x_search_usd_per_1k_calls: UsdPerThousandCalls | None = optional(
        "USD per thousand searches in the posts of X that xAI ran.", "5", shown=_HELD_CALLS
    )
    other_model_usd_per_1k_calls: UsdPerThousandCalls | None = optional(
        "USD per thousand calls of another model inside an answer, as of Anthropic's advisor or "
        "in Groq's compound systems.",
        "60",
        shown=_HELD_CALLS,
    )

    def rates(self, tier: str | None) -> Iterator[Rate]:
        """Yield the rates that this block declares for a service tier, None for the standard
        one.
        """
        for kind, name in RATES.items():
            usd = getattr(self, name)
            if usd is not None:
                per_mtok = usd * CALLS_PER_RATE if kind in CALL_KINDS else usd
                yield Rate(kind=kind, usd_per_mtok=per_mtok, service_tier=tier)

    @classmethod
    def of_price(cls, price: Price, tier: str | None = None, **others: Any) -> Self:
        """Return the block of a price's rates for one service tier."""
        rates: dict[str, Any] = dict.fromkeys(cls.model_fields) | {
            RATES[rate.kind]: rate.usd_per_mtok / CALLS_PER_RATE
            if rate.kind in CALL_KINDS
            else rate.usd_per_mtok
            for rate in price.rates
            if rate.service_tier == tier
        }
        return cast("Self", cls.model_construct(**rates | others))


class PriceBlock(TierPriceBlock):
    """A declared price."""

    title = "price block"
    service_tiers: Annotated[dict[str, TierPriceBlock], Entries(check_tier)] | None = optional(
        "All rates of answers with another `service_tier` than the standard one, by its "
        "name; the fields are those above.",
        "{priority: {input_usd_per_mtok: 1.60, output_usd_per_mtok: 6.40}}",
        shown="none: answers from another tier are held as unknown",
    )

    def price(self, provider: str, model: str, *, is_stand_in: bool = False) -> Price:
        """Return the price that this block declares for a model."""
        tiers = (self.service_tiers or {}).items()
        rates = (*self.rates(None), *(rate for tier, own in tiers for rate in own.rates(tier)))
        source = STAND_IN_SOURCE if is_stand_in else POLICY_SOURCE
        return Price(
            provider=provider, model=model, source=source, rates=rates, is_stand_in=is_stand_in
        )

    @classmethod
    def of_value(cls, value: Any, **others: Any) -> Self:
        """Return the block of a whole price."""
        tiers = {tier: TierPriceBlock.of_price(value, tier) for tier in value.service_tiers}
        return cls.of_price(value, service_tiers=tiers or None, **others)
