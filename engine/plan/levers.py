"""Finds the changes that raise the throughput of a plan most, each with its factor and reason."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from engine.plan.batch_limits import default_limits
from engine.plan.gpus import Gpu
from engine.plan.layout import Fit, Layout, Served, fit
from engine.plan.memory import BITS
from engine.plan.roofline import Work, predict

LEAST_FACTOR = 1.02
CACHED_SHARE = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Lever:
    """One change and the factor by which it multiplies the throughput of the same GPUs."""

    lever: str
    value: str
    factor: float
    reason: str


def largest_batch(served: Served, gpu: Gpu, found: Fit, tokens: int) -> int:
    """Return how many sequences of `tokens` tokens run at once: as many as fit, up to vLLM's
    default of each copy of the model.
    """
    most = default_limits(gpu).sequences * found.layout.data
    return min(found.sequences_of(served, tokens), most)


def levers(served: Served, gpu: Gpu, found: Fit, work: Work) -> list[Lever]:
    """Return the levers that help, the best first; each is applied alone."""
    base = predict(served, gpu, found.layout, work).throughput_tok_per_s
    tried = _tried(served, gpu, found, work)
    helping = [
        Lever(lever=name, value=value, factor=round(rate / base, 2), reason=reason)
        for name, value, rate, reason in tried
        if rate / base >= LEAST_FACTOR
    ]
    return sorted(helping, key=lambda one: -one.factor)


def _tried(
    served: Served, gpu: Gpu, found: Fit, work: Work
) -> Iterator[tuple[str, str, float, str]]:
    """Yield each lever with its value, throughput and reason."""
    most = largest_batch(served, gpu, found, work.prompt + work.answer)
    if most > work.batch:
        rate = predict(served, gpu, found.layout, replace(work, batch=most)).throughput_tok_per_s
        yield (
            "batch",
            str(most),
            rate,
            f"the weights are read once for {most} sequences instead of {work.batch}; each waits"
            " longer for its next token",
        )
    for name in ("fp8", "int8", "awq"):
        if BITS[name] < 0.9 * BITS[served.quantization] and _has_unit(gpu, name):
            changed = replace(served, quantization=name)
            rate = predict(changed, gpu, found.layout, work).throughput_tok_per_s
            yield "quantization", name, rate, _quantization_reason(name, served.quantization)
    if served.kv_cache == "auto":
        changed = replace(served, kv_cache="fp8")
        rate = predict(changed, gpu, found.layout, work).throughput_tok_per_s
        room = fit(changed, gpu, found.layout).max_sequences
        yield (
            "kv-cache",
            "fp8",
            rate,
            f"half the bytes of each sequence are read, and {room} sequences fit instead of"
            f" {found.max_sequences}",
        )
    cached = replace(work, cached=int(work.prompt * CACHED_SHARE))
    rate = predict(served, gpu, found.layout, cached).throughput_tok_per_s
    yield (
        "prefix-caching",
        f"{CACHED_SHARE:.0%} of each prompt",
        rate,
        "a shared start of the prompts is computed once; the factor holds if half of each repeats",
    )
    yield from _copies(served, gpu, found, work)


def _copies(
    served: Served, gpu: Gpu, found: Fit, work: Work
) -> Iterator[tuple[str, str, float, str]]:
    """Yield smaller tensor groups with more copies of the model on the same GPUs."""
    for tensor in (1, 2, 4):
        if tensor >= found.layout.tensor or found.layout.pipeline > 1:
            continue
        layout = Layout(tensor=tensor, data=found.layout.gpus // tensor)
        smaller = fit(served, gpu, layout)
        if smaller.sequences_of(served, work.prompt + work.answer) >= work.batch:
            rate = predict(served, gpu, layout, work).throughput_tok_per_s
            yield (
                "data-parallel",
                str(layout),
                rate,
                "copies of the model exchange nothing; each token takes longer",
            )


def _has_unit(gpu: Gpu, quantization: str) -> bool:
    """Return True if the GPU multiplies the format, or only expands its weights (4 bits)."""
    return quantization == "awq" or gpu.matrix_flop_per_s.get(quantization) is not None


def _quantization_reason(name: str, current: str) -> str:
    """Return why a format helps."""
    if name == "awq":
        return f"{BITS[name]:.1f} bits a weight are read instead of {BITS[current]:.1f}"
    return (
        f"{BITS[name]:.0f} bits a weight are read instead of {BITS[current]:.1f}, and the matrix"
        " unit multiplies them faster"
    )
