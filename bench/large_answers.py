"""The longest pause of the event loop while a large embeddings answer is read, as one piece and in
a thread.

    python -m bench.large_answers [--inputs 2048] [--dimensions 3072]
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import time
from collections.abc import Awaitable, Callable

import msgspec

from bench.stand import machine
from gateway.wire.dialect import written
from gateway.wire.observed import Observed
from gateway.wire.openai.answer.chat import rewrite_chat
from gateway.wire.openai.answer.vectors import without_vectors

SEED = 16
MOST_MS = 100.0


def answer(inputs: int, dimensions: int) -> bytes:
    """An answer of vectors as decimals, as engines write them."""
    rng = random.Random(SEED)
    vector = [rng.uniform(-0.1, 0.1) for _ in range(dimensions)]
    data = [{"object": "embedding", "index": n, "embedding": vector} for n in range(inputs)]
    usage = {"prompt_tokens": inputs, "total_tokens": inputs}
    return msgspec.json.encode(
        {"object": "list", "data": data, "model": "upstream", "usage": usage}
    )


def rewritten(body: bytes) -> bytes:
    """The answer with another model's name and a cost."""
    return written(rewrite_chat(body, Observed(), model="assistant"), lambda _: "0.1")


async def as_one_piece(body: bytes) -> bytes:
    """Rewrite the answer on the event loop."""
    return rewritten(body)


async def in_a_thread(body: bytes) -> bytes:
    """Rewrite the answer as `Exchange` does."""
    short = await asyncio.to_thread(without_vectors, body)
    assert short is not None, "the answer has vectors"
    return await asyncio.to_thread(short.restored, rewritten(short.text))


async def measured(
    read: Callable[[bytes], Awaitable[bytes]], body: bytes
) -> tuple[bytes, float, float]:
    """The rewritten answer, the time it took and the loop's longest pause, both in ms."""
    longest_s = 0.0

    async def watch() -> None:
        nonlocal longest_s
        before_s = time.perf_counter()
        while True:
            await asyncio.sleep(0.001)
            now_s = time.perf_counter()
            longest_s, before_s = max(longest_s, now_s - before_s - 0.001), now_s

    watching = asyncio.create_task(watch())
    await asyncio.sleep(0.01)
    began_s = time.perf_counter()
    result = await read(body)
    took_s = time.perf_counter() - began_s
    await asyncio.sleep(0.01)
    watching.cancel()
    return result, took_s * 1000, longest_s * 1000


def main() -> int:
    """Print a line for each way to read; 1 if the gateway's way pauses the loop for too long."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.large_answers", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--inputs", type=int, default=2048)
    parser.add_argument("--dimensions", type=int, default=3072)
    chosen = parser.parse_args()
    body = answer(chosen.inputs, chosen.dimensions)
    print(f"{machine.describe()}, commit {machine.commit()}\n{len(body) / 2**20:.1f} MiB")
    results, pause_ms = set(), 0.0
    for read in (as_one_piece, in_a_thread):
        result, took_ms, pause_ms = asyncio.run(measured(read, body))
        results.add(result)
        print(f"{read.__name__:14} {took_ms:7.0f} ms, longest pause {pause_ms:7.1f} ms", flush=True)
    assert len(results) == 1, "both give the same answer"
    return 1 if pause_ms > MOST_MS else 0


if __name__ == "__main__":
    sys.exit(main())
