"""The standard cost of a GPU of one's own."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal

from gateway.domain.pricing.pricing import lines
from gateway.domain.pricing.selfhost import calibrated_price, standard_price
from gateway.domain.pricing.tokens import TokenKind, TokenUsage
from tests.factories import GPU, calibration


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


def test_a_measured_throughput_replaces_the_declared_one() -> None:
    """The hourly price and the target stay the policy's; the source says what was measured, and
    when.
    """
    found = calibrated_price(GPU, calibration())
    rates = {kind: found.rate(kind, input_tokens=0) for kind in TokenKind}
    assert {kind: rate for kind, rate in rates.items() if rate is not None} == {
        TokenKind.INPUT: Decimal("0.2"),
        TokenKind.CACHED_INPUT: Decimal("0.02"),
        TokenKind.OUTPUT: Decimal("3.2"),
    }
    assert found.source == (
        "GPU rate, calibrated 2026-11-20 at concurrency 16: 2 x H200 at 3.60 USD per GPU hour"
    )
    without = calibrated_price(GPU, calibration(cached_input_tok_per_s=None))
    assert without.rate(TokenKind.CACHED_INPUT, input_tokens=0) is None


def test_a_calibration_is_of_one_model_on_some_gpus() -> None:
    """Another GPU has another speed; its price per hour may change."""
    measured = calibration()
    assert measured.is_of(GPU, model="m-1")
    assert measured.is_of(replace(GPU, usd_per_gpu_hour=Decimal(9)), model="m-1")
    assert not measured.is_of(GPU, model="m-2")
    assert not measured.is_of(replace(GPU, type="H100"), model="m-1")
    assert not measured.is_of(replace(GPU, count=1), model="m-1")
