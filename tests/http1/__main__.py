"""Feeds the client random answers for a time, and stops at the first broken promise.

    python -m tests.http1 [--seconds 60] [--seed N]
    python -m tests.http1 --seed N --case K        # one case again, with its bytes

A case is drawn from its seed and number alone. Every tenth goes over a socket pair too, on uvloop
and on asyncio in turn.
"""

from __future__ import annotations

import argparse
import asyncio
import secrets
import sys
import time
from collections import Counter
from random import Random

import uvloop

from tests.http1.checks import Tally, check_bytes, check_socket
from tests.http1.mutated_answers import case

SOCKET_EVERY = 10
MOST_SHOWN = 1000  # characters of a case
BATCH = 200  # cases on one event loop


async def batch(seed: int, numbers: range, tally: Tally) -> None:
    """Check these cases. A failure says how to repeat it."""
    for number in numbers:
        rng = Random(f"{seed}/{number}")
        one = case(rng)
        try:
            check_bytes(one, rng, tally)
            if number % SOCKET_EVERY == 0:
                await check_socket(one, rng, tally)
                tally["over a socket"] += 1
        except BaseException:
            print(f"Case {number}, {len(one.raw)} bytes: {str(one)[:MOST_SHOWN]}")
            print(f"Repeat it: --seed {seed} --case {number}", flush=True)
            raise
        tally["cases"] += 1


def main() -> int:
    """Run for a time, then print the counts."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.http1", description="Fuzz our HTTP/1.1 client."
    )
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=secrets.randbelow(10**9))
    parser.add_argument("--case", type=int, help="run this one case")
    chosen = parser.parse_args()
    tally: Tally = Counter()
    if chosen.case is not None:
        asyncio.run(batch(chosen.seed, range(chosen.case, chosen.case + 1), tally))
    end_s = time.monotonic() + (chosen.seconds if chosen.case is None else 0)
    begin = 0
    while time.monotonic() < end_s:
        run = uvloop.run if begin // BATCH % 2 else asyncio.run
        run(batch(chosen.seed, range(begin, begin + BATCH), tally))
        begin += BATCH
    print(f"seed {chosen.seed}: no promise was broken")
    for name, count in sorted(tally.items()):
        print(f"{count:>12,}  {name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
