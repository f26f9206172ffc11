"""Does the gateway grow?

Steady mixed load for a while, memory sampled, and the slope of a straight line through it.

    python -m bench.soak [--minutes 20] [--write]

First as much load as it can serve, so that all its caches reach their largest size. Then about 100
plain requests a second and 20 paced streams, which is far from its limit: growth in this phase is a
leak.
"""

from __future__ import annotations

import argparse
import sys
import time
from statistics import linear_regression

from bench.overhead import finish_load, start_load
from bench.stand import machine
from bench.stand.gateways import Stand, StandError
from bench.stand.page import write_table

SAMPLE_EVERY_S = 5
WARM_UP_S = 30  # of each load
WARM_UP_SHARE = 0.25
MOST_MIB_PER_H = 2.0
NAME = "soak"


def main() -> int:
    """Run it; 1 if memory grows faster than allowed."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.soak", description="Steady load, and what memory does."
    )
    parser.add_argument("--minutes", type=float, default=20)
    parser.add_argument(
        "--write", action="store_true", help="write the figures into docs/lab/bench"
    )
    chosen = parser.parse_args()
    try:
        samples, answered, errors = _run(round(chosen.minutes * 60))
    except StandError as problem:
        print(problem, file=sys.stderr)
        return 3
    warm = [(s, mib) for s, mib in samples if s >= WARM_UP_SHARE * samples[-1][0]]
    slope_mib_per_h = 3600 * linear_regression(*zip(*warm, strict=True)).slope
    table = "\n".join(
        [
            "| figure | wanted | measured |",
            "|---|--:|--:|",
            f"| growth after warm-up | ≤ {MOST_MIB_PER_H:g} MiB/h | {slope_mib_per_h:.1f} MiB/h |",
            f"| memory, first / last / most | | {samples[0][1]:.1f} / {samples[-1][1]:.1f} / "
            f"{max(mib for _, mib in samples):.1f} MiB |",
            f"| requests answered, errors | | {answered:,}, {errors} |",
        ]
    )
    facts = {
        "machine": machine.describe(),
        "commit": machine.commit(),
        "date": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
        "command": "python -m " + " ".join(["bench.soak", *sys.argv[1:]]),
    }
    print("\n".join([table, *(f"{name}: {value}" for name, value in facts.items())]))
    if chosen.write:
        write_table(NAME, table, facts=facts, notes=())
    return 1 if slope_mib_per_h > MOST_MIB_PER_H or errors else 0


def _run(seconds: int) -> tuple[list[tuple[float, float]], int, int]:
    with Stand() as stand:
        gateway = stand.add_gateway("tollgate")
        for upstream in ("plain", "burst-vllm"):
            finish_load(start_load(gateway, upstream, connections=64, seconds=WARM_UP_S))
        loads = [
            start_load(gateway, "plain", connections=10, seconds=seconds, delay_ms=100),
            start_load(gateway, "paced-vllm", connections=20, seconds=seconds),
        ]
        began_s, samples = time.monotonic(), []
        while time.monotonic() - began_s < seconds - 1:
            time.sleep(SAMPLE_EVERY_S)
            samples.append((time.monotonic() - began_s, machine.own_mib(gateway.pids())))
        done = [finish_load(load) for load in loads]
    return samples, sum(d["answered"] for d in done), sum(d["refused"] + d["broken"] for d in done)


if __name__ == "__main__":
    sys.exit(main())
