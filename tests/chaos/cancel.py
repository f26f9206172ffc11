"""Requests that are all abandoned at a random instant: no socket, file, thread or count may stay
behind.
"""

from __future__ import annotations

import asyncio
import os

from tests.chaos.checker import Books
from tests.chaos.fleet import RATES, Fleet, Replica
from tests.chaos.load import Load, idle, until
from tests.chaos.report import Result

KEPT_ALIVE_S = 75.0  # idle connections may stay in the pool, but not longer
SLACK_FILES = 3  # a connection of Postgres more or less, a journal segment
# asyncio's pool makes a thread whenever a task finds none idle, up to this many.
POOLED_THREADS = min(32, (os.cpu_count() or 1) + 4)


async def run(result: Result, *, requests: int, callers: int) -> None:
    """Abandon them, wait for the pool to empty, and compare with the state before."""
    with Fleet(seed=result.seed, mix="healthy", replicas=1, most_output=60) as fleet:
        fleet.start()
        (replica,) = fleet.replicas
        load = Load(fleet=fleet, stream_share=0.7)
        await load.crowd(200, callers)  # so that all that is made once is made
        await _emptied(fleet)
        before = _state(fleet, replica)
        load.leave_share, load.hasty_share, load.leave_within_bytes = 1.0, 1.0, 6000
        await load.crowd(requests, callers)
        result.demand(
            await idle(fleet),
            "leak",
            f"in flight 30 s after the last caller went: {_state(fleet, replica)}",
        )
        at_once = _state(fleet, replica)
        has_emptied = await _emptied(fleet)
        after = _state(fleet, replica)
        for name in before:
            result.say(
                f"{name}: before / at once / after",
                f"{before[name]:.0f} / {at_once[name]:.0f} / {after[name]:.0f}",
            )
        left = sum(call.ending == "left" for call in load.calls[200:])
        result.say("abandoned", f"{left:,} of {requests:,}")
        result.demand(
            left > requests * 0.5,
            "not fired",
            f"only {left} of {requests} callers left before the end",
        )
        result.demand(
            has_emptied, "leak", f"{after['upstream sockets']:.0f} upstream connections stay open"
        )
        result.demand(
            after["in flight"] == 0, "leak", f"{after['in flight']:.0f} requests count as in flight"
        )
        grown = after["files"] - before["files"]
        result.demand(
            grown <= SLACK_FILES, "leak", f"{grown:.0f} file descriptors more than before"
        )
        grown = after["threads"] - before["threads"]
        result.demand(grown <= POOLED_THREADS, "leak", f"{grown:.0f} threads more than before")
        if "tasks" in before:
            grown = after["tasks"] - before["tasks"]
            result.demand(grown <= 2, "leak", f"{grown:.0f} tasks more than before")
        attempts = fleet.attempts()
        await fleet.settled(len(attempts))
        # Left before any usage, as this run intends; their frequency does not matter.
        books = Books(
            attempts=attempts,
            events=fleet.events(),
            calls=load.calls,
            counted=fleet.counted(),
            kills_s=(),
            rates=RATES,
            most_unknown=1.0,
        )
        result.judge(books)
        # A fresh request works: the pool's slots came back.
        load.leave_share = 0.0
        served = [await load.one() for _ in range(20)]
        result.demand(
            all(call.ending == "complete" for call in served),
            "leak",
            "a request afterwards is not served",
        )
        await asyncio.sleep(0)


async def _emptied(fleet: Fleet) -> bool:
    async def is_empty() -> bool:
        return (await asyncio.to_thread(fleet.upstream_stats))["open_sockets"] == 0

    return await until(is_empty, within_s=KEPT_ALIVE_S)


def _state(fleet: Fleet, replica: Replica) -> dict[str, float]:
    """Return the state that could leak. `tasks` only if the gateway reports them."""
    state = {
        "files": float(replica.open_files()),
        "threads": float(replica.threads()),
        "upstream sockets": float(fleet.upstream_stats()["open_sockets"]),
        "in flight": replica.gauge("tollgate_inflight") or 0.0,
        "memory MiB": replica.memory_mib(),
    }
    tasks = replica.gauge("tollgate_tasks")
    return state if tasks is None else {**state, "tasks": tasks}
