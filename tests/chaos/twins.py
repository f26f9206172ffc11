"""Pairs of requests with one Idempotency-Key, at once, mostly to different processes, while
upstreams fail and processes die by `kill -9`: each key is charged once, and an unserved caller gets
the id of the served request.

A caller that gets an error, or whose connection breaks, asks again with its key until it is served
or the key's request has ended. So every key ends, and its cost is in the books of the upstream and
of finance.
"""

from __future__ import annotations

import asyncio
import copy
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from random import Random
from typing import Any

import psycopg

from tests.chaos.checker import Books, Finding
from tests.chaos.client import Call, Leave, ask
from tests.chaos.dialects import serves
from tests.chaos.fleet import RATES, ROUTES, TEAMS, Fleet
from tests.chaos.load import LIMIT_S, idle, until
from tests.chaos.report import Result
from tests.fake_upstream.plans import ALL_ATTEMPTED, MIX, kind_of, shape

PAIRS_AT_ONCE = 12
SAME_PROCESS_SHARE = 0.3
LEAVE_SHARE = 0.05
TRIES = 4  # after failures that cost nothing; a planned fault is the same with every try
# Of a key whose process died: a neighbour takes its journal over within two seconds.
ENDS_WITHIN_S = 15.0
PLANTED_PAIRS = 40
MOST_UNKNOWN = 0.03  # a kill for every 200 pairs, with two dozen requests in flight
FIRST_PLANTED = 10**6


@dataclass(slots=True, kw_only=True)
class Pair:
    """Two callers with one key.

    `ends` are their endings, `waited_s` is how long a key was reported as in flight.
    """

    index: int
    team: str
    route: str
    is_same_process: bool
    ends: list[str] = field(default_factory=list)
    waited_s: float = 0.0

    @property
    def key(self) -> str:
        """The key of both; events keep it as the callers' own request id."""
        return f"twin-{self.index}"


async def run(result: Result, *, pairs: int, kills: int, replicas: int) -> None:
    """All pairs while processes die, then the books, then pairs whose claims are thrown away."""
    with Fleet(seed=result.seed, mix="faults", replicas=replicas, drain_s=5) as fleet:
        fleet.start()
        result.print_step("the fleet is ready")
        play = Play(fleet)
        async with asyncio.TaskGroup() as group:
            group.create_task(_kill_at_random(play, pairs, kills))
            await play.all(range(1, pairs + 1))
        result.print_step("the callers are done")
        result.demand(await idle(fleet), "hanging", "requests are still in flight")
        attempts = fleet.attempts()
        await fleet.settled(len(attempts))
        ended = await until(lambda: asyncio.to_thread(_is_ended, fleet), within_s=ENDS_WITHIN_S)
        result.demand(ended, "claim", "claims are still running though nothing is in flight")
        _judge(result, fleet, play)
        async with _forgetting(fleet):
            await play.all(range(FIRST_PLANTED, FIRST_PLANTED + PLANTED_PAIRS))
        await idle(fleet)
        await fleet.settled(len(fleet.attempts()))
        twice = charged_twice(fleet.events(), fleet.attempts(), least=FIRST_PLANTED)
        found = {finding.detail.partition(":")[0] for finding in twice}
        words = f"{len(found)} of {PLANTED_PAIRS} keys were found to be charged twice"
        result.say("planted in Postgres: claims that are forgotten", words)
        result.demand(
            bool(found),
            "checker",
            "claims were forgotten, and no key was found to be charged twice",
        )


class Play:
    """The callers."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet
        self.calls: list[Call] = []
        self.pairs: list[Pair] = []

    async def all(self, indices: Sequence[int]) -> None:
        """Every pair, so many at once."""
        todo = iter(indices)

        async def one_after_another() -> None:
            for index in todo:
                await self._pair(index)

        async with asyncio.TaskGroup() as group:
            for _ in range(PAIRS_AT_ONCE):
                group.create_task(one_after_another())

    async def _pair(self, index: int) -> None:
        rng = Random(f"{self.fleet.seed}/{index}/twins")
        kind = kind_of(self.fleet.seed, index, ALL_ATTEMPTED)
        pair = Pair(
            index=index,
            team=rng.choice(TEAMS),
            route=rng.choice([name for name in ROUTES if serves(name, kind)]),
            is_same_process=rng.random() < SAME_PROCESS_SHARE,
        )
        self.pairs.append(pair)
        ports = rng.sample(self.fleet.ports, 2)
        second = ports[0] if pair.is_same_process else ports[1]
        late_s = rng.choice((0.0, 0.0, rng.uniform(0, 0.005), rng.uniform(0, 0.08)))
        leave = None
        if rng.random() < LEAVE_SHARE:
            leave = Leave(after_s=rng.uniform(0, 0.1), reset=rng.random() < 0.5)
        async with asyncio.TaskGroup() as group:
            group.create_task(self._twin(pair, ports[0], 0.0, leave))
            group.create_task(self._twin(pair, second, late_s, None))

    async def _twin(self, pair: Pair, port: int, late_s: float, leave: Leave | None) -> None:
        """Ask until it is served, the key has ended, or it failed without a charge often enough."""
        await asyncio.sleep(late_s)
        kind = kind_of(self.fleet.seed, pair.index, ALL_ATTEMPTED)
        wanted = shape(self.fleet.seed, pair.index, most_output=self.fleet.most_output, kind=kind)
        body = wanted.body(pair.route)
        headers = {"idempotency-key": pair.key, "x-request-id": pair.key}
        began_s, failures, others = (
            time.monotonic(),
            0,
            [one for one in self.fleet.ports if one != port],
        )
        while True:
            call = Call(
                index=pair.index,
                team=pair.team,
                route=pair.route,
                kind=kind,
                is_stream=wanted.is_stream,
            )
            self.calls.append(call)
            await ask(
                call,
                body,
                key=self.fleet.keys[pair.team],
                ports=[port, *others],
                limit_s=LIMIT_S,
                leave=leave,
                path=wanted.path,
                headers=headers,
            )
            call.body.clear()
            failures += call.ending == "error" and call.status != 409
            if call.status == 409 and call.retry_after_s is not None:
                pair.waited_s = max(pair.waited_s, time.monotonic() - began_s)
                if pair.waited_s > ENDS_WITHIN_S:
                    pair.ends.append("never ended")
                    return
                await asyncio.sleep(0.2)
            elif call.ending in ("error", "broken") and call.status != 409 and failures < TRIES:
                leave = None
                await asyncio.sleep(0.05)
            else:
                pair.ends.append("ended before" if call.status == 409 else call.ending)
                return


async def _kill_at_random(play: Play, pairs: int, kills: int) -> None:
    fleet = play.fleet
    rng = Random(f"{fleet.seed}/kills")
    for at in sorted(rng.sample(range(pairs // 20, pairs - pairs // 20), kills)):
        while len(play.pairs) < at:  # noqa: ASYNC110 - the load has no event for its n-th pair
            await asyncio.sleep(0.002)
        await asyncio.sleep(rng.uniform(0, 0.05))
        replica = rng.choice([one for one in fleet.replicas if one.is_alive])
        replica.kill()
        await asyncio.sleep(rng.uniform(0, 0.3))
        replica.spawn()
        await replica.ready()


# ---- the judgement


def charged_twice(
    events: Sequence[dict[str, Any]], attempts: Sequence[dict[str, Any]], *, least: int = 1
) -> list[Finding]:
    """Keys that more than one request was charged for, or for which the upstream made tokens in
    more than one.
    """
    charged: defaultdict[int, set[str]] = defaultdict(set)
    for event in events:
        index = _index_of(event)
        if index >= least and (event["cost_usd"] is None or event["cost_usd"] > 0):
            charged[index].add(str(event["request_id"]))
    made: defaultdict[int, set[str]] = defaultdict(set)
    for attempt in attempts:
        if attempt["index"] >= least and attempt["generated"]:
            made[attempt["index"]].add(attempt["request_id"])
    return [
        Finding("twice", f"key {index}: {len(requests)} requests {what}")
        for what, of_keys in (("were charged", charged), ("had tokens made", made))
        for index, requests in of_keys.items()
        if len(requests) > 1
    ]


def _judge(result: Result, fleet: Fleet, play: Play) -> None:
    attempts, events = fleet.attempts(), fleet.events()
    result.findings += charged_twice(events, attempts)
    charged = {
        _index_of(event) for event in events if event["cost_usd"] is None or event["cost_usd"] > 0
    }
    served = {call.index for call in play.calls if call.ending == "complete"}
    for index in served - charged:
        result.demand(False, "free", f"key {index}: served, and nothing is charged")
    for pair in play.pairs:
        _judge_pair(result, pair, is_charged=pair.index in charged)
    ends = Counter(" + ".join(sorted(pair.ends)) for pair in play.pairs)
    conflicts = Counter(
        "under way" if call.retry_after_s is not None else "ended"
        for call in play.calls
        if call.status == 409
    )
    codes = {call.code for call in play.calls if call.status == 409}
    result.demand(codes <= {"idempotency_conflict"}, "caller", f"409 with codes {codes}")
    result.say(
        "pairs, of which to one process",
        f"{len(play.pairs)}, {sum(p.is_same_process for p in play.pairs)}",
    )
    result.say("keys charged once / never", f"{len(charged)} / {len(play.pairs) - len(charged)}")
    result.say(
        "how the two ended", ", ".join(f"{how} {times}" for how, times in ends.most_common())
    )
    result.say("409", ", ".join(f"{what} {times:,}" for what, times in conflicts.most_common()))
    result.say(
        "longest that a key was said to be under way",
        f"{max(pair.waited_s for pair in play.pairs):.1f} s",
    )
    tries = Counter(call.index for call in play.calls if call.status != 409)
    result.say(
        "keys that were tried again after a failure",
        f"{sum(times > 2 for times in tries.values())}",
    )
    with psycopg.connect(fleet.database_url) as connection:
        rows = connection.execute(
            "SELECT state, count(*) FROM tollgate.idempotency_claims GROUP BY 1"
        ).fetchall()
    claims: dict[str, int] = dict(rows)
    result.say(
        "claims at the end", ", ".join(f"{state} {times}" for state, times in claims.items())
    )
    result.demand(
        claims.get("finished", 0) == len(charged),
        "claim",
        f"{claims}, and {len(charged)} keys are charged",
    )
    result.demand(
        conflicts["under way"] > 0 and conflicts["ended"] > 0,
        "not fired",
        f"409s: {dict(conflicts)}",
    )
    books = Books(
        attempts=attempts,
        events=events,
        calls=play.calls,
        kills_s=fleet.kills_s,
        rates=RATES,
        most_unknown=MOST_UNKNOWN,
    )
    result.judge(books, {fault: weight for fault, weight in MIX.items() if weight >= 16})
    _self_test(result, events, attempts)


def _judge_pair(result: Result, pair: Pair, *, is_charged: bool) -> None:
    where = f"key {pair.index}: {pair.ends}"
    result.demand(len(pair.ends) == 2 and "never ended" not in pair.ends, "caller", where)
    result.demand(pair.ends.count("complete") <= 1, "twice", f"{where}: both were served")
    # A key that ends without a charge is free again, and is not reported as ended.
    if "ended before" in pair.ends:
        result.demand(is_charged, "caller", f"{where}, and nothing was charged")


def _self_test(
    result: Result, events: Sequence[dict[str, Any]], attempts: Sequence[dict[str, Any]]
) -> None:
    """A second charge of a key, and a second series of attempts, are found."""
    victim = next(event for event in events if event["cost_usd"])
    twin = {**copy.copy(victim), "request_id": "another"}
    made = next(attempt for attempt in attempts if attempt["generated"])
    again = {**made, "request_id": "another"}
    missed = [
        name
        for name, found in (
            ("a key charged twice", charged_twice([*events, twin], attempts)),
            ("a key sent twice", charged_twice(events, [*attempts, again])),
        )
        if len(found) <= len(charged_twice(events, attempts))
    ]
    result.say(
        "planted in the twins' input",
        "each found" if not missed else f"NOT FOUND: {', '.join(missed)}",
    )
    result.demand(not missed, "checker", f"planted and not found: {missed}")


def _index_of(event: dict[str, Any]) -> int:
    own = event["client_request_id"] or ""
    return int(own.removeprefix("twin-")) if own.startswith("twin-") else -1


def _is_ended(fleet: Fleet) -> bool:
    with psycopg.connect(fleet.database_url) as connection:
        row = connection.execute(
            "SELECT count(*) FROM tollgate.idempotency_claims WHERE state = 'running'"
        ).fetchone()
    assert row is not None
    return int(row[0]) == 0


@asynccontextmanager
async def _forgetting(fleet: Fleet) -> AsyncIterator[None]:
    """Throw all claims away, again and again."""

    def forget() -> None:
        with psycopg.connect(fleet.database_url, autocommit=True) as connection:
            connection.execute("DELETE FROM tollgate.idempotency_claims")

    async def go_on() -> None:
        while True:
            await asyncio.to_thread(forget)
            await asyncio.sleep(0.01)

    task = asyncio.create_task(go_on())
    try:
        yield
    finally:
        task.cancel()
