"""Twelve recorded transcripts of all dialects cut at every byte: by the upstream, which breaks off,
and by the caller, who leaves.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gateway.domain.providers.table import PROVIDERS as TABLE
from tests.chaos import dialects
from tests.chaos.client import Call, Leave, ask
from tests.chaos.fleet import TEAMS, Fleet
from tests.chaos.load import LIMIT_S, idle
from tests.chaos.recorded import CASES, Recorded, read
from tests.chaos.report import Result

PROVIDERS = {name: name for name in ("openai", "vllm", *dialects.PROVIDER_BASES)}
PRICE = (
    "{input_usd_per_mtok: 1, cached_input_usd_per_mtok: 0.1, cache_write_usd_per_mtok: 1, "
    "cache_write_1h_usd_per_mtok: 1, output_usd_per_mtok: 2}"
)
ALL = 10_000


@dataclass(slots=True)
class Cut:
    """One cut of one transcript, and its caller's view."""

    recorded: Recorded
    side: str
    at: int
    call: Call


async def run(result: Result, *, side: str, callers: int, step: int) -> None:
    """Make every cut, then compare each event with the transcript up to its cut."""
    recorded = [read(case) for case in CASES]
    # All of those who leave are drained here, however busy the machine: how many is bounded is
    # another test's.
    with Fleet(
        seed=result.seed, mix="healthy", replicas=1, policy=_policy(recorded), abandoned_answers=ALL
    ) as fleet:
        fleet.start()
        cuts = [
            Cut(
                one,
                where,
                at,
                Call(index=at, team=TEAMS[0], route=_name(one.case, where), is_stream=True),
            )
            for where in ("upstream", "client")
            if side in (where, "both")
            for one in recorded
            for at in range(
                0, (await _answer_length(fleet, one) if where == "client" else one.length) + 1, step
            )
        ]
        await _make(fleet, cuts, callers)
        result.demand(await idle(fleet), "hanging", "requests are still in flight")
        await fleet.settled(len(fleet.attempts()))
        events: dict[str, list[dict[str, Any]]] = {}
        # The last is its caller's view.
        for event in sorted(fleet.events(), key=lambda event: -event["attempt"]):
            events.setdefault(str(event["request_id"]), []).append(event)
        arrived = Counter(attempt["request_id"] for attempt in fleet.attempts())
        written = Counter({request_id: len(rows) for request_id, rows in events.items()})
        result.say(
            "transcripts, bytes", f"{len(recorded)}, {sum(one.length for one in recorded):,}"
        )
        for where in ("upstream", "client"):
            made = [cut for cut in cuts if cut.side == where]
            if made:
                result.say(f"cut by the {where}", f"{len(made):,}")
        lost, doubled = arrived - written, written - arrived
        result.say("tried again before the first byte", f"{arrived.total() - len(arrived):,}")
        result.demand(not lost, "lost", f"{lost.total()} attempts have no event: {list(lost)[:5]}")
        result.demand(
            not doubled, "doubled", f"{doubled.total()} events have no attempt: {list(doubled)[:5]}"
        )
        sources: dict[str, Counter[str]] = {"upstream": Counter(), "client": Counter()}
        for cut in cuts:
            row = next(iter(events.get(cut.call.request_id, [])), None)
            if row is None and cut.call.request_id:
                result.demand(
                    False, "lost", f"{_cut_text(cut)}: no event, {cut.call.status} {cut.call.code}"
                )
            if row is not None:
                sources[cut.side][f"{row['outcome']}/{row['usage_source']}"] += 1
                for problem in _problems(cut, row):
                    result.demand(False, "cut", f"{_cut_text(cut)}: {problem}")
        for where, counted in sources.items():
            if counted:
                result.say(
                    f"booked, cut by the {where}",
                    ", ".join(f"{n} {c:,}" for n, c in counted.most_common()),
                )
        result.say("callers saw", dict(Counter(cut.call.ending for cut in cuts)))
        _self_test(result, cuts, events)


async def _answer_length(fleet: Fleet, recorded: Recorded) -> int:
    """Bytes of the whole answer as a caller gets it: other names stand in it than the
    upstream's.
    """
    call = Call(index=0, team=TEAMS[0], route=_name(recorded.case, "client"), is_stream=True)
    await ask(
        call,
        recorded.body(call.route, 0),
        key=fleet.keys[TEAMS[0]],
        ports=fleet.ports,
        limit_s=LIMIT_S,
        path=recorded.path,
    )
    return len(call.body)


async def _make(fleet: Fleet, cuts: list[Cut], callers: int) -> None:
    todo: Iterator[Cut] = iter(cuts)

    async def caller() -> None:
        for cut in todo:
            leave = (
                Leave(after_bytes=cut.at, reset=cut.at % 2 == 1) if cut.side == "client" else None
            )
            await ask(
                cut.call,
                cut.recorded.body(cut.call.route, cut.at),
                key=fleet.keys[TEAMS[0]],
                ports=fleet.ports,
                limit_s=LIMIT_S,
                leave=leave,
                path=cut.recorded.path,
            )

    async with asyncio.TaskGroup() as group:
        for _ in range(callers):
            group.create_task(caller())


def _problems(cut: Cut, row: dict[str, Any]) -> Iterator[str]:
    """Return the problems of one event."""
    recorded, call = cut.recorded, cut.call
    booked = (row["input_tokens"], row["output_tokens"])
    last = [usage for usage in recorded.usage if usage is not None][-1]
    if cut.side == "upstream":
        whole = recorded.whole_events(cut.at)
        reported = [usage for usage in recorded.usage[:whole] if usage is not None]
        is_done = any(recorded.has_done[:whole])
        is_final = bool(reported) and (not recorded.is_running or whole >= recorded.events_of_usage)
        if not reported and any(recorded.hints[:whole]):
            return
        if call.ending not in (("complete",) if is_done else ("error_event", "error")):
            yield f"its caller saw {call.ending} ({call.status} {call.code})"
        if (row["outcome"] == "ok") != is_done:
            yield f"outcome {row['outcome']}"
    else:
        # From the caller's bytes only relayed usage is certain; the gateway may have seen more.
        reported, is_final = [], row["usage_source"] == "provider"
        if row["outcome"] not in ("ok", "client_gone"):
            yield f"outcome {row['outcome']}"
        if not recorded.is_engine and row["usage_source"] != "provider":
            yield f"{row['usage_source']}: a paid answer goes on and must be read to its end"
    if is_final and (row["usage_source"] != "provider" or booked != last):
        yield f"booked {booked} {row['usage_source']}, the upstream said {last}"
    elif reported and not is_final and (row["usage_source"] != "derived" or booked != reported[-1]):
        yield f"booked {booked} {row['usage_source']}, the last running usage is {reported[-1]}"
    elif not reported and not is_final and row["usage_source"] in ("provider", "none"):
        yield f"booked {booked} as {row['usage_source']} although nothing had been said"
    if (
        cut.side == "upstream"
        and row["usage_source"] == "unknown"
        and any(recorded.has_text[:whole])
    ):
        yield "unknown, although generated text had come and can be counted"
    if row["cost_usd"] is None and row["held_usd"] is None:
        yield "neither cost nor hold"
    if (
        cut.side == "client"
        and recorded.is_running
        and row["usage_source"] == "unknown"
        and cut.at > 0
    ):
        yield "unknown, although its caller had seen an event with usage behind it"


def _self_test(result: Result, cuts: list[Cut], events: dict[str, list[dict[str, Any]]]) -> None:
    """A token more in one event must be a problem."""
    for cut in cuts:
        row = next(iter(events.get(cut.call.request_id, [])), None)
        if row is not None and row["usage_source"] == "provider" and not list(_problems(cut, row)):
            found = list(_problems(cut, {**row, "output_tokens": row["output_tokens"] + 1}))
            result.say("planted: a token too many", "found" if found else "NOT FOUND")
            result.demand(bool(found), "checker", "a token too many was planted and not found")
            return
    result.demand(False, "checker", "there was no event to plant a fault in")


def _name(case: str, side: str) -> str:
    return f"{Path(case).parent}-{Path(case).name}-{side}"


def _cut_text(cut: Cut) -> str:
    return (
        f"{cut.recorded.case} cut by the {cut.side} after {cut.at} of {cut.recorded.length} bytes"
    )


def _policy(recorded: list[Recorded]) -> str:
    deployments, names = "", []
    for one in recorded:
        for side, how in (("upstream", "cut"), ("client", "whole")):
            name = _name(one.case, side)
            names.append(name)
            provider = PROVIDERS.get(one.folder, "openai_compatible")
            base = dialects.PROVIDER_BASES.get(provider, "/v1")
            key = ' api_key: "env:FAKE_KEY",' if TABLE[provider].needs_key else ""
            deployments += (
                f'  - {{name: {name}, model: "golden-{one.case}:{how}", provider: '
                f"{provider},{key} region: unknown,\n"
                f'     base_url: "UPSTREAM{base}", untranslatable: drop, price: {PRICE},\n'
                "     timeouts: {connect_s: 1, first_byte_s: 3, idle_s: 3, total_s: 60}}\n"
            )
    routes = "".join(f"  - {{name: {name}, deployments: [{name}]}}\n" for name in names)
    teams = "".join(
        f"  - {{name: {team}, cost_centre: CC, data_class: internal, routes: "
        f"[{', '.join(names)}]}}\n"
        for team in TEAMS
    )
    return (
        # Some of the recorded answers say in which place they were made.
        "version: 1\nclasses: {internal: {regions: [any]}}\n"
        f"deployments:\n{deployments}routes:\n{routes}teams:\n{teams}"
    )
