"""Predicts prefill and decode times from bytes and FLOP, bounded by the GPU's data sheet.

A pass takes the longer of reading the weights and multiplying, plus the reads of the KV cache,
plus the exchange between GPUs, plus a fixed overhead (roofline model: Williams et al., CACM 52(4),
2009). Each share below is under 1, so no prediction beats the data sheet.
"""

from dataclasses import dataclass

from engine.plan.architecture import Layer, Model
from engine.plan.batch_limits import default_limits
from engine.plan.gpus import Gpu
from engine.plan.layout import Layout, Served
from engine.plan.memory import BITS, kv_bytes_per_sequence, layer_bytes

BANDWIDTH_SHARE = 0.8
"""Of the memory bandwidth that decode reaches.

Tuned on one run: Llama 3.1 8B at 16 bits on an H100, one stream, 6.48 ms a token (concurrency sweep
at yobitelcomm.github.io/bench, vLLM 0.21, 2026-05-16).
"""
MATRIX_SHARE = {"16bit": 0.6, "fp8": 0.4, "int8": 0.4}
"""Of the matrix rate that large products reach.

Tuned on the first-token times of LLaMA 7B and 70B with 2,048 tokens on H100 and L40S (FP8) and A100
(FP16), TensorRT-LLM 0.5, docs/source/performance.md at 138f96d4: 33 to 52 % and 60 to 68 %. The
throughput figures of that page tuned nothing.
"""
HOPPER_16BIT_SHARE = 0.39
"""In place of `MATRIX_SHARE` at 16 bits on Hopper.

Hopper has three times the matrix rate of the A100, but not three times the memory bandwidth or the
host's speed to feed it. Fitted, with `EXPERT_WORK`, by `python -m bench.plan_accuracy --fit` on
three pairs that vLLM 0.11 served: Qwen3-14B on an H100, gpt-oss-20b on an H100 and an A100.
"""
EXPERT_WORK = 2.1
"""The time to multiply by an expert, over that of a dense matrix of its size.

Each expert multiplies few of a pass's tokens, so its products are small and padded.
"""
LINK_SHARE = 0.7
"""Of a link's rate that an all-reduce reaches. An estimate."""

PASS_OVERHEAD_S = 0.0008
"""Scheduling, sampling and kernel starts of one pass; tuned with `BANDWIDTH_SHARE`."""
EXPERT_LAYER_S = 115e-6
"""Routing, sorting and the small kernels of one layer with experts, in each pass.

Tuned on one run: Mixtral 8x7B in int8 on an A100, one stream, 512 / 128 tokens, 81 tokens a second
(baseten.co/blog/faster-mixtral-inference-with-tensorrt-llm-and-quantization, TensorRT-LLM, 2023).
"""
REDUCE_LATENCY_S = {True: 10e-6, False: 25e-6}
"""Of one all-reduce of a small message, with NVLink or over PCIe. An estimate."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """The lengths of the requests and how many run at once."""

    prompt: int
    answer: int
    batch: int
    """Sequences in flight over all copies of the model."""
    cached: int = 0
    """Tokens of the prompt that the prefix cache holds already; below `prompt`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """The prediction for one layout and batch."""

    ttft_s: float
    tpot_s: float
    throughput_tok_per_s: float
    """Output tokens of all GPUs, with the time for the prompts in it."""


def predict(served: Served, gpu: Gpu, layout: Layout, work: Work) -> Times:
    """Return the times of a batch; with pipeline stages, the batch runs in as many parts."""
    in_copy = max(1, -(-work.batch // layout.data))
    in_stage = max(1, -(-in_copy // layout.pipeline))
    streams = in_stage * layout.pipeline * layout.data
    fresh = work.prompt - work.cached
    ttft = prefill_s(served, gpu, layout, fresh, cached=work.cached)
    shared = max(1, min(in_stage, default_limits(gpu).tokens // fresh))
    of_many = prefill_s(served, gpu, layout, fresh, cached=work.cached, prompts=shared)
    prefill = min(ttft, of_many / shared)
    step = decode_s(
        served, gpu, layout, batch=in_stage, context=work.prompt + max(1, work.answer // 2)
    )
    # Prompts are read between decode steps, several short ones in a pass.
    period = in_stage * prefill + max(1, work.answer - 1) * step
    return Times(
        ttft_s=ttft,
        tpot_s=step,
        throughput_tok_per_s=min(streams, work.batch) * work.answer / period,
    )


def prefill_s(
    served: Served,
    gpu: Gpu,
    layout: Layout,
    prompt: int,
    *,
    cached: int = 0,
    prompts: int = 1,
) -> float:
    """Return the seconds to read one or more prompts and emit their first tokens.

    `prompt` are the tokens to compute; they also attend to `cached` ones before them. Prompts
    longer than a pass are read in chunks, each of which reads the weights.
    """
    model, tokens = served.model, prompt * prompts
    passes = -(-tokens // default_limits(gpu).tokens)
    flop = sum(2.0 * _multiplied(layer) * tokens for layer in model.layers)
    attention = prompts * sum(
        layer.flop_per_pair * (_pairs(layer, prompt + cached) - _pairs(layer, cached))
        for layer in model.layers
    )
    head = 2.0 * model.hidden * model.vocabulary * prompts
    multiply = (
        flop / _matrix_rate(gpu, served.quantization)
        + (attention + head) / _matrix_rate(gpu, "none")
    ) / layout.tensor
    read = passes * _weights_read(served, -(-tokens // passes)) / layout.tensor / _bandwidth(gpu)
    exchange = _exchange_s(model, gpu, layout, tokens)
    return max(multiply, read) + exchange + passes * _overhead_s(model)


def decode_s(served: Served, gpu: Gpu, layout: Layout, *, batch: int, context: int) -> float:
    """Return the seconds of one decode step of `batch` sequences of `context` tokens."""
    model = served.model
    flop = sum(2.0 * _multiplied(layer) for layer in model.layers) * batch
    head = 2.0 * model.hidden * model.vocabulary * batch
    seen = sum(
        layer.decode_flop_per_pair * min(context, layer.window or context) for layer in model.layers
    )
    multiply = (
        flop / _matrix_rate(gpu, served.quantization)
        + (head + seen * batch) / _matrix_rate(gpu, "none")
    ) / layout.tensor
    read = _weights_read(served, batch) / layout.tensor / _bandwidth(gpu)
    cache = batch * kv_bytes_per_sequence(
        model, context, served.kv_cache, tensor_parallel=layout.tensor
    )
    exchange = _exchange_s(model, gpu, layout, batch)
    return max(multiply, read) + cache / _bandwidth(gpu) + exchange + _overhead_s(model)


def _multiplied(layer: Layer) -> float:
    """Return the weights of a layer that one token is multiplied with, an expert's at its cost."""
    experts = layer.expert_parameters * layer.experts_per_token
    return layer.active_parameters - layer.norm_parameters + (EXPERT_WORK - 1) * experts


def _pairs(layer: Layer, tokens: int) -> float:
    """Return the pairs of query and key in a prompt, with the layer's window."""
    if layer.window is None or tokens <= layer.window:
        return tokens * tokens / 2
    return layer.window * tokens - layer.window * layer.window / 2


def _weights_read(served: Served, tokens: int) -> float:
    """Return the bytes of weights that a pass over `tokens` tokens reads.

    Of the experts only those that some token chose; the embedding is a look-up of few rows.
    """
    model = served.model
    total = 2.0 * (model.hidden * model.vocabulary + model.norm_parameters)
    for layer in model.layers:
        size = layer_bytes(layer, served.quantization)
        if layer.experts:
            experts = layer.expert_parameters * layer.experts * BITS[served.quantization] / 8
            chosen = 1 - (1 - layer.experts_per_token / layer.experts) ** tokens
            size -= experts * (1 - chosen)
        total += size
    return total


def _exchange_s(model: Model, gpu: Gpu, layout: Layout, tokens: int) -> float:
    """Return the seconds of two all-reduces of a 16-bit activation in each layer."""
    if layout.tensor == 1:
        return 0.0
    sent = 2 * (layout.tensor - 1) / layout.tensor * tokens * model.hidden * 2
    once = REDUCE_LATENCY_S[gpu.is_nvlink] + sent / (gpu.link_bytes_per_s * LINK_SHARE)
    return 2 * len(model.layers) * once


def _overhead_s(model: Model) -> float:
    """Return the seconds of a pass that depend neither on bytes nor on FLOP."""
    return PASS_OVERHEAD_S + EXPERT_LAYER_S * sum(1 for layer in model.layers if layer.experts)


def _bandwidth(gpu: Gpu) -> float:
    """Return the bytes per second that a GPU really reads."""
    return gpu.bandwidth_bytes_per_s * BANDWIDTH_SHARE


def _matrix_rate(gpu: Gpu, quantization: str) -> float:
    """Return the FLOP per second that a GPU really reaches with weights of a format.

    Formats of 4 bits are expanded and multiplied at 16 bits, and so is FP8 if the GPU lacks it.
    """
    kind = quantization if quantization in ("fp8", "int8") else "16bit"
    rate = gpu.matrix_flop_per_s.get(kind)
    if rate is None:
        kind, rate = "16bit", gpu.matrix_flop_per_s["16bit"]
    assert rate is not None
    is_slower = kind == "16bit" and gpu.generation == "Hopper"
    return rate * (HOPPER_16BIT_SHARE if is_slower else MATRIX_SHARE[kind])
