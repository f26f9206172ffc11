"""Requests over the fault mix while random replicas die by `kill -9` at random instants."""

from __future__ import annotations

import asyncio
from random import Random

from tests.chaos.checker import Books
from tests.chaos.fleet import RATES, Fleet
from tests.chaos.load import Load, idle
from tests.chaos.report import Result
from tests.fake_upstream.plans import MIX


async def run(
    result: Result, *, requests: int, kills: int, replicas: int, callers: int, most_unknown: float
) -> None:
    """Kill while callers ask, bring the killed back, then compare all books."""
    with Fleet(seed=result.seed, mix="faults", replicas=replicas, drain_s=5) as fleet:
        fleet.start()
        result.print_step("the fleet is ready")
        load = Load(fleet=fleet, leave_share=0.06)
        async with asyncio.TaskGroup() as group:
            group.create_task(_kill_at_random(fleet, load, requests, kills))
            await load.crowd(requests, callers)
            result.print_step("the callers are done")
        result.demand(
            await idle(fleet),
            "hanging",
            "requests are still in flight 30 s after the last caller went",
        )
        attempts = fleet.attempts()
        took_s = await fleet.settled(len(attempts))
        result.say("replicas, callers at once", f"{replicas}, {callers}")
        result.say("all written after", f"{took_s:.1f} s")
        books = Books(
            attempts=attempts,
            events=fleet.events(),
            calls=load.calls,
            counted=fleet.counted(),
            kills_s=fleet.kills_s,
            rates=RATES,
            most_unknown=most_unknown,
        )
        result.judge(books, MIX)
        result.demand(
            len(fleet.kills_s) == kills, "not fired", f"{len(fleet.kills_s)} of {kills} kills"
        )


async def _kill_at_random(fleet: Fleet, load: Load, requests: int, kills: int) -> None:
    """Kill when a drawn number of requests has been made: so the kills spread over the run however
    fast it is.
    """
    rng = Random(f"{fleet.seed}/kills")
    for at in sorted(rng.sample(range(requests // 20, requests - requests // 20), kills)):
        while len(load.calls) < at:  # noqa: ASYNC110 - the load has no event for its n-th request
            await asyncio.sleep(0.002)
        await asyncio.sleep(rng.uniform(0, 0.05))
        replica = rng.choice([one for one in fleet.replicas if one.is_alive])
        replica.kill()
        await asyncio.sleep(rng.uniform(0, 0.3))
        replica.spawn()
        await replica.ready()
