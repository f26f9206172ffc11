"""What a token costs on a GPU of one's own: the standard cost, known when the request is made."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal

from gateway.domain.pricing import MTOK, Price, Rate
from gateway.domain.tokens import TokenKind

SECONDS_PER_HOUR = 3600
_RATE_DIGITS = Decimal("1E-12")  # USD per million tokens: far below a nano-dollar on any real request


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuRate:
    """Declared figures of one engine: its hourly price and its throughput at `target_utilisation` = 1.

    `input_tok_per_s` and `output_tok_per_s` are of the whole deployment (all `count` GPUs together).
    """

    type: str
    count: int
    usd_per_gpu_hour: Decimal
    input_tok_per_s: Decimal
    output_tok_per_s: Decimal
    target_utilisation: Decimal
    cached_input_tok_per_s: Decimal | None = None


def standard_price(gpu: GpuRate, *, model: str) -> Price:
    """Return USD per million tokens: hourly price / 3600 / (tokens per second × target utilisation).

    Cached input costs what plain input costs until a figure of its own is declared.
    """
    usd_per_s = gpu.count * gpu.usd_per_gpu_hour / SECONDS_PER_HOUR

    def rate(kind: TokenKind, tok_per_s: Decimal) -> Rate:
        usd_per_mtok = usd_per_s / (tok_per_s * gpu.target_utilisation) * MTOK
        return Rate(kind=kind, usd_per_mtok=usd_per_mtok.quantize(_RATE_DIGITS))

    rates = [rate(TokenKind.INPUT, gpu.input_tok_per_s), rate(TokenKind.OUTPUT, gpu.output_tok_per_s)]
    if gpu.cached_input_tok_per_s is not None:
        rates.append(rate(TokenKind.CACHED_INPUT, gpu.cached_input_tok_per_s))
    source = f"GPU rate, uncalibrated: {gpu.count} x {gpu.type} at {gpu.usd_per_gpu_hour} USD per GPU hour"
    return Price(provider="self-hosted", model=model, source=source, rates=tuple(rates))
