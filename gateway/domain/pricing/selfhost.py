"""Computes a self-hosted deployment's price per token from its GPU rate, by declared or calibrated
throughput, and the bill for given GPU hours; measures neither hours nor throughput.

The price is the standard cost, which is known when the request is made.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import date
from decimal import Decimal
from enum import StrEnum

from gateway.domain.money import EXACT, nusd_from_usd
from gateway.domain.pricing.pricing import MTOK, Price, Rate
from gateway.domain.pricing.tokens import TokenKind

SECONDS_PER_HOUR = 3600
# USD per million tokens: far below a nano-dollar on any real request.
_RATE_DIGITS = Decimal("1E-12")


class BilledHours(StrEnum):
    """The hours for which a deployment's GPUs are paid."""

    SEEN = "seen"  # those in which its engine was up
    ALWAYS = "always"  # all of them, as on a reserved machine


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuRate:
    """Declared figures of one engine: its hourly price and its throughput at `target_utilisation` =
    1.

    `input_tok_per_s` and `output_tok_per_s` are of the whole deployment (all `count` GPUs
    together).
    """

    type: str
    count: int
    usd_per_gpu_hour: Decimal
    input_tok_per_s: Decimal
    output_tok_per_s: Decimal
    target_utilisation: Decimal
    cached_input_tok_per_s: Decimal | None = None
    hours: BilledHours = BilledHours.SEEN


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """The throughput of one engine as `tollgate engine calibrate` measured it, with the conditions
    of the measurement.

    It holds for the same model on the same GPUs; their hourly price may change.
    """

    model: str
    gpu_type: str
    gpu_count: int
    input_tok_per_s: Decimal
    output_tok_per_s: Decimal
    cached_input_tok_per_s: Decimal | None
    concurrency: int  # requests at once: the load at which an output token was measured
    held_out_error: Decimal  # a share
    measured_on: date

    def is_of(self, gpu: GpuRate, *, model: str) -> bool:
        """Return True if a deployment still is the engine that was measured."""
        return (self.model, self.gpu_type, self.gpu_count) == (model, gpu.type, gpu.count)


def at_measured_speed(gpu: GpuRate, measured: Calibration) -> GpuRate:
    """Return GPUs with the measured throughput; if cached input was not measured, none is known."""
    return replace(
        gpu,
        input_tok_per_s=measured.input_tok_per_s,
        output_tok_per_s=measured.output_tok_per_s,
        cached_input_tok_per_s=measured.cached_input_tok_per_s,
    )


def calibrated_price(gpu: GpuRate, measured: Calibration) -> Price:
    """Return the standard price of a GPU rate at the measured throughput.

    If cached input was not measured, it costs the same as plain input.
    """
    return _price(
        at_measured_speed(gpu, measured),
        model=measured.model,
        basis=f"calibrated {measured.measured_on} at concurrency {measured.concurrency}",
    )


def standard_price(gpu: GpuRate, *, model: str) -> Price:
    """Return the price of a GPU rate at its declared throughput.

    Cached input costs the same as plain input until a separate figure is declared.
    """
    return _price(gpu, model=model, basis="uncalibrated")


def _price(gpu: GpuRate, *, model: str, basis: str) -> Price:
    """Return USD per million tokens: hourly price / 3600 / (tokens per second × target
    utilisation). `basis` says in the source where the throughput comes from.
    """
    usd_per_s = EXACT.divide(gpu.count * gpu.usd_per_gpu_hour, Decimal(SECONDS_PER_HOUR))

    def rate(kind: TokenKind, tok_per_s: Decimal) -> Rate:
        """Return the rate of one kind of tokens, if the GPUs process only these at the given
        speed.
        """
        usd_per_tok = EXACT.divide(usd_per_s, tok_per_s * gpu.target_utilisation)
        return Rate(
            kind=kind,
            usd_per_mtok=EXACT.quantize(EXACT.multiply(usd_per_tok, Decimal(MTOK)), _RATE_DIGITS),
        )

    rates = [
        rate(TokenKind.INPUT, gpu.input_tok_per_s),
        rate(TokenKind.OUTPUT, gpu.output_tok_per_s),
    ]
    if gpu.cached_input_tok_per_s is not None:
        rates.append(rate(TokenKind.CACHED_INPUT, gpu.cached_input_tok_per_s))
    source = (
        f"GPU rate, {basis}: {gpu.count} x {gpu.type} at {gpu.usd_per_gpu_hour} USD per GPU hour"
    )
    return Price(provider="self-hosted", model=model, source=source, rates=tuple(rates))


def gpu_bill_nusd(gpu: GpuRate, milliseconds: int) -> int:
    """Return the cost of a deployment's GPUs for a time, in nano-dollars, rounded once,
    half-even.
    """
    usd_ms = EXACT.multiply(Decimal(gpu.count * milliseconds), gpu.usd_per_gpu_hour)
    return nusd_from_usd(EXACT.divide(usd_ms, Decimal(SECONDS_PER_HOUR * 1000)))
