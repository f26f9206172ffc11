"""Callers: their requests from the seed, as fast as a given concurrency allows or at a given
rate.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from random import Random

from tests.chaos.client import Call, Leave, ask
from tests.chaos.dialects import serves
from tests.chaos.fleet import ROUTES, TEAMS, Fleet
from tests.fake_upstream.faults import Kind
from tests.fake_upstream.plans import ALL_KINDS, kind_of, shape

LIMIT_S = 30.0  # of one request; the longest way through two failing deployments takes about six


@dataclass(slots=True, kw_only=True)
class Load:
    """Requests of one run.

    `leave_share` of the callers leave within the time or the bytes; `calls` are all records.
    """

    fleet: Fleet
    leave_share: float = 0.0
    stream_share: float = 0.7
    kinds: Mapping[Kind, int] = field(default_factory=lambda: ALL_KINDS)
    routes: tuple[str, ...] = tuple(ROUTES)
    leave_within_s: float = 0.12
    hasty_share: float = 0.05  # of those who go after a time: before anything can have come
    leave_within_bytes: int = 3000
    calls: list[Call] = field(default_factory=list)
    _next: int = 0

    async def one(self, *, team: str | None = None, port: int | None = None) -> Call:
        """Make the next request and see it to its end: of a team and to a process, or of any to
        any.
        """
        index, self._next = self._next + 1, self._next + 1
        fleet = self.fleet
        rng = Random(f"{fleet.seed}/{index}/caller")
        kind = kind_of(fleet.seed, index, self.kinds)
        wanted = shape(
            fleet.seed,
            index,
            most_output=fleet.most_output,
            stream_share=self.stream_share,
            kind=kind,
        )
        drawn = rng.choice(TEAMS)
        route = rng.choice([name for name in self.routes if serves(name, kind)])
        call = Call(
            index=index, team=team or drawn, route=route, kind=kind, is_stream=wanted.is_stream
        )
        self.calls.append(call)
        leave = None
        if rng.random() < self.leave_share:
            leave = self._leave(rng)
        ports = list(fleet.ports) if port is None else [port]
        rng.shuffle(ports)
        body, key = wanted.body(call.route), fleet.keys[call.team]
        await ask(call, body, path=wanted.path, key=key, ports=ports, limit_s=LIMIT_S, leave=leave)
        call.body.clear()
        return call

    def _leave(self, rng: Random) -> Leave:
        """Half of them go after a time, half once they have some bytes."""
        reset = rng.random() < 0.5
        if rng.random() < 0.5:
            first_s = 0.0 if rng.random() < self.hasty_share else 0.5 * self.leave_within_s
            return Leave(after_s=rng.uniform(first_s, self.leave_within_s), reset=reset)
        return Leave(after_bytes=rng.randint(0, self.leave_within_bytes), reset=reset)

    async def crowd(self, requests: int, callers: int) -> None:
        """So many requests, by so many callers one after another."""
        todo = iter(range(requests))

        async def caller() -> None:
            for _ in todo:
                await self.one()

        async with asyncio.TaskGroup() as group:
            for _ in range(callers):
                group.create_task(caller())

    async def stream_of(self, per_s: float, is_over: Callable[[], bool]) -> None:
        """Requests at a rate, whether earlier ones are answered or not, until it is over; then wait
        for the last.
        """
        loop = asyncio.get_running_loop()
        due_s = loop.time()
        async with asyncio.TaskGroup() as group:
            while not is_over():
                group.create_task(self.one())
                due_s += 1 / per_s
                await asyncio.sleep(max(0.0, due_s - loop.time()))


async def idle(fleet: Fleet, *, within_s: float = 30.0) -> bool:
    """Wait until no request is in flight anywhere; return False if some stay."""
    return await until(lambda: asyncio.to_thread(_is_idle, fleet), within_s=within_s)


async def until(holds: Callable[[], Awaitable[bool]], *, within_s: float) -> bool:
    """Wait for a condition; return False if it does not hold in time."""
    deadline_s = asyncio.get_running_loop().time() + within_s
    while not await holds():
        if asyncio.get_running_loop().time() > deadline_s:
            return False
        await asyncio.sleep(0.1)
    return True


def _is_idle(fleet: Fleet) -> bool:
    at_work = sum(
        replica.gauge("tollgate_inflight") or 0 for replica in fleet.replicas if replica.is_alive
    )
    return fleet.upstream_stats()["busy"] == 0 and at_work == 0
