"""The standard cost of a GPU of one's own."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal

from gateway.domain.pricing.pricing import lines
from gateway.domain.pricing.selfhost import GpuRate, standard_price
from gateway.domain.pricing.tokens import TokenKind, TokenUsage

GPU = GpuRate(
    type="H200",
    count=2,
    usd_per_gpu_hour=Decimal("3.60"),
    input_tok_per_s=Decimal(40_000),
    output_tok_per_s=Decimal(2_500),
    target_utilisation=Decimal("0.5"),
)


def test_a_token_costs_its_share_of_the_gpu_hour() -> None:
    """2 × 3.60 USD an hour is 0.002 USD a second; at half use 20,000 input tokens a second: 0.1 USD
    per million.
    """
    found = standard_price(GPU, model="qwen")
    assert found.rate(TokenKind.INPUT, input_tokens=0) == Decimal("0.1")
    assert found.rate(TokenKind.OUTPUT, input_tokens=0) == Decimal("1.6")
    assert found.rate(TokenKind.CACHED_INPUT, input_tokens=0) is None
    assert "uncalibrated" in found.source
    assert found.provider == "self-hosted"


def test_cached_input_has_its_own_rate_once_declared() -> None:
    """Reading a cached prefix costs an engine almost nothing; whoever measured that may say so."""
    found = standard_price(replace(GPU, cached_input_tok_per_s=Decimal(400_000)), model="qwen")
    assert found.rate(TokenKind.CACHED_INPUT, input_tokens=0) == Decimal("0.01")


def test_a_full_hour_at_the_target_applies_the_bill() -> None:
    """An hour of output at the target use is charged the GPUs' cost of that hour."""
    tokens = int(GPU.output_tok_per_s * GPU.target_utilisation * 3600)
    (line,) = lines(
        TokenUsage(input_tokens=0, output_tokens=tokens), standard_price(GPU, model="qwen")
    )
    assert line.cost_nusd == 7_200_000_000
