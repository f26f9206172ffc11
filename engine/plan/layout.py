"""Chooses how many GPUs hold a model, and how many tokens and sequences then fit."""

from dataclasses import dataclass

from engine.errors import EngineError
from engine.plan.architecture import Model
from engine.plan.gpus import Gpu
from engine.plan.memory import kv_bytes_per_sequence, weight_bytes

MEMORY_UTILISATION = 0.9
"""vLLM's default: the share of the memory for weights, KV cache and activations."""
RUNTIME_BYTES = 1.5 * 2**30
"""For activations and CUDA graphs, taken from that share. An estimate."""
GPUS_PER_NODE = 8
MOST_NODES = 4
KV_BLOCK_TOKENS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """How the model is split: tensor parallel inside a node, pipeline stages and copies of it."""

    tensor: int = 1
    pipeline: int = 1
    data: int = 1

    @property
    def gpus(self) -> int:
        """Return the GPUs of all parts."""
        return self.tensor * self.pipeline * self.data

    def __str__(self) -> str:
        """Return for example `TP8 PP2`."""
        parts = [f"TP{self.tensor}"]
        parts += [f"PP{self.pipeline}"] if self.pipeline > 1 else []
        parts += [f"DP{self.data}"] if self.data > 1 else []
        return " ".join(parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """A model as it is to be served: the choices that change its bytes."""

    model: Model
    quantization: str
    kv_cache: str
    context: int
    """Tokens of one sequence, prompt and answer together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """The memory of one layout on one kind of GPU."""

    layout: Layout
    weight_bytes_per_gpu: float
    kv_bytes_per_gpu: float
    """Left for the KV cache; negative if the weights alone are too large."""
    kv_tokens: int
    """Of all copies of the model."""
    max_sequences: int
    """Of `context` tokens, over all copies."""

    def sequences_of(self, served: Served, tokens: int) -> int:
        """Return how many sequences of `tokens` tokens fit."""
        of_one = _sequence_bytes(served, self.layout, tokens)
        return max(0, int(self.kv_bytes_per_gpu / of_one)) * self.layout.data


def _sequence_bytes(served: Served, layout: Layout, tokens: int) -> float:
    """Return the bytes of one sequence on the fullest GPU, in whole KV blocks."""
    blocks = -(-tokens // KV_BLOCK_TOKENS)
    of_one = kv_bytes_per_sequence(
        served.model,
        blocks * KV_BLOCK_TOKENS,
        served.kv_cache,
        tensor_parallel=layout.tensor,
    )
    layers = len(served.model.layers)
    return of_one * -(-layers // layout.pipeline) / layers


def fit(served: Served, gpu: Gpu, layout: Layout) -> Fit:
    """Return the memory of a layout, whether or not it fits."""
    weights = weight_bytes(served.model, served.quantization)
    of_gpu = weights / (layout.tensor * layout.pipeline)
    left = gpu.memory_bytes * MEMORY_UTILISATION - RUNTIME_BYTES - of_gpu
    of_sequence = _sequence_bytes(served, layout, served.context)
    sequences = max(0, int(left / of_sequence))
    tokens = max(0, int(left * served.context / of_sequence))
    return Fit(
        layout=layout,
        weight_bytes_per_gpu=of_gpu,
        kv_bytes_per_gpu=left,
        kv_tokens=tokens // KV_BLOCK_TOKENS * KV_BLOCK_TOKENS * layout.data,
        max_sequences=sequences * layout.data,
    )


def divides(model: Model, tensor: int) -> bool:
    """Return True if the heads can be split over a tensor group.

    KV heads are split, or repeated if there are fewer of them than GPUs.
    """
    kv = model.kv_heads
    return model.heads % tensor == 0 and (kv % tensor == 0 or tensor % kv == 0)


def chosen_fit(served: Served, gpu: Gpu, gpus: int | None) -> Fit:
    """Return the layout of exactly `gpus` GPUs, or the smallest that fits if it is None.

    Raises: EngineError: the heads do not divide, or it does not fit; the message has the bytes.
    """
    if gpus is None:
        sizes = [1, 2, 4, GPUS_PER_NODE]
        sizes += [GPUS_PER_NODE * nodes for nodes in range(2, MOST_NODES + 1)]
        tried = [fit(served, gpu, one) for size in sizes for one in _layouts(served.model, size)]
        found = next((one for one in tried if one.max_sequences), None)
        if found is None:
            raise EngineError(_too_large(served, gpu, tried[-1]))
        return found
    layouts = _layouts(served.model, gpus)
    if not layouts:
        raise EngineError(
            f"{gpus} GPUs cannot split {served.model.name}: it has {served.model.heads} heads and"
            f" {served.model.kv_heads} KV heads, and up to {GPUS_PER_NODE} GPUs share them evenly."
            f" Choose a number that divides the heads{_copies_hint(served, gpu)}."
        )
    tried = [fit(served, gpu, one) for one in layouts]
    found = next((one for one in tried if one.max_sequences), None)
    if found is None:
        raise EngineError(_too_large(served, gpu, tried[-1]))
    return found


def _layouts(model: Model, gpus: int) -> list[Layout]:
    """Return the layouts of `gpus` GPUs, with the fewest pipeline stages first.

    Up to a node it is one tensor group. Beyond, each node is one, and nodes are copies or stages.
    """
    if gpus <= GPUS_PER_NODE:
        return [Layout(tensor=gpus)] if divides(model, gpus) else []
    tensor = next((size for size in (8, 4, 2, 1) if gpus % size == 0 and divides(model, size)), 1)
    groups = gpus // tensor
    return [
        Layout(tensor=tensor, pipeline=stages, data=groups // stages)
        for stages in range(1, groups + 1)
        if groups % stages == 0 and stages <= len(model.layers)
    ]


def _copies_hint(served: Served, gpu: Gpu) -> str:
    """Return the hint that single GPUs suffice, if the model fits on one."""
    if fit(served, gpu, Layout()).max_sequences:
        return ", or plan --gpus 1 and run copies: it fits on one"
    return ""


def _too_large(served: Served, gpu: Gpu, tried: Fit) -> str:
    """Return the message that names the bytes which do not fit."""
    sequence = _sequence_bytes(served, tried.layout, served.context)
    usable = gpu.memory_bytes * MEMORY_UTILISATION - RUNTIME_BYTES
    return (
        f"{served.model.name} does not fit on {tried.layout.gpus} × {gpu.name} ({tried.layout}):"
        f" weights of {tried.weight_bytes_per_gpu:,.0f} bytes a GPU and a sequence of"
        f" {served.context} tokens of {sequence:,.0f} bytes need more than the {usable:,.0f} bytes"
        f" that are usable of {gpu.memory_bytes:,}. Take more GPUs, fewer bits (--quantization,"
        " --kv-cache fp8) or a shorter --context."
    )
