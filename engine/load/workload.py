"""Draws the requests of a workload from a seed: lengths, shared prefixes and arrival times."""

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from engine.plan.demand import Demand

WorkloadKind = Literal["chat", "shared-prefix", "mixed", "ledger"]
WORKLOADS: tuple[WorkloadKind, ...] = ("chat", "shared-prefix", "mixed", "ledger")
SHARED_SHARE = 0.9
"""The part of each prompt that the workload `shared-prefix` shares among all its requests."""
MIXED_FACTOR = 4.0
"""The workload `mixed` draws lengths from 1/4 to 4 times the given ones, even on a log scale."""
P95_NORMAL = 1.6448536269514722
"""The 95 % quantile of the standard normal distribution."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadRequest:
    """The lengths of one request, in tokens; the answer is exactly as long as stated."""

    number: int
    prompt_tokens: int
    """All tokens of the prompt, those of the chat template included."""
    shared_tokens: int
    """The first part of the prompt, the same in all requests that share one."""
    answer_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """The distribution of the requests' lengths. The same seed draws the same lengths."""

    kind: WorkloadKind = "chat"
    prompt_tokens: int
    answer_tokens: int
    seed: int = 0
    demand: Demand | None = None
    """The lengths of the ledger's traffic, for the workload `ledger`."""

    def requests(self) -> Iterator[LoadRequest]:
        """Yield requests without end."""
        rng = random.Random(f"lengths {self.seed}")  # noqa: S311 - lengths, not secrets
        number = 0
        while True:
            prompt, answer, shared = self._lengths(rng)
            yield LoadRequest(
                number=number, prompt_tokens=prompt, shared_tokens=shared, answer_tokens=answer
            )
            number += 1

    def _lengths(self, rng: random.Random) -> tuple[int, int, int]:
        """Return the tokens of a prompt, of its answer and of the shared part."""
        prompt, answer = self.prompt_tokens, self.answer_tokens
        if self.kind == "mixed":
            return _spread(rng, prompt), _spread(rng, answer), 0
        if self.kind == "shared-prefix":
            return prompt, answer, int(prompt * SHARED_SHARE)
        if self.kind == "ledger":
            assert self.demand is not None
            known = self.demand
            shared = int(known.cached_share * known.prompt_p50)
            prompt = max(_log_normal(rng, known.prompt_p50, known.prompt_p95), shared + 1)
            return prompt, _log_normal(rng, known.answer_p50, known.answer_p95), shared
        return prompt, answer, 0


def _spread(rng: random.Random, middle: int) -> int:
    """Return a length around its median, even on a log scale."""
    return max(1, round(middle * math.exp(math.log(MIXED_FACTOR) * rng.uniform(-1, 1))))


def _log_normal(rng: random.Random, p50: int, p95: int) -> int:
    """Return a length of the log-normal distribution with these quantiles, at most twice the
    p95: a server's context bounds real lengths, too.
    """
    sigma = math.log(max(p95, p50) / p50) / P95_NORMAL
    return max(1, min(round(rng.lognormvariate(math.log(p50), sigma)), 2 * p95))


def arrival_times(rate_per_s: float, seed: int) -> Iterator[float]:
    """Yield the moments of a Poisson process without end, in seconds from its begin."""
    rng = random.Random(f"arrivals {seed}")  # noqa: S311 - arrivals, not secrets
    moment_s = 0.0
    while True:
        moment_s += rng.expovariate(rate_per_s)
        yield moment_s
