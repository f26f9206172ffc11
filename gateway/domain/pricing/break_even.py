"""Computes from which volume own GPUs cost less than an API for the same mix of tokens; knows no
traffic and no prices.

With f the token shares, p the API's prices and P, C, D the engine's tokens per second for input,
cached input and output at full use:

    p_blend            = f_in × p_in + f_cached × p_cached + f_out × p_out
    day                = 24 h × GPUs × USD per GPU hour + operations per month / 30.4375
    break-even         = day / p_blend                                   tokens per day
    capacity           = 86,400 s / (f_in / P + f_cached / C + f_out / D)  tokens per day
    break-even use     = break-even / capacity; above 1 self-hosting never pays
"""

from __future__ import annotations

from dataclasses import dataclass
from decimal import ROUND_CEILING, Decimal
from enum import StrEnum

from gateway.domain.money import EXACT, nusd_from_usd
from gateway.domain.pricing.pricing import Price
from gateway.domain.pricing.selfhost import SECONDS_PER_HOUR, GpuRate
from gateway.domain.pricing.tokens import TokenKind

DAYS_PER_MONTH = Decimal("30.4375")  # the mean month: 365.25 / 12
DAY_S = 86_400


class Verdict(StrEnum):
    """The cheaper way to serve a route's traffic; `never`: own GPUs at full use still cost more."""

    SELFHOST = "selfhost"
    API = "api"
    NEVER = "never"


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenMix:
    """Tokens of some traffic. `input_tokens` are neither cached nor counted twice; `output_tokens`
    include reasoning.
    """

    input_tokens: int = 0
    cached_input_tokens: int = 0
    output_tokens: int = 0

    @property
    def total_tokens(self) -> int:
        """Return the number of all tokens."""
        return self.input_tokens + self.cached_input_tokens + self.output_tokens

    def __add__(self, other: TokenMix) -> TokenMix:
        """Return the tokens of two traffics together."""
        return TokenMix(
            input_tokens=self.input_tokens + other.input_tokens,
            cached_input_tokens=self.cached_input_tokens + other.cached_input_tokens,
            output_tokens=self.output_tokens + other.output_tokens,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class BreakEven:
    """The volume from which own GPUs cost less. `utilisation` may exceed 1."""

    tokens_per_day: int
    utilisation: Decimal


def engine_seconds(mix: TokenMix, gpu: GpuRate) -> Decimal:
    """Return the seconds for which one engine at full use works on these tokens.

    Cached input takes as long as plain input unless a figure of its own is declared.
    """
    cached_tok_per_s = gpu.cached_input_tok_per_s or gpu.input_tok_per_s
    parts = (
        (mix.input_tokens, gpu.input_tok_per_s),
        (mix.cached_input_tokens, cached_tok_per_s),
        (mix.output_tokens, gpu.output_tok_per_s),
    )
    found = Decimal(0)
    for tokens, tok_per_s in parts:
        found = EXACT.add(found, EXACT.divide(Decimal(tokens), tok_per_s))
    return found


def api_nusd(mix: TokenMix, price: Price) -> int | None:
    """Return the cost of these tokens at an API's price, in its lowest context tier; None if it has
    no rate for a kind of them. Cached input without a rate costs as plain input.
    """
    steps = price.steps(0)
    plain = steps.get(TokenKind.INPUT)
    parts = (
        (mix.input_tokens, plain),
        (mix.cached_input_tokens, steps.get(TokenKind.CACHED_INPUT, plain)),
        (mix.output_tokens, steps.get(TokenKind.OUTPUT)),
    )
    total = 0
    for tokens, rate in parts:
        if tokens and rate is None:
            return None
        total += rate.cost_nusd(tokens) if rate is not None else 0
    return total


def hour_usd(gpu: GpuRate) -> Decimal:
    """Return the price of one hour of all GPUs of a deployment, in USD."""
    return gpu.count * gpu.usd_per_gpu_hour


def day_usd(gpu: GpuRate, *, ops_usd_per_month: Decimal) -> Decimal:
    """Return the cost of one day of a deployment's GPUs and its share of the operations, in USD."""
    ops = EXACT.divide(ops_usd_per_month, DAYS_PER_MONTH)
    return EXACT.add(24 * hour_usd(gpu), ops)


def cost_at_utilisation_nusd(mix: TokenMix, gpu: GpuRate, utilisation: Decimal) -> int:
    """Return the cost of these tokens on GPUs that are used to this share, in nano-dollars."""
    hours = EXACT.divide(engine_seconds(mix, gpu), SECONDS_PER_HOUR * utilisation)
    return nusd_from_usd(EXACT.multiply(hours, hour_usd(gpu)))


def break_even(
    mix: TokenMix, gpu: GpuRate, *, api_nusd: int, ops_usd_per_month: Decimal
) -> BreakEven | None:
    """Return the volume from which GPUs cost less than the API, for traffic of this mix that costs
    `api_nusd` there; None if it has no tokens or costs nothing.
    """
    if mix.total_tokens == 0 or api_nusd <= 0:
        return None
    day_nusd = EXACT.scaleb(day_usd(gpu, ops_usd_per_month=ops_usd_per_month), 9)
    days_of_mix = EXACT.divide(day_nusd, Decimal(api_nusd))  # the mix, so many times a day
    tokens = EXACT.multiply(days_of_mix, Decimal(mix.total_tokens))
    work_s = EXACT.multiply(days_of_mix, engine_seconds(mix, gpu))
    return BreakEven(
        tokens_per_day=int(tokens.to_integral_value(rounding=ROUND_CEILING)),
        utilisation=EXACT.divide(work_s, Decimal(DAY_S)),
    )


def verdict_of(
    even: BreakEven | None, *, selfhost_nusd: int, ops_nusd: int, api_nusd: int
) -> Verdict:
    """Return the cheaper way for a range whose costs are given; `ops_nusd` is what operating own
    GPUs costs beside their bill.
    """
    if even is not None and even.utilisation > 1:
        return Verdict.NEVER
    return Verdict.SELFHOST if selfhost_nusd + ops_nusd < api_nusd else Verdict.API
