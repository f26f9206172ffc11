"""The pages of engines other than vLLM: their figures are found, whatever the policy calls the
engine, and no odd page stops a worker.

Each page names its source.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.deployments.engine_load import (
    EngineLoad,
    EngineMetrics,
    load_between,
    read_page,
)
from gateway.domain.deployments.engine_pages import pages_of, read_loaded, read_slots, together
from gateway.domain.providers.table import PROVIDERS

# tensorrtllm_backend, README.md, "Triton Metrics", and the server's docs/user_guide/metrics.md at
# commit 067c1e968356; figures changed. Looked up on 2026-11-24.
TRITON = """\
# HELP nv_inference_request_success Number of successful inference requests, all batch sizes
# TYPE nv_inference_request_success counter
nv_inference_request_success{model="ensemble",version="1"} 10
nv_inference_request_success{model="tensorrt_llm",version="1"} 12
nv_inference_exec_count{model="ensemble",version="1"} 10
nv_inference_exec_count{model="tensorrt_llm",version="1"} 12
nv_inference_queue_duration_us{model="ensemble",version="1"} 2500000
nv_inference_queue_duration_us{model="tensorrt_llm",version="1"} 900
nv_inference_pending_request_count{model="ensemble",version="1"} 3
nv_inference_pending_request_count{model="tensorrt_llm",version="1"} 0
# HELP nv_trt_llm_request_metrics TRT LLM request metrics
# TYPE nv_trt_llm_request_metrics gauge
nv_trt_llm_request_metrics{model="tensorrt_llm",request_type="waiting",version="1"} 1
nv_trt_llm_request_metrics{model="tensorrt_llm",request_type="context",version="1"} 1
nv_trt_llm_request_metrics{model="tensorrt_llm",request_type="scheduled",version="1"} 7
nv_trt_llm_request_metrics{model="tensorrt_llm",request_type="max",version="1"} 512
nv_trt_llm_request_metrics{model="tensorrt_llm",request_type="active",version="1"} 8
nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="tokens_per",model="tensorrt_llm"} 64
nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="fraction",model="tensorrt_llm"} 0.25
"""
# tensorrt_llm/metrics/collector.py at commit 050f80def8df, on 2026-11-24; figures made up.
TRTLLM = """\
trtllm_num_requests_running{engine_type="trtllm",model_name="nano"} 5.0
trtllm_num_requests_waiting{engine_type="trtllm",model_name="nano"} 1.0
trtllm_max_num_active_requests{engine_type="trtllm",model_name="nano"} 2048.0
trtllm_kv_cache_utilization{engine_type="trtllm",model_name="nano"} 0.5
trtllm_kv_cache_tokens_per_block{engine_type="trtllm",model_name="nano"} 32.0
trtllm_prompt_tokens_total{engine_type="trtllm",model_name="nano"} 900.0
trtllm_generation_tokens_total{engine_type="trtllm",model_name="nano"} 300.0
trtllm_request_success_total{engine_type="trtllm",finished_reason="stop",model_name="nano"} 9.0
trtllm_request_queue_time_seconds_sum{engine_type="trtllm",model_name="nano"} 4.5
trtllm_request_queue_time_seconds_count{engine_type="trtllm",model_name="nano"} 9.0
"""
# https://github.com/ollama/ollama docs/api.md, "List Running Models". Looked up on 2026-11-24.
OLLAMA = """\
{"models":[{"name":"mistral:latest","model":"mistral:latest","size":5137025024,
"digest":"2ae6f6dd7a3d",
"details":{"parent_model":"","format":"gguf","family":"llama","families":["llama"],
"parameter_size":"7.2B","quantization_level":"Q4_0"},"expires_at":"2024-06-04T14:38:31.83753-07:00",
"size_vram":5137025024,"context_length":4096},{"model":"registry.example/team/qwen:8b"}]}
"""
# Of llama-server (llama-cpp-python 0.3.36) on 2026-11-24, without its help; figures changed.
LLAMACPP = """\
# TYPE llamacpp:prompt_tokens_total counter
llamacpp:prompt_tokens_total 120
# TYPE llamacpp:prompt_tokens_cached_total counter
llamacpp:prompt_tokens_cached_total 30
# TYPE llamacpp:prompt_seconds_total counter
llamacpp:prompt_seconds_total 0.5
# TYPE llamacpp:tokens_predicted_total counter
llamacpp:tokens_predicted_total 40
# TYPE llamacpp:tokens_predicted_seconds_total counter
llamacpp:tokens_predicted_seconds_total 0.8
# TYPE llamacpp:n_decode_total counter
llamacpp:n_decode_total 45
# TYPE llamacpp:predicted_tokens_seconds gauge
llamacpp:predicted_tokens_seconds 50
# TYPE llamacpp:requests_processing gauge
llamacpp:requests_processing 2
# TYPE llamacpp:requests_deferred gauge
llamacpp:requests_deferred 3
"""
SLOTS = """\
[{"id":0,"n_ctx":1024,"speculative":false,"is_processing":true,"id_task":7,"n_prompt_tokens":200,
"n_prompt_tokens_processed":20,"n_prompt_tokens_cache":0,"params":{"seed":4294967295,"n_predict":3,"timings_per_token":true},
"next_token":[{"has_next_token":true,"has_new_line":false,"n_remain":-1,"n_decoded":5}],
"prompt":"an old release writes the prompt here"},
{"id":1,"n_ctx":1024,"speculative":false,"is_processing":true,"n_prompt_tokens":312},
{"id":2,"n_ctx":1024,"speculative":false,"is_processing":false,"n_prompt_tokens":900},
{"id":3,"n_ctx":1024,"speculative":false,"is_processing":false}]
"""


def test_the_pages_of_llama_cpp_are_read() -> None:
    """The metrics have its queue and its counters, the slots its room; an idle slot's tokens are
    free to be overwritten.
    """
    metrics = read_page(LLAMACPP, "llamacpp", model="tiny")
    assert metrics == EngineMetrics(
        running=2,
        waiting=3,
        prompt_tokens=120,
        generation_tokens=40,
        steps=45,
        tpot_sum_s=0.8,
        tpot_count=40,
    )
    slots = read_slots(SLOTS)
    assert slots == EngineMetrics(running=2, room=4, kv_use=512 / 4096)
    load = load_between(EngineMetrics(tpot_sum_s=0, tpot_count=0), together([metrics, slots]))
    assert (load.running, load.waiting, load.room) == (2, 3, 4)
    assert read_slots(SLOTS.replace("1024", "1")).kv_use is None
    assert read_slots(SLOTS.replace("1024", "0")).kv_use is None


def test_tritons_page_is_read() -> None:
    """It counts microseconds, names its models otherwise, and only one backend shows its cache."""
    found = read_page(TRITON, "triton", model="ensemble")
    assert found == EngineMetrics(
        running=7,
        waiting=3,
        room=512,
        kv_use=0.25,
        block_size=64,
        steps=10,
        finished=10,
        queue_sum_s=2.5,
        queue_count=10,
    )
    earlier = EngineMetrics(queue_sum_s=0.5, queue_count=5, finished=5)
    assert load_between(earlier, found, seconds=5).queue_s == pytest.approx(0.4)
    assert read_page(TRITON, "triton", model="tensorrt_llm").waiting == 0
    assert read_page(TRITON) == read_page(TRITON, "triton")


def test_the_whole_page_of_tensorrt_llm_is_read() -> None:
    """Its room is stated, so nobody has to wait before it is known."""
    found = read_page(TRTLLM, "trtllm", model="nano")
    assert found == EngineMetrics(
        running=5,
        waiting=1,
        room=2048,
        kv_use=0.5,
        block_size=32,
        prompt_tokens=900,
        generation_tokens=300,
        finished=9,
        queue_sum_s=4.5,
        queue_count=9,
    )
    assert load_between(None, found).room == 2048


@pytest.mark.parametrize(
    ("model", "is_loaded"),
    [
        ("mistral", True),
        ("mistral:latest", True),
        ("mistral:7b", False),
        ("registry.example/team/qwen:8b", True),
        ("registry.example:5000/team/qwen", False),
        ("qwen", False),
    ],
)
def test_ollama_lists_the_loaded_models(model: str, is_loaded: bool) -> None:
    """A model that is not loaded is read from disk before the first token."""
    assert read_loaded(OLLAMA, model) == EngineMetrics(loaded=float(is_loaded))
    assert load_between(None, read_loaded(OLLAMA, model)) == EngineLoad(is_loaded=is_loaded)
    assert read_loaded('{"models":[]}', model) == EngineMetrics(loaded=0)


@pytest.mark.parametrize("page", ["", "[]", "{}", "[1]", "{", "<html>", '{"error":"x"}', "\ud800"])
def test_a_page_of_another_server_shows_no_load(page: str) -> None:
    """Unknown is not idle, and not unloaded either."""
    assert read_slots(page) == EngineMetrics()
    assert read_loaded(page, "mistral") == EngineMetrics()


@given(st.text(max_size=200), st.integers(0, len(OLLAMA)))
def test_no_json_page_is_too_odd_to_be_read(junk: str, at: int) -> None:
    """Whatever stands in for the engine, the worker goes on."""
    for text in (junk, OLLAMA[:at] + junk + OLLAMA[at:]):
        read_slots(text)
        read_loaded(text, junk)


def test_the_figures_of_two_pages_are_one() -> None:
    """The first page that has a figure counts."""
    assert together([EngineMetrics(running=2), EngineMetrics(running=3, room=4)]) == EngineMetrics(
        running=2, room=4
    )
    assert together([]) == EngineMetrics()


@pytest.mark.parametrize("provider", [*PROVIDERS, "ollama", "triton", "trtllm"])
def test_every_engine_is_asked_in_its_own_way_first(provider: str) -> None:
    """And then in the others', because one server often stands in for another."""
    own = {
        "vllm": ["/metrics"],
        "sglang": ["/metrics"],
        "trtllm": ["/prometheus/metrics"],
        "triton": [":8002/metrics"],
        "llamacpp": ["/metrics", "/slots"],
        "ollama": ["/api/ps"],
    }
    first, *others = pages_of(provider)
    assert [page.path for page in first] == own.get(provider, ["/metrics"])
    paths = {page.path for group in (first, *others) for page in group}
    assert paths >= {"/metrics", "/prometheus/metrics", "/slots", "/api/ps"}
