"""vLLM's default batch limits by GPU, as `vllm serve` of the pinned version sets them.

The tests compare each figure with `EngineArgs.get_batch_defaults` of the installed vLLM.
"""

from dataclasses import dataclass

from engine.plan.gpus import Gpu

GIB = 2**30


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchLimits:
    """What one pass of one engine takes at most; further sequences wait."""

    sequences: int
    """`--max-num-seqs`."""
    tokens: int
    """`--max-num-batched-tokens`."""


def default_limits(gpu: Gpu) -> BatchLimits:
    """Return the limits that vLLM 0.32 takes on a GPU without the two flags."""
    if gpu.memory_bytes >= 160 * GIB:
        return BatchLimits(sequences=1024, tokens=16384)
    # vLLM keeps the A100 small: more tokens a pass lowered its throughput (vLLM #17885).
    if gpu.memory_bytes >= 70 * GIB and "A100" not in gpu.name:
        return BatchLimits(sequences=1024, tokens=8192)
    return BatchLimits(sequences=256, tokens=2048)
