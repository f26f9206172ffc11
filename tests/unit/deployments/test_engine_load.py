"""An engine's load is read from any page, even a broken one; changes are never below zero."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from math import isfinite

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import asdict, astuple

from gateway.domain.deployments.engine_load import (
    GAUGES,
    SIGNALS,
    EngineLoad,
    EngineMetrics,
    How,
    is_moving,
    load_between,
    read_page,
)

# Of vLLM 0.32 on 2026-11-22, four requests after its start; buckets and other families are left out
# but for a few.
PAGE = """\
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="tiny"} 2.0
# HELP vllm:num_requests_waiting Number of requests waiting to be processed.
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{engine="0",model_name="tiny"} 3.0
vllm:num_requests_waiting_by_reason{engine="0",model_name="tiny",reason="capacity"} 7.0
# TYPE vllm:kv_cache_usage_perc gauge
vllm:kv_cache_usage_perc{engine="0",model_name="tiny"} 0.00512820512820511
# TYPE vllm:prefix_cache_queries_total counter
vllm:prefix_cache_queries_total{engine="0",model_name="tiny"} 48.0
# TYPE vllm:prefix_cache_queries_created gauge
vllm:prefix_cache_queries_created{engine="0",model_name="tiny"} 1.7639e+09
vllm:prefix_cache_hits_total{engine="0",model_name="tiny"} 12.0
vllm:prompt_tokens_total{engine="0",model_name="tiny"} 48.0
vllm:generation_tokens_total{engine="0",model_name="tiny"} 3200.0
vllm:request_success_total{engine="0",finished_reason="stop",model_name="tiny"} 1.0
vllm:request_success_total{engine="0",finished_reason="length",model_name="tiny"} 3.0
vllm:iteration_tokens_total_bucket{engine="0",le="1.0",model_name="tiny"} 700.0
vllm:iteration_tokens_total_count{engine="0",model_name="tiny"} 801.0
vllm:iteration_tokens_total_sum{engine="0",model_name="tiny"} 3248.0
vllm:cache_config_info{block_size="128",cache_dtype="auto",engine="0",num_gpu_blocks="4096"} 1.0
vllm:request_queue_time_seconds_bucket{engine="0",le="0.3",model_name="tiny"} 4.0
vllm:request_queue_time_seconds_count{engine="0",model_name="tiny"} 4.0
vllm:request_queue_time_seconds_sum{engine="0",model_name="tiny"} 0.8
vllm:request_prefill_time_seconds_count{engine="0",model_name="tiny"} 4.0
vllm:request_prefill_time_seconds_sum{engine="0",model_name="tiny"} 0.1
vllm:request_time_per_output_token_seconds_count{engine="0",model_name="tiny"} 4.0
vllm:request_time_per_output_token_seconds_sum{engine="0",model_name="tiny"} 0.02
"""
SEEN = EngineMetrics(
    running=2,
    waiting=3,
    kv_use=0.00512820512820511,
    block_size=128,
    prompt_tokens=48,
    generation_tokens=3200,
    steps=801,
    finished=4,
    prefill_sum_s=0.1,
    prefill_count=4,
    queue_sum_s=0.8,
    queue_count=4,
    tpot_sum_s=0.02,
    tpot_count=4,
    prefix_looked_up=48,
    prefix_hits=12,
)
SGLANG = """\
# TYPE sglang:num_running_reqs gauge
sglang:num_running_reqs{model_name="m-1"} 161.0
sglang:num_queue_reqs{model_name="m-1"} 2825.0
sglang:token_usage{model_name="m-1"} 0.28
sglang:cache_config_info{page_size="16"} 1.0
sglang:prompt_tokens_total{model_name="m-1"} 8.128902e+06
sglang:generation_tokens_total{model_name="m-1"} 7.557572e+06
"""
TRTLLM = """\
trtllm_num_requests_running 5.0
trtllm_num_requests_waiting 1.0
trtllm_kv_cache_utilization 0.5
trtllm_kv_cache_tokens_per_block 32.0
trtllm_request_success_total{finished_reason="stop",model_name="undefined"} 9.0
"""
AMOUNTS = st.none() | st.floats(0, 1e15)
ANY_FIGURES = st.builds(EngineMetrics, **dict.fromkeys(EngineMetrics.__struct_fields__, AMOUNTS))


def test_a_page_of_vllm_is_read() -> None:
    """Names that only begin alike are others: the time a counter was made would be a billion
    tokens.
    """
    assert read_page(PAGE) == SEEN
    assert read_page(PAGE, "vllm", model="tiny") == SEEN
    assert read_page(f"{PAGE}vllm:num_requests_waiting2 40\n") == SEEN


def test_the_pages_of_other_engines_are_read_by_their_names() -> None:
    """Names are data: an engine that is added needs no code."""
    assert read_page(SGLANG) == EngineMetrics(
        running=161,
        waiting=2825,
        kv_use=0.28,
        block_size=16,
        prompt_tokens=8_128_902,
        generation_tokens=7_557_572,
        prefix_looked_up=8_128_902,
    )
    assert read_page(TRTLLM, "trtllm") == EngineMetrics(
        running=5, waiting=1, kv_use=0.5, block_size=32, finished=9
    )


@pytest.mark.parametrize(
    "page", ["", "up 1\n", "lmstudio:requests_processing 3\n", "<html>vllm:</html>", "vllm:\n"]
)
def test_an_engine_that_is_not_known_says_nothing(page: str) -> None:
    """Unknown is not idle: nothing is better than a zero that draws all load there."""
    assert read_page(page) == EngineMetrics()
    assert read_page(PAGE, "lmstudio") == EngineMetrics()
    assert load_between(None, EngineMetrics()) == EngineLoad()
    assert EngineMetrics().progress is None


def test_every_signal_is_a_figure() -> None:
    """A name of no figure is never shown to anyone."""
    for dialect in SIGNALS.values():
        assert is_dataclass(dialect)
        assert {field.name for field in fields(dialect)} == {
            "prefix",
            "signals",
            "path",
            "model_label",
            "ttft",
            "tpot",
        }
        assert bool(dialect.ttft) == bool(dialect.tpot)
        for signal in dialect.signals:
            assert signal.figure in EngineMetrics.__struct_fields__
            assert signal.name.startswith((dialect.prefix, "nv_trt_llm_"))
            assert bool(signal.label) == (signal.how is How.LABEL)


def test_cores_are_summed_and_shares_are_not() -> None:
    """Two cores that are half full are half full; block sizes do not add up either."""
    cores = PAGE + PAGE.replace('engine="0"', 'engine="1"').replace("0.00512820512820511", "0.5")
    found = read_page(cores)
    assert (found.running, found.waiting, found.finished) == (4, 6, 8)
    assert found.kv_use == pytest.approx((0.5 + 0.00512820512820511) / 2)
    assert found.block_size == 128


def test_another_model_on_the_same_engine_is_not_counted() -> None:
    """Its queue is another deployment's; who serves under another name than it counts under gets
    all of it.
    """
    both = PAGE + PAGE.replace(
        'model_name="tiny"', 'served_model_name="tiny",model_name="other"'
    ).replace(" 2.0", " 9.0")
    assert read_page(both, model="tiny").running == 2
    assert read_page(both, model="other").running == 9
    assert read_page(both, model="alias").running == 11


@pytest.mark.parametrize(
    "value", ["NaN", "+Inf", "-Inf", "-1", "", "x", "1e999", "0x3", "{", "\x00"]
)
def test_an_impossible_figure_is_unknown(value: str) -> None:
    """An impossible figure must not order anything."""
    broken = PAGE.replace(" 2.0\n", f" {value}\n").replace(" 0.00512820512820511\n", f" {value}\n")
    assert (read_page(broken).running, read_page(broken).kv_use, read_page(broken).waiting) == (
        None,
        None,
        3,
    )


def test_a_cache_cannot_be_fuller_than_full() -> None:
    """A percentage in place of a share would read as forty times full."""
    assert read_page(PAGE.replace(" 0.00512820512820511\n", " 41\n")).kv_use is None


def test_a_time_behind_a_value_is_not_the_value() -> None:
    """The format allows one, and label values may contain anything."""
    odd = 'vllm:num_requests_running{engine="a} 99 \\" b",model_name="x"} 2.0 1763812345678\n'
    assert read_page(odd).running == 2


@given(st.integers(0, len(PAGE)))
def test_a_cut_page_gives_whole_figures_or_no_figures(length: int) -> None:
    """Half of "12.0" is 1: a last line that did not end is not read."""
    found = read_page(PAGE[:length])
    whole = asdict(SEEN)
    for name, value in asdict(found).items():
        assert value in (None, whole[name], 1), name  # the first of two reasons to finish
    assert found.waiting in (None, 3)


@given(
    st.text(max_size=400) | st.binary(max_size=400).map(lambda raw: raw.decode("utf-8", "replace")),
    st.data(),
)
def test_no_page_is_too_odd_to_be_read(junk: str, data: st.DataObject) -> None:
    """An engine, or who stands in for it, may answer anything: the worker goes on, and figures are
    figures.
    """
    at = data.draw(st.integers(0, len(PAGE)))
    for page in (junk, PAGE[:at] + junk + PAGE[at:], f"vllm:{junk}"):
        found = read_page(page, model=junk[:5])
        assert all(value is None or (isfinite(value) and value >= 0) for value in astuple(found))


def test_a_page_that_repeats_itself_is_read_to_a_bound() -> None:
    """A hundred thousand lines of one name would hold the thread for seconds."""
    assert read_page('vllm:num_requests_running{engine="0"} 1\n' * 5000).running == 1024


def test_two_samples_give_means_rates_and_the_cached_share() -> None:
    """Means of finished requests, their rate, and the cached share of the prompts."""
    after = EngineMetrics(
        running=1,
        waiting=0,
        kv_use=0.1,
        block_size=128,
        prompt_tokens=148,
        generation_tokens=3300,
        steps=900,
        finished=14,
        prefill_sum_s=1.1,
        prefill_count=14,
        queue_sum_s=5.8,
        queue_count=14,
        tpot_sum_s=0.22,
        tpot_count=14,
        prefix_looked_up=148,
        prefix_hits=62,
    )
    found = load_between(SEEN, after, seconds=5, sent_since=2)
    assert asdict(found) == pytest.approx(
        asdict(
            EngineLoad(
                running=1,
                waiting=0,
                kv_use=0.1,
                block_size=128,
                prefill_s=0.1,
                queue_s=0.5,
                tpot_s=0.02,
                finished_per_s=2,
                prefix_hit_share=0.5,
                sent_since=2,
            )
        )
    )


@pytest.mark.parametrize("name", EngineMetrics.__struct_fields__[GAUGES:])
def test_a_falling_counter_means_that_the_engine_restarted(name: str) -> None:
    """A rate over a restart would be below zero, or as high as all that was ever done."""
    counted = EngineMetrics.__struct_fields__[GAUGES:]
    after = EngineMetrics(
        **{**{member: 2 * asdict(SEEN)[member] for member in counted}, name: asdict(SEEN)[name] / 2}
    )
    assert load_between(SEEN, after, seconds=5) == EngineLoad()
    assert is_moving(SEEN, EngineMetrics(**{**asdict(SEEN), "generation_tokens": 0.0})) is True


def test_without_finished_requests_rates_are_unknown() -> None:
    """An idle engine's rate of zero a second is not its capacity, and its mean is not zero."""
    assert load_between(SEEN, SEEN, seconds=5) == EngineLoad(
        running=2, waiting=3, kv_use=SEEN.kv_use, block_size=128
    )
    assert load_between(SEEN, SEEN, seconds=0).finished_per_s is None


@given(st.none() | ANY_FIGURES, ANY_FIGURES, st.floats(0, 100))
def test_no_rate_is_below_zero(
    before: EngineMetrics | None, after: EngineMetrics, seconds: float
) -> None:
    """For any two pages, predictions stay a time, a rate or a share."""
    found = load_between(before, after, seconds=seconds)
    assert all(value is None or value >= 0 for value in astuple(found))
    assert found.prefix_hit_share is None or found.prefix_hit_share <= 1


def test_a_long_prompt_moves_the_cache_alone() -> None:
    """While it is read no token counts, but its blocks fill: such an engine is no dead one."""
    filling = EngineMetrics(**{**asdict(SEEN), "kv_use": 0.2})
    assert (is_moving(SEEN, SEEN), is_moving(SEEN, filling), is_moving(SEEN, EngineMetrics())) == (
        False,
        True,
        None,
    )
    assert (
        is_moving(EngineMetrics(running=1, kv_use=0.1), EngineMetrics(running=1, kv_use=0.2))
        is None
    )
    assert (SEEN.is_busy, EngineMetrics(waiting=1).is_busy, EngineMetrics(running=0).is_busy) == (
        True,
        True,
        False,
    )
