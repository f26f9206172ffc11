"""Fit and times: properties, figures by hand, and the errors against published measurements."""

import json
import statistics
from dataclasses import replace
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.plan_accuracy import (
    BEGIN,
    END,
    FITTED,
    HELD_OUT,
    LAB,
    PAGE,
    PUBLISHED,
    Compared,
    all_compared,
    compare,
    summary,
    table,
)
from engine.errors import EngineError, UsageError
from engine.plan.architecture import Model, count
from engine.plan.config import read_config
from engine.plan.gpus import gpu_named, gpu_table
from engine.plan.layout import Layout, Served, chosen_fit, divides, fit
from engine.plan.memory import kv_bytes_per_sequence
from engine.plan.roofline import Work, decode_s, predict, prefill_s

MODELS = (
    "Llama-3.1-8B",
    "Qwen3-30B-A3B",
    "DeepSeek-V2-Lite",
    "gemma-3-12b",
    "gpt-oss-20b",
    "Qwen3-Next-80B-A3B",
)


@cache
def model(name: str) -> Model:
    return count(read_config(name))


@cache
def compared() -> tuple[Compared, ...]:
    return tuple(all_compared())


def served(name: str, *, quantization: str = "none", kv_cache: str = "auto") -> Served:
    return Served(model=model(name), quantization=quantization, kv_cache=kv_cache, context=4096)


def test_the_gpu_table_has_sources() -> None:
    """The six of the contract, each with the origin of its figures."""
    table = gpu_table()
    assert {"H200", "H100", "A100-80GB", "L40S", "RTX3090", "A5000"} <= set(table)
    assert all(len(gpu.source) > 30 and gpu.price_source for gpu in table.values())
    with pytest.raises(UsageError, match="H200, H100"):
        gpu_named("H900")


def test_the_error_of_each_published_figure_is_small() -> None:
    """The contract: at least twelve pairs, median factor at most 1.5, none beyond 2.5."""
    factors = [row.factor for row in compared()]
    assert len({row.pair for row in compared()}) >= 12
    assert statistics.median(factors) <= 1.5
    assert max(factors) <= 2.5
    for row in compared():
        print(*row.pair, f"{row.ratio:.2f}")
        assert all(row.published[key] for key in ("source", "date", "settings"))


@pytest.mark.parametrize("group", [HELD_OUT, FITTED])
def test_the_error_of_each_figure_that_vllm_served_is_small(group: str) -> None:
    """Too few GPUs were bought: at prompts of 2,000 tokens the plan promised 1.65 times as much."""
    rows = [row for row in compared() if row.group == group]
    factors = [row.factor for row in rows]
    assert statistics.median(factors) <= 1.5
    assert max(factors) <= 2.5
    assert 0.8 <= statistics.median(row.ratio for row in rows) <= 1.25


def test_more_figures_of_vllm_are_held_out_than_fitted() -> None:
    """And no pair of model and GPU stands on both sides."""
    of_vllm = [row for row in compared() if row.published["engine"] == "vLLM"]
    fitted = {row.pair for row in of_vllm if row.group == FITTED}
    held_out = {row.pair for row in of_vllm if row.group == HELD_OUT}
    assert not fitted & held_out
    assert len(held_out) >= 10 > len(fitted)
    long = [row for row in of_vllm if row.published["prompt"] >= 1900]
    sixteen = [row for row in long if row.published["quantization"] == "none"]
    assert {row.pair[1] for row in sixteen} >= {"H100", "A100-80GB"}


def test_no_pair_is_carried_by_another() -> None:
    """The median of each pair alone keeps the bound of a single figure."""
    pairs: dict[tuple[str, str], list[float]] = {}
    for row in compared():
        pairs.setdefault(row.pair, []).append(row.factor)
    assert all(statistics.median(factors) <= 2 for factors in pairs.values())


def test_the_pages_show_the_errors_of_today() -> None:
    """Renew them with: python -m bench.plan_accuracy --write."""
    text = table(compared())
    page = PAGE.read_text(encoding="utf-8")
    shown = page.partition(BEGIN)[2].partition(END)[0].strip()
    assert shown.splitlines() == summary(text)
    assert LAB.read_text(encoding="utf-8").strip() == text


def test_the_check_would_notice_a_wrong_model() -> None:
    """A figure that is three times as high is out of bounds, so the bound can fail."""
    row = json.loads(PUBLISHED.read_text(encoding="utf-8"))[0]
    row["throughput_tok_per_s"] *= 3
    assert compare(row).factor > 2.5


def test_the_kv_memory_is_near_what_vllm_logged_on_gpus() -> None:
    """Qwen3-235B-A22B FP8 on 4 H100: 8.11 GiB a GPU and 178,880 tokens (vllm issue 21348)."""
    gpu = gpu_named("H100")
    found = fit(served("Qwen3-235B-A22B", quantization="fp8"), gpu, Layout(tensor=4))
    logged = 8.11 * 2**30
    assert abs(found.kv_bytes_per_gpu - logged) <= 0.12 * gpu.memory_bytes
    of_token = kv_bytes_per_sequence(model("Qwen3-235B-A22B"), 1, tensor_parallel=4)
    assert logged / of_token == pytest.approx(178_880, rel=0.02)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("gpu", ["H100", "A100-80GB", "RTX3090"])
@settings(max_examples=15, deadline=None)
@given(
    batch=st.integers(1, 512),
    context=st.integers(2, 60_000),
    tensor=st.sampled_from((1, 2, 4)),
    quantization=st.sampled_from(("none", "fp8", "int8", "awq")),
)
def test_nothing_is_faster_than_the_data_sheet(
    name: str, gpu: str, batch: int, context: int, tensor: int, quantization: str
) -> None:
    """Bytes over bandwidth and FLOP over the fastest matrix rate bound every time."""
    asked, card = served(name, quantization=quantization), gpu_named(gpu)
    layout = Layout(tensor=tensor)
    step = decode_s(asked, card, layout, batch=batch, context=context)
    cache_bytes = batch * kv_bytes_per_sequence(asked.model, context, tensor_parallel=tensor)
    assert step >= cache_bytes / card.bandwidth_bytes_per_s
    fastest = max(rate for rate in card.matrix_flop_per_s.values() if rate)
    used = asked.model.active_parameters - asked.model.embedding_parameters
    assert step >= 2 * used * batch / tensor / fastest
    assert prefill_s(asked, card, layout, context) >= 2 * used * context / tensor / fastest
    longer = decode_s(asked, card, layout, batch=batch + 1, context=context)
    assert longer >= step


@pytest.mark.parametrize("name", MODELS)
@settings(max_examples=15, deadline=None)
@given(more=st.integers(0, 10**11), tensor=st.sampled_from((1, 2)), context=st.integers(1, 90_000))
def test_more_memory_never_fits_less(name: str, more: int, tensor: int, context: int) -> None:
    """Nor do fewer bits of the cache."""
    gpu = gpu_named("L40S")
    larger = replace(gpu, memory_bytes=gpu.memory_bytes + more)
    asked = replace(served(name), context=context)
    layout = Layout(tensor=tensor)
    before, after = fit(asked, gpu, layout), fit(asked, larger, layout)
    assert after.kv_tokens >= before.kv_tokens
    assert after.max_sequences >= before.max_sequences
    small = fit(replace(asked, kv_cache="fp8"), gpu, layout)
    assert small.max_sequences >= before.max_sequences


def test_one_stream_of_llama_is_as_by_hand() -> None:
    """A100-40GB: 15.0 GB of weights at 0.8 × 1.555 TB/s, 0.15 GB of cache, 0.8 ms."""
    asked = served("Llama-3.1-8B")
    step = decode_s(asked, gpu_named("A100-40GB"), Layout(), batch=1, context=1088)
    read = 2 * (8_030_261_248 - 128256 * 4096) + 1088 * 131072
    assert step == pytest.approx(read / (0.8 * 1.555e12) + 0.0008, rel=1e-6)


def test_the_smallest_group_that_fits_is_chosen() -> None:
    """Llama 3.3 70B at 16 bits needs two H100; at 8 bits one H200 holds it."""
    asked = replace(served("Llama-3.3-70B"), context=8192)
    assert str(chosen_fit(asked, gpu_named("H100"), None).layout) == "TP2"
    eight = replace(asked, quantization="fp8")
    assert str(chosen_fit(eight, gpu_named("H200"), None).layout) == "TP1"
    assert str(chosen_fit(eight, gpu_named("H200"), 16).layout) == "TP8 DP2"
    huge = replace(served("Llama-3.1-405B"), context=8192)
    assert str(chosen_fit(huge, gpu_named("H100"), None).layout) == "TP8 PP2"


def test_a_layout_that_cannot_be_is_named() -> None:
    """By its heads, or by its bytes."""
    with pytest.raises(EngineError, match="64 heads and 8 KV heads"):
        chosen_fit(served("Llama-3.3-70B"), gpu_named("H200"), 3)
    with pytest.raises(EngineError, match=r"141,1\d\d,\d{3},\d{3} bytes a GPU"):
        chosen_fit(served("Llama-3.3-70B"), gpu_named("H100"), 1)
    assert divides(model("Llama-3.3-70B"), 8)
    assert not divides(model("Qwen2.5-7B"), 8)


def test_copies_carry_twice_the_load() -> None:
    """Two nodes of one group each write twice the tokens at twice the batch."""
    asked, gpu = served("Llama-3.3-70B", quantization="fp8"), gpu_named("H200")
    work = Work(prompt=500, answer=100, batch=64)
    one = predict(asked, gpu, Layout(tensor=8), work)
    two = predict(asked, gpu, Layout(tensor=8, data=2), replace(work, batch=128))
    assert two.throughput_tok_per_s == pytest.approx(2 * one.throughput_tok_per_s)
    assert two.tpot_s == pytest.approx(one.tpot_s)


def test_cached_tokens_shorten_the_first_token_alone() -> None:
    """Decode still reads the whole cache."""
    asked, gpu = served("Llama-3.1-8B"), gpu_named("H100")
    work = Work(prompt=4000, answer=100, batch=8)
    cold = predict(asked, gpu, Layout(), work)
    warm = predict(asked, gpu, Layout(), replace(work, cached=3000))
    assert warm.ttft_s < cold.ttft_s / 2
    assert warm.tpot_s == cold.tpot_s
    assert warm.throughput_tok_per_s > cold.throughput_tok_per_s
