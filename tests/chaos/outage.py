"""Postgres is away for minutes while known keys send requests at a steady rate.

No caller may notice, and nothing may be lost.
"""

from __future__ import annotations

import asyncio
import time

from tests.chaos.checker import Books
from tests.chaos.fleet import RATES, Fleet
from tests.chaos.load import Load, idle
from tests.chaos.report import Result

WARM_UP_S = 10.0
WRITTEN_WITHIN_S = 60.0
MOST_LATER_MIB = 4.0


async def run(result: Result, *, away_s: float, per_s: float, most_growth_mib: float) -> None:
    """Warm up, take Postgres away, bring it back, and time the catching up."""
    with Fleet(seed=result.seed, mix="healthy", replicas=1, most_output=12) as fleet:
        fleet.start()
        (replica,) = fleet.replicas
        load = Load(fleet=fleet, stream_share=0.3)
        end_s = time.monotonic() + WARM_UP_S
        await load.stream_of(per_s, lambda: time.monotonic() > end_s)
        await fleet.settled(len(fleet.attempts()))
        before, memory = len(load.calls), [replica.memory_mib()]
        await asyncio.to_thread(fleet.postgres.stop)
        end_s = time.monotonic() + away_s
        watcher = asyncio.create_task(_watch(replica.memory_mib, memory))
        await load.stream_of(per_s, lambda: time.monotonic() > end_s)
        watcher.cancel()
        during = load.calls[before:]
        memory.append(replica.memory_mib())
        waiting = replica.gauge("tollgate_unwritten_events")
        await asyncio.to_thread(fleet.postgres.start)
        attempts = fleet.attempts()
        took_s = await fleet.settled(len(attempts), within_s=WRITTEN_WITHIN_S + 10)
        after = len(load.calls)
        end_s = time.monotonic() + 2
        await load.stream_of(per_s, lambda: time.monotonic() > end_s)
        result.demand(await idle(fleet), "hanging", "requests are still in flight")
        attempts = fleet.attempts()
        await fleet.settled(len(attempts))
        failed = [call for call in load.calls if call.ending != "complete"]
        waits_ms = sorted(1000 * (call.first_s - call.sent_s) for call in during if call.first_s)
        result.say(
            "Postgres away, requests meanwhile", f"{away_s:.0f} s, {len(during):,} at {per_s:.0f}/s"
        )
        result.say("failed", f"{len(failed):,}")
        result.say(
            "first byte meanwhile, p50 / p99",
            f"{_at(waits_ms, 0.5):.1f} / {_at(waits_ms, 0.99):.1f} ms",
        )
        result.say("waiting events at its return", waiting)
        result.say("all written after its return", f"{took_s:.1f} s")
        result.say("served after its return", f"{len(load.calls) - after:,}")
        for call in failed[:3]:
            result.demand(
                False, "failed", f"request {call.index}: {call.ending} {call.status} {call.code}"
            )
        result.demand(
            took_s <= WRITTEN_WITHIN_S, "late", f"all written only {took_s:.0f} s after its return"
        )
        _demand_flat(result, memory, most_growth_mib)
        result.judge(
            Books(
                attempts=attempts,
                events=fleet.events(),
                calls=load.calls,
                kills_s=(),
                rates=RATES,
                counted=fleet.counted(),
            )
        )


def _demand_flat(result: Result, memory: list[float], most_growth_mib: float) -> None:
    """Require that memory grows only until the receipts' cache is full, within bounds, for any
    length of outage.
    """
    shown = [memory[len(memory) * tenth // 10] for tenth in range(10)]
    result.say(
        "memory at each tenth of the outage", " ".join(f"{mib:.0f}" for mib in [*shown, memory[-1]])
    )
    growth, later = max(memory) - memory[0], max(memory) - max(memory[: len(memory) // 2])
    result.demand(
        growth <= most_growth_mib,
        "memory",
        f"it grew by {growth:.0f} MiB, {most_growth_mib:.0f} allowed",
    )
    result.demand(
        later <= MOST_LATER_MIB, "memory", f"it grew by {later:.0f} MiB in the second half"
    )


async def _watch(memory_mib: object, memory: list[float]) -> None:
    assert callable(memory_mib)
    while True:
        memory.append(await asyncio.to_thread(memory_mib))
        await asyncio.sleep(1)


def _at(ordered: list[float], share: float) -> float:
    return ordered[min(int(share * len(ordered)), len(ordered) - 1)] if ordered else 0.0
