"""Break-even of own GPUs against an API: the example of the guide by hand, and its limits."""

from __future__ import annotations

import re
from dataclasses import replace
from decimal import Decimal
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.money import usd_from_nusd
from gateway.domain.pricing.break_even import (
    TokenMix,
    Verdict,
    api_nusd,
    break_even,
    cost_at_utilisation_nusd,
    day_usd,
    engine_seconds,
    verdict_of,
)
from gateway.domain.pricing.pricing import Price, Rate
from gateway.domain.pricing.selfhost import GpuRate
from gateway.domain.pricing.tokens import TokenKind

GUIDE = (Path(__file__).parents[3] / "docs/guides/gpu-cost.md").read_text(encoding="utf-8")
GPU = GpuRate(
    type="H100",
    count=2,
    usd_per_gpu_hour=Decimal("2.50"),
    input_tok_per_s=Decimal(10_000),
    output_tok_per_s=Decimal(2_000),
    target_utilisation=Decimal("0.5"),
)
PRICE = Price(
    provider="openai",
    model="m",
    source="test",
    rates=(
        Rate(kind=TokenKind.INPUT, usd_per_mtok=Decimal("0.20")),
        Rate(kind=TokenKind.OUTPUT, usd_per_mtok=Decimal("1.20")),
    ),
)
NO_OPS = Decimal(0)


def figures() -> dict[str, Decimal]:
    """The figures of the guide's example, by the name in their row."""
    section = GUIDE.partition("### An example, by hand")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| `([a-z_]+)` \| ([0-9,.]+) ", section, flags=re.MULTILINE)
    return {name: Decimal(figure.replace(",", "")) for name, figure in rows}


def test_the_example_of_the_guide_is_right() -> None:
    """Finance checks the product with a pocket calculator; both must show the same."""
    given = figures()
    gpu = GpuRate(
        type="H100",
        count=int(given["gpus"]),
        usd_per_gpu_hour=given["usd_per_gpu_hour"],
        input_tok_per_s=given["input_tok_per_s"],
        cached_input_tok_per_s=given["cached_input_tok_per_s"],
        output_tok_per_s=given["output_tok_per_s"],
        target_utilisation=Decimal(1),
    )
    kinds = {"input": TokenKind.INPUT, "cached_input": TokenKind.CACHED_INPUT}
    kinds["output"] = TokenKind.OUTPUT
    price = replace(
        PRICE,
        rates=tuple(
            Rate(kind=kind, usd_per_mtok=given[f"{name}_usd_per_mtok"])
            for name, kind in kinds.items()
        ),
    )
    mix = TokenMix(**{f"{name}_tokens": int(given[f"{name}_tokens"]) for name in kinds})
    cost = api_nusd(mix, price)
    assert cost is not None
    assert usd_from_nusd(cost) == given["api_usd"]
    assert day_usd(gpu, ops_usd_per_month=given["ops_usd_per_month"]) == given["day_usd"]
    assert engine_seconds(mix, gpu) == given["engine_seconds"]
    even = break_even(mix, gpu, api_nusd=cost, ops_usd_per_month=given["ops_usd_per_month"])
    assert even is not None
    assert even.tokens_per_day == given["break_even_tokens_per_day"]
    assert round(even.utilisation, 4) == given["break_even_utilisation"]


def test_a_day_of_use_at_the_break_even_costs_the_day() -> None:
    """At the break-even volume both ways cost the same, whatever the mix."""
    mix = TokenMix(input_tokens=700, cached_input_tokens=100, output_tokens=200)
    cost = api_nusd(mix, PRICE)
    assert cost is not None
    even = break_even(mix, GPU, api_nusd=cost, ops_usd_per_month=NO_OPS)
    assert even is not None
    at_api = Decimal(cost) / mix.total_tokens * even.tokens_per_day
    assert abs(usd_from_nusd(round(at_api)) - day_usd(GPU, ops_usd_per_month=NO_OPS)) < Decimal(
        "0.000001"
    )


def test_an_api_without_a_rate_has_no_price_and_cached_input_costs_as_input() -> None:
    """Unknown is never free."""
    assert api_nusd(TokenMix(cached_input_tokens=10), PRICE) == 2_000
    only_input = replace(PRICE, rates=PRICE.rates[:1])
    assert api_nusd(TokenMix(input_tokens=10), only_input) == 2_000
    assert api_nusd(TokenMix(input_tokens=10, output_tokens=1), only_input) is None


def test_no_traffic_or_a_free_api_has_no_break_even() -> None:
    """Nothing is divided by nothing."""
    assert break_even(TokenMix(), GPU, api_nusd=5, ops_usd_per_month=NO_OPS) is None
    some = TokenMix(input_tokens=1)
    assert break_even(some, GPU, api_nusd=0, ops_usd_per_month=NO_OPS) is None


def test_a_break_even_above_the_capacity_is_never() -> None:
    """GPUs that cannot serve the volume never pay, however busy they are."""
    mix = TokenMix(input_tokens=10**6)
    cheap = break_even(mix, GPU, api_nusd=10**6, ops_usd_per_month=NO_OPS)
    assert cheap is not None
    assert cheap.utilisation > 1
    assert verdict_of(cheap, selfhost_nusd=1, ops_nusd=0, api_nusd=2) is Verdict.NEVER
    dear = break_even(mix, GPU, api_nusd=10**9, ops_usd_per_month=NO_OPS)
    assert verdict_of(dear, selfhost_nusd=1, ops_nusd=0, api_nusd=2) is Verdict.SELFHOST
    assert verdict_of(dear, selfhost_nusd=1, ops_nusd=1, api_nusd=2) is Verdict.API
    assert verdict_of(None, selfhost_nusd=1, ops_nusd=0, api_nusd=0) is Verdict.API


@given(st.integers(1, 10**9), st.integers(0, 10**9), st.integers(1, 10**12))
def test_dearer_apis_and_cheaper_gpus_break_even_earlier(
    prompt: int, output: int, cost: int
) -> None:
    """A what-if must move the result in the right direction."""
    mix = TokenMix(input_tokens=prompt, output_tokens=output)
    found = [
        break_even(mix, gpu, api_nusd=nusd, ops_usd_per_month=ops)
        for gpu, nusd, ops in (
            (GPU, cost, NO_OPS),
            (GPU, 2 * cost, NO_OPS),
            (replace(GPU, usd_per_gpu_hour=Decimal(1)), cost, NO_OPS),
            (GPU, cost, Decimal(5000)),
        )
    ]
    plain, dearer_api, cheaper_gpu, operated = (one.utilisation if one else None for one in found)
    assert plain is not None
    assert dearer_api is not None
    assert cheaper_gpu is not None
    assert operated is not None
    assert dearer_api < plain < operated
    assert cheaper_gpu < plain


def test_full_use_costs_the_hours_and_half_use_twice_as_much() -> None:
    """An hour of output at full use is an hour of both GPUs."""
    mix = TokenMix(output_tokens=2_000 * 3600)
    assert cost_at_utilisation_nusd(mix, GPU, Decimal(1)) == 5_000_000_000
    assert cost_at_utilisation_nusd(mix, GPU, Decimal("0.5")) == 10_000_000_000


def test_mixes_add_up_by_kind() -> None:
    """The traffic of a route on two engines is one traffic."""
    one = TokenMix(input_tokens=1, cached_input_tokens=2, output_tokens=3)
    assert one + one == TokenMix(input_tokens=2, cached_input_tokens=4, output_tokens=6)
    assert (one + one).total_tokens == 12
