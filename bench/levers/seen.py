"""One run of load together with the engine's own counters before and after it."""

from __future__ import annotations

import asyncio
import re
import threading
import urllib.request
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from engine.load.client import LoadClient
from engine.load.loops import closed_loop
from engine.load.measured import LoadRun

SAMPLE = re.compile(r"^vllm:(\w+)(\{[^}]*\})? ([0-9.eE+-]+|[+-]Inf|NaN)$", re.MULTILINE)
POLL_S = 0.1


def metrics_page(url: str) -> str:
    """Return the engine's metrics."""
    with urllib.request.urlopen(f"{url}/metrics", timeout=30) as answer:
        text: str = answer.read().decode()
        return text


def totals(page: str) -> dict[str, float]:
    """Return each metric of vLLM, summed over its labels; buckets are left out."""
    found: dict[str, float] = {}
    for name, _, value in SAMPLE.findall(page):
        if not name.endswith(("_bucket", "_created")):
            found[name] = found.get(name, 0.0) + float(value)
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """A run as the client measured it, and the rise of the engine's counters meanwhile."""

    run: LoadRun
    rise: Mapping[str, float]

    def mean(self, histogram: str) -> float:
        """Return the mean of a histogram's samples of this run; 0 without samples."""
        count = self.rise.get(f"{histogram}_count", 0.0)
        return self.rise.get(f"{histogram}_sum", 0.0) / count if count else 0.0


def watched(url: str, bodies: Iterable[Mapping[str, Any]], *, streams: int) -> Seen:
    """Run bodies in a closed loop and read the engine's counters around it."""
    before = totals(metrics_page(url))
    client = LoadClient(url=url, silence_s=300)

    async def run() -> LoadRun:
        try:
            return await closed_loop(client, bodies, streams=streams)
        finally:
            client.close()

    measured = asyncio.run(run())
    failures = {one.failure for one in measured.requests if one.failure is not None}
    assert not failures, failures
    after = totals(metrics_page(url))
    return Seen(run=measured, rise={name: after[name] - before.get(name, 0.0) for name in after})


@dataclass(slots=True)
class KvUse:
    """The largest share of the KV cache that was in use, and the cache's size."""

    peak: float = 0.0
    tokens: int = 0
    samples: list[float] = field(default_factory=list)

    @property
    def mean(self) -> float:
        """Return the mean of the samples while the engine worked."""
        busy = [one for one in self.samples if one > 0]
        return sum(busy) / len(busy) if busy else 0.0


@contextmanager
def kv_use(url: str) -> Iterator[KvUse]:
    """Sample the use of the KV cache ten times a second during the block."""
    use, over = KvUse(), threading.Event()
    labels = dict(re.findall(r'(\w+)="([^"]*)"', _cache_config(metrics_page(url))))
    use.tokens = int(labels["block_size"]) * int(labels["num_gpu_blocks"])

    def sample() -> None:
        while not over.wait(POLL_S):
            use.samples.append(totals(metrics_page(url))["kv_cache_usage_perc"])
            use.peak = max(use.peak, use.samples[-1])

    thread = threading.Thread(target=sample)
    thread.start()
    try:
        yield use
    finally:
        over.set()
        thread.join()


def _cache_config(page: str) -> str:
    """Return the labels that describe the KV cache."""
    found = re.search(r"^vllm:cache_config_info\{(.*)\}", page, re.MULTILINE)
    assert found is not None
    return found[1]
