"""SIGTERM in live streams: each ends properly, each is settled, and the process goes in time."""

from __future__ import annotations

import asyncio
import signal
import time
from random import Random

from tests.chaos.checker import Books
from tests.chaos.client import Call, ask
from tests.chaos.dialects import serves
from tests.chaos.fleet import RATES, ROUTES, TEAMS, Fleet
from tests.chaos.load import LIMIT_S
from tests.chaos.report import Result
from tests.fake_upstream.faults import Kind
from tests.fake_upstream.plans import ALL_STREAMED, LONG, kind_of, shape

EXIT_WITHIN_S = 35.0
LONGEST = 2400  # tokens of 25 ms: a minute, longer than any drain


async def run(result: Result, *, streams: int, drain_s: float) -> None:
    """Open the streams, half of which outlast the drain, and ask the gateway to stop."""
    with Fleet(
        seed=result.seed,
        mix="long",
        replicas=1,
        most_output=LONGEST,
        drain_s=drain_s,
    ) as fleet:
        fleet.start()
        (replica,) = fleet.replicas
        calls: list[Call] = []
        rng = Random(f"{fleet.seed}/drain")
        tasks = [
            asyncio.create_task(_stream(fleet, index, calls, rng.choice(TEAMS)))
            for index in range(1, streams + 1)
        ]
        while sum(call.first_s > 0 and bool(call.body) for call in calls) < streams:  # noqa: ASYNC110 - no event
            await asyncio.sleep(0.02)
        began_s = time.monotonic()
        replica.process.send_signal(signal.SIGTERM)  # type: ignore[union-attr]  # it was started above
        await asyncio.sleep(0.5)
        late = Call(index=10**6, team=TEAMS[0], route="own", is_stream=False)
        await ask(
            late,
            shape(fleet.seed, 10**6).body("own"),
            key=fleet.keys[TEAMS[0]],
            ports=fleet.ports,
            limit_s=3,
        )
        status = await asyncio.to_thread(fleet.stop, replica, within_s=EXIT_WITHIN_S + 25)
        took_s = time.monotonic() - began_s
        await asyncio.gather(*tasks)
        proper = sum(call.ending in ("complete", "error_event") for call in calls)
        codes = sorted({call.code for call in calls if call.ending == "error_event"})
        done = sum(call.ending == "complete" for call in calls)
        result.say(
            "streams, of which whole / ended by an error event",
            f"{streams}, {done} / {proper - done} {codes}",
        )
        result.say("ended properly", f"{proper} of {streams}")
        result.say("exit", f"status {status} after {took_s:.1f} s")
        result.say("a request after SIGTERM got", f"{late.status or late.ending} {late.code}")
        result.demand(
            proper == streams, "drain", f"{streams - proper} streams did not end properly"
        )
        result.demand(
            0 < done < streams,
            "not fired",
            f"{done} whole streams: the drain was not put to the test",
        )
        result.demand(took_s <= EXIT_WITHIN_S, "drain", f"it ended after {took_s:.1f} s")
        result.demand(late.status != 200, "drain", "a request was admitted after SIGTERM")
        attempts, events = fleet.attempts(), fleet.events()
        settled = sum(event["outcome"] != "interrupted" for event in events)
        # A slow stream may have failed over before its first byte: then it has two attempts.
        result.say("settled", f"{settled} of {len(attempts)}")
        result.demand(
            settled == len(attempts),
            "drain",
            f"{settled} of {len(attempts)} settled when the process had ended",
        )
        replica.spawn()
        await replica.ready()
        await fleet.settled(len(attempts), within_s=30)
        events = fleet.events()
        result.say("after the next start", f"{len(events)} events")
        books = Books(
            attempts=attempts,
            events=events,
            calls=calls,
            kills_s=(),
            rates=RATES,
            most_unknown=1.0,
        )
        result.judge(books, LONG)


async def _stream(fleet: Fleet, index: int, calls: list[Call], team: str) -> None:
    kind = kind_of(fleet.seed, index, ALL_STREAMED)
    wanted = shape(fleet.seed, index, most_output=fleet.most_output, stream_share=1.0, kind=kind)
    call = Call(
        index=index,
        team=team,
        route=_route(index, kind),
        kind=kind,
        is_stream=True,
    )
    calls.append(call)
    body, key = wanted.body(call.route), fleet.keys[team]
    await ask(call, body, path=wanted.path, key=key, ports=fleet.ports, limit_s=LIMIT_S + 60)


def _route(index: int, kind: Kind) -> str:
    """Return one of the routes that serve a kind; all of them get requests."""
    routes = [name for name in ROUTES if serves(name, kind)]
    return routes[index % len(routes)]
