"""Reads an engine's load from the text of its metrics page, and computes the changes between two
reads; fetches nothing.

The names per engine are data. The page is scanned for the few needed lines, not parsed: it has 100
KB, and every worker reads it every second. `services.deployments.engine_load` fetches it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum, auto
from math import isfinite

from msgspec import Struct
from msgspec.structs import replace


class EngineLoad(Struct, frozen=True, kw_only=True, gc=False):
    """The last report of one engine; None for figures that it does not report.

    Now: `running` and `waiting` requests, `kv_use` from 0 to 1, `block_size` in tokens. Over the
    last seconds, None if nothing ended in them: means of `prefill_s`, `queue_s` and `tpot_s`,
    `finished_per_s`, and `prefix_hit_share` of the looked-up prompt tokens. `sent_since` counts
    this worker's requests after the report, `age_s` is its age. `room` is the most that runs at
    once: stated by the engine, else observed while others waited. `is_loaded` is False if the model
    has to be loaded before it answers.
    """

    running: float | None = None
    waiting: float | None = None
    kv_use: float | None = None
    block_size: float | None = None
    prefill_s: float | None = None
    queue_s: float | None = None
    tpot_s: float | None = None
    finished_per_s: float | None = None
    prefix_hit_share: float | None = None
    sent_since: int = 0
    age_s: float = 0.0
    room: float | None = None
    is_loaded: bool | None = None


class EngineMetrics(Struct, frozen=True, kw_only=True, gc=False):
    """One page's figures, None for missing ones.

    All except the first six (`GAUGES`) count up from the start. `loaded` is 1 if the model is in
    memory, else 0.
    """

    running: float | None = None
    waiting: float | None = None
    kv_use: float | None = None
    block_size: float | None = None
    room: float | None = None
    loaded: float | None = None
    prompt_tokens: float | None = None
    generation_tokens: float | None = None
    steps: float | None = None
    finished: float | None = None
    prefill_sum_s: float | None = None
    prefill_count: float | None = None
    queue_sum_s: float | None = None
    queue_count: float | None = None
    tpot_sum_s: float | None = None
    tpot_count: float | None = None
    prefix_looked_up: float | None = None
    prefix_hits: float | None = None

    @property
    def progress(self) -> tuple[float | None, ...] | None:
        """Return the figures that must change while an engine works, to compare two reads; None if
        it reports no counter.

        During a long prefill only the KV use moves.
        """
        counters = (self.generation_tokens, self.prompt_tokens, self.steps, self.finished)
        return None if counters == _NO_COUNTERS else (*counters, self.kv_use)

    @property
    def is_busy(self) -> bool:
        """Return True if any request runs or waits at the engine."""
        return bool(self.running or self.waiting)


_NO_COUNTERS = (None, None, None, None)
GAUGES = 6


class How(StrEnum):
    """The aggregation of several lines of one name: an engine has one for each of its cores."""

    SUM = auto()
    MEAN = auto()
    LABEL = auto()  # the figure is one of the line's labels, not its value


@dataclass(frozen=True, slots=True, kw_only=True)
class Signal:
    """The place of one figure.

    `only` is a label with its value, for a name whose lines are different figures. `scale` makes
    seconds of the page's unit.
    """

    figure: str
    name: str
    how: How = How.SUM
    label: str = ""
    only: str = ""
    scale: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineMetricNames:
    """One engine's metric names, the path of its page, and the label that names the model.

    A path that begins with a colon names another port of the same host. `ttft` and `tpot` name the
    histograms, in seconds, that `engine_signals` reads; empty for an engine without them.
    """

    prefix: str
    signals: tuple[Signal, ...]
    path: str = "/metrics"
    model_label: str = "model_name"
    ttft: str = ""
    tpot: str = ""


def _summed_signals(names: Mapping[str, str]) -> tuple[Signal, ...]:
    """Return for each figure the name of its metric on an engine's page, to be summed over all
    lines of that name.
    """
    return tuple(Signal(figure=figure, name=name) for figure, name in names.items())


def _mean_of(figure: str, name: str) -> tuple[Signal, Signal]:
    """Return the two metrics of a histogram, its sum of seconds and its count, from which
    `load_between` computes the figure's mean.
    """
    return Signal(figure=f"{figure}_sum_s", name=f"{name}_sum"), Signal(
        figure=f"{figure}_count", name=f"{name}_count"
    )


# The keys are the providers' names in a policy. vLLM 0.32 and llama.cpp (the release in
# llama-cpp-python 0.3.36) as observed; SGLang by its documentation and the protocol page of the
# llm-d router; TensorRT-LLM by tensorrt_llm/metrics/collector.py at commit 050f80def8df; Triton by
# docs/user_guide/metrics.md at commit 067c1e968356 and, for its TensorRT-LLM backend, by the
# protocol page too. Looked up on 2026-11-24.
SIGNALS: Mapping[str, EngineMetricNames] = {
    "vllm": EngineMetricNames(
        prefix="vllm:",
        ttft="vllm:time_to_first_token_seconds",
        tpot="vllm:request_time_per_output_token_seconds",
        signals=(
            *_summed_signals(
                {
                    "running": "vllm:num_requests_running",
                    "waiting": "vllm:num_requests_waiting",
                    "prompt_tokens": "vllm:prompt_tokens_total",
                    "generation_tokens": "vllm:generation_tokens_total",
                    "steps": "vllm:iteration_tokens_total_count",
                    "finished": "vllm:request_success_total",
                    "prefix_looked_up": "vllm:prefix_cache_queries_total",
                    "prefix_hits": "vllm:prefix_cache_hits_total",
                }
            ),
            Signal(figure="kv_use", name="vllm:kv_cache_usage_perc", how=How.MEAN),
            Signal(
                figure="block_size",
                name="vllm:cache_config_info",
                how=How.LABEL,
                label="block_size",
            ),
            *_mean_of("prefill", "vllm:request_prefill_time_seconds"),
            *_mean_of("queue", "vllm:request_queue_time_seconds"),
            *_mean_of("tpot", "vllm:request_time_per_output_token_seconds"),
        ),
    ),
    "sglang": EngineMetricNames(
        prefix="sglang:",
        ttft="sglang:time_to_first_token_seconds",
        tpot="sglang:inter_token_latency_seconds",
        signals=(
            *_summed_signals(
                {
                    "running": "sglang:num_running_reqs",
                    "waiting": "sglang:num_queue_reqs",
                    "prompt_tokens": "sglang:prompt_tokens_total",
                    "generation_tokens": "sglang:generation_tokens_total",
                    "finished": "sglang:num_requests_total",
                    "prefix_looked_up": "sglang:prompt_tokens_total",
                    "prefix_hits": "sglang:cached_tokens_total",
                }
            ),
            Signal(figure="kv_use", name="sglang:token_usage", how=How.MEAN),
            Signal(
                figure="block_size",
                name="sglang:cache_config_info",
                how=How.LABEL,
                label="page_size",
            ),
            *_mean_of("queue", "sglang:queue_time_seconds"),
            *_mean_of("tpot", "sglang:inter_token_latency_seconds"),
        ),
    ),
    "trtllm": EngineMetricNames(
        prefix="trtllm_",
        path="/prometheus/metrics",
        ttft="trtllm_time_to_first_token_seconds",
        tpot="trtllm_time_per_output_token_seconds",
        signals=(
            *_summed_signals(
                {
                    "running": "trtllm_num_requests_running",
                    "waiting": "trtllm_num_requests_waiting",
                    "room": "trtllm_max_num_active_requests",
                    "prompt_tokens": "trtllm_prompt_tokens_total",
                    "generation_tokens": "trtllm_generation_tokens_total",
                    "finished": "trtllm_request_success_total",
                }
            ),
            Signal(figure="kv_use", name="trtllm_kv_cache_utilization", how=How.MEAN),
            Signal(figure="block_size", name="trtllm_kv_cache_tokens_per_block", how=How.MEAN),
            *_mean_of("prefill", "trtllm_request_prefill_time_seconds"),
            *_mean_of("queue", "trtllm_request_queue_time_seconds"),
            *_mean_of("tpot", "trtllm_time_per_output_token_seconds"),
        ),
    ),
    "llamacpp": EngineMetricNames(
        prefix="llamacpp:",
        signals=(
            *_summed_signals(
                {
                    "running": "llamacpp:requests_processing",
                    "waiting": "llamacpp:requests_deferred",
                    "prompt_tokens": "llamacpp:prompt_tokens_total",
                    "generation_tokens": "llamacpp:tokens_predicted_total",
                    "steps": "llamacpp:n_decode_total",
                    # It counts the tokens of ended answers, so their mean time is one per token.
                    "tpot_sum_s": "llamacpp:tokens_predicted_seconds_total",
                    "tpot_count": "llamacpp:tokens_predicted_total",
                }
            ),
        ),
    ),
    "triton": EngineMetricNames(
        prefix="nv_inference_",
        path=":8002/metrics",
        model_label="model",
        signals=(
            *_summed_signals(
                {
                    "waiting": "nv_inference_pending_request_count",
                    "finished": "nv_inference_request_success",
                    "steps": "nv_inference_exec_count",
                    "queue_count": "nv_inference_request_success",
                }
            ),
            Signal(figure="queue_sum_s", name="nv_inference_queue_duration_us", scale=1e-6),
            # Only the TensorRT-LLM backend has these, under its own model's name.
            *(
                Signal(figure=figure, name=name, how=How.MEAN, only=only)
                for figure, name, only in (
                    ("running", "nv_trt_llm_request_metrics", 'request_type="scheduled"'),
                    ("room", "nv_trt_llm_request_metrics", 'request_type="max"'),
                    (
                        "kv_use",
                        "nv_trt_llm_kv_cache_block_metrics",
                        'kv_cache_block_type="fraction"',
                    ),
                    (
                        "block_size",
                        "nv_trt_llm_kv_cache_block_metrics",
                        'kv_cache_block_type="tokens_per"',
                    ),
                )
            ),
        ),
    ),
}
_MOST_LINES = 1024  # of one name: cores times models; bounds a page that repeats itself


def read_page(text: str, engine: str | None = None, *, model: str | None = None) -> EngineMetrics:
    """Return an engine's figures from its metrics page: those of `model` if the engine serves
    several, else over all of them.

    `engine` is a name in `SIGNALS`; None detects it. Reads the readable part of a cut or garbled
    page, and nothing of an unknown engine.
    """
    names = SIGNALS.get(engine) if engine is not None else detected_engine(text)
    if names is None:
        return EngineMetrics()
    whole = whole_lines(text)
    named = None if model is None else f',{names.model_label}="{model}"'
    found = {signal.figure: _figure(whole, signal, named) for signal in names.signals}
    kv_use = found.get("kv_use")
    if kv_use is not None and kv_use > 1:
        found["kv_use"] = None
    return EngineMetrics(**found)


def load_between(
    previous: EngineMetrics | None,
    current: EngineMetrics,
    *,
    seconds: float = 0.0,
    sent_since: int = 0,
) -> EngineLoad:
    """Return an engine's load from its `current` metrics, with the changes in the `seconds` since
    `previous`.

    A counter that fell means a restart in between; that time is then unknown.
    """
    load = EngineLoad(
        running=current.running,
        waiting=current.waiting,
        kv_use=current.kv_use,
        block_size=current.block_size,
        sent_since=sent_since,
        room=current.room,
        is_loaded=None if current.loaded is None else current.loaded > 0,
    )
    if previous is None or seconds <= 0 or was_restarted(previous, current):
        return load
    finished = _increase(previous.finished, current.finished)
    looked_up = _increase(previous.prefix_looked_up, current.prefix_looked_up)
    hits = _increase(previous.prefix_hits, current.prefix_hits)
    return replace(
        load,
        prefill_s=_mean(previous, current, "prefill"),
        queue_s=_mean(previous, current, "queue"),
        tpot_s=_mean(previous, current, "tpot"),
        finished_per_s=finished / seconds if finished else None,
        prefix_hit_share=min(hits / looked_up, 1.0) if looked_up and hits is not None else None,
    )


def is_moving(previous: EngineMetrics, current: EngineMetrics) -> bool | None:
    """Return True if an engine did anything between two reads of its metrics, a restart included;
    None if unknown.
    """
    before, after = previous.progress, current.progress
    return None if before is None or after is None else before != after


def whole_lines(text: str) -> str:
    """Return a page's whole lines, each after a line break: a last line without its end may lack
    digits.
    """
    return "\n" + text[: text.rfind("\n") + 1]


def detected_engine(text: str) -> EngineMetricNames | None:
    """Return the metric names of the engine that wrote a page, recognised by their prefix; None for
    an unknown engine.
    """
    return next((names for names in SIGNALS.values() if f"\n{names.prefix}" in f"\n{text}"), None)


def _figure(page: str, signal: Signal, named: str | None) -> float | None:
    """Return one figure of a metrics page, combined from all lines of its name; None if it is
    missing. `named` is the label of the wanted model, with a leading comma.
    """
    of_model: list[float] = []
    of_all: list[float] = []
    for labels, value in lines_of(page, signal.name):
        if f",{signal.only}" not in labels:
            continue
        if signal.how is How.LABEL:
            number = number_in(label_of(labels, signal.label))
        else:
            number = number_in(value)
        if number is None:
            continue
        of_all.append(number)
        if named is not None and named in labels:
            of_model.append(number)
    chosen = of_model or of_all
    if not chosen:
        return None
    if signal.how is How.LABEL:
        return chosen[0]
    total = sum(chosen) * signal.scale
    return _known(total / len(chosen) if signal.how is How.MEAN else total)


def lines_of(page: str, name: str) -> Iterator[tuple[str, str]]:
    """Yield the labels, each with a leading comma, and the value of each metric line of a name;
    `page` is of `whole_lines`.

    A name with the same beginning (`_created`, `_by_reason`) is another name.
    """
    start = f"\n{name}"
    at = page.find(start)
    for _ in range(_MOST_LINES):
        if at < 0:
            return
        after = at + len(start)
        end = page.index("\n", after)
        rest = page[after:end]
        if rest.startswith((" ", "{")):
            labels, _, value = rest.rpartition("} ") if rest[0] == "{" else ("", "", rest)
            yield f",{labels[1:]}", value
        at = page.find(start, end)


def label_of(labels: str, name: str) -> str:
    """Return one label's text from a metric line, empty if it is absent; the labels begin with a
    comma.

    Searched as plain text: a pattern for labels took 30 s for one line of 80 KB, and held the
    interpreter for all of it.
    """
    _, _, rest = labels.partition(f',{name}="')
    return rest.partition('"')[0]


def number_in(text: str) -> float | None:
    """Return the number at the beginning of a metric's value, which a time may follow; None if
    there is none.
    """
    words = text.split(None, 1)
    try:
        return _known(float(words[0])) if words else None
    except ValueError:
        return None


def _known(number: float) -> float | None:
    """Return a metric's number; None for one that no engine can mean: NaN, infinite or negative."""
    return number if isfinite(number) and number >= 0 else None


def was_restarted(previous: EngineMetrics, current: EngineMetrics) -> bool:
    """Return True if an engine restarted between two reads: a counter fell, and counters start with
    the engine.
    """
    return any(
        before is not None and after is not None and after < before
        for before, after in (
            (getattr(previous, name), getattr(current, name))
            for name in EngineMetrics.__struct_fields__[GAUGES:]
        )
    )


def _increase(before: float | None, after: float | None) -> float | None:
    """Return a counter's increase between two reads, 0 at least; None if either read lacks it."""
    return None if before is None or after is None else max(after - before, 0.0)


def _mean(previous: EngineMetrics, current: EngineMetrics, figure: str) -> float | None:
    """Return the mean in seconds of the observations that a histogram gained between two reads;
    None if it gained none.
    """
    count = _increase(getattr(previous, f"{figure}_count"), getattr(current, f"{figure}_count"))
    total = _increase(getattr(previous, f"{figure}_sum_s"), getattr(current, f"{figure}_sum_s"))
    return None if not count or total is None else total / count
