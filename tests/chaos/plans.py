"""What each request asks for and what each upstream attempt meets, drawn from the run's seed.

Pure: the upstream draws an attempt's plan anew from (seed, index, model), so that one seed is one run. A request's
index travels in its `seed` member, which is OpenAI's own and passes every gateway untouched.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import StrEnum
from random import Random
from typing import Any


class Fault(StrEnum):
    """What an attempt meets. All but the healthy ones count as fired once the upstream has begun them."""

    NONE = "none"
    SPLIT = "split"  # events arrive in pieces of a few bytes
    SLOW = "slow"  # 25 ms between tokens
    BUSY = "429"
    BROKEN = "500"
    OVERLOADED = "503"
    ERROR_WITH_USAGE = "500 with usage"  # it generated, charges, and fails all the same
    HANG = "hang before headers"
    CUT = "cut at a byte"
    RESET = "reset at a byte"
    STALL = "stall at a byte"
    NO_USAGE = "no usage"
    IN_BAND = "in-band error"
    WILD = "implausible usage"
    STALE = "idle connection closed"  # without saying so in a header


HEALTHY = {Fault.NONE: 1}
# Weights. Those that make usage unknowable are rare, as the figure to reach is under 0.5 % of all attempts.
MIX = {
    Fault.NONE: 1368, Fault.SPLIT: 120, Fault.SLOW: 40, Fault.BUSY: 80, Fault.BROKEN: 80, Fault.OVERLOADED: 60,
    Fault.ERROR_WITH_USAGE: 20, Fault.HANG: 1, Fault.CUT: 70, Fault.RESET: 40, Fault.STALL: 16, Fault.NO_USAGE: 40,
    Fault.IN_BAND: 40, Fault.WILD: 20, Fault.STALE: 3,
}  # fmt: skip
# A plain answer says usage once or never: these leave nothing that anybody could know.
HIDES_USAGE_IF_PLAIN = frozenset({Fault.CUT, Fault.RESET, Fault.STALL, Fault.NO_USAGE, Fault.IN_BAND})
RARELY = 0.02
LONG = {Fault.SLOW: 1}
MIXES = {"healthy": HEALTHY, "faults": MIX, "long": LONG}

DIALECTS = ("vllm", "paid")


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """What a request asks for: the same at every deployment that tries it."""

    index: int
    input_tokens: int
    cached_tokens: int
    output_tokens: int
    reasoning_tokens: int
    is_stream: bool
    wants_usage: bool

    def body(self, route: str, *, max_tokens: int | None = None) -> bytes:
        """The caller's request. Padded, since no tokenizer makes more tokens than bytes."""
        members: dict[str, Any] = {
            "model": route, "seed": self.index, "max_tokens": max_tokens or self.output_tokens + self.index % 3,
            "messages": [{"role": "user", "content": "word " * (self.input_tokens // 4 + 1)}],
        }  # fmt: skip
        if self.is_stream:
            members["stream"] = True
            if self.wants_usage:
                members["stream_options"] = {"include_usage": True}
        return json.dumps(members, separators=(",", ":")).encode()


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How one attempt goes. `at` is the share of the body that is written before the fault."""

    fault: Fault
    at: float
    ttft_s: float
    gap_s: float


def shape(seed: int, index: int, *, most_output: int = 40, stream_share: float = 0.7) -> Shape:
    """Draw what request number `index` asks for."""
    rng = Random(f"{seed}/{index}/shape")
    input_tokens, output_tokens = rng.randint(20, 400), rng.randint(1, most_output)
    return Shape(
        index=index,
        input_tokens=input_tokens,
        cached_tokens=rng.randint(0, input_tokens) if rng.random() < 0.5 else 0,
        output_tokens=output_tokens,
        reasoning_tokens=rng.randint(0, output_tokens) if rng.random() < 0.3 else 0,
        is_stream=rng.random() < stream_share,
        wants_usage=rng.random() < 0.5,
    )


def plan(seed: int, index: int, model: str, mix: dict[Fault, int], *, is_stream: bool) -> Plan:
    """Draw what this model's attempt at request `index` meets. `is_stream` is the caller's wish, not the gateway's."""
    rng = Random(f"{seed}/{index}/{model}/plan")
    (fault,) = rng.choices(list(mix), list(mix.values()))
    if fault in HIDES_USAGE_IF_PLAIN and not is_stream and rng.random() > RARELY:
        fault = Fault.NONE
    # Most breaks come when some of the answer has: the scenario `cuts` has them at every byte.
    at = rng.uniform(0, 0.35) if rng.random() < RARELY else rng.uniform(0.35, 1)
    gap_s = 0.025 if fault is Fault.SLOW else rng.choice((0.0, 0.001, 0.003))
    return Plan(fault=fault, at=at, ttft_s=rng.uniform(0, 0.03), gap_s=gap_s)
