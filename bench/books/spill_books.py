"""Compares the callers' view in `bench.spill` with the gateway's ledger, the API's book and the
engine's count.

Pure: it returns a phase's figures and its problems.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import nan
from typing import Any

from bench.world.routing_world import percentile

ENGINE, API = "own", "api"
BOUNDED, UNBOUNDED = "bounded", "unbounded"
SPILL = "spill"


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One caller's view.

    `ttft_s` is the time to the first content, None without any; a success has no `problem`.
    """

    request_id: str = ""
    deployment: str = ""
    degraded: str | None = None
    ttft_s: float | None = None
    problem: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """One closed loop of callers on one route, with the other parties' records of it.

    `engine_finished` is the engine's own count of requests; shares are of all cores, while callers
    began requests.
    """

    name: str
    route: str
    clients: int
    calls: Sequence[Call]
    engine_finished: int
    engine_cpu_share: float
    strangers_cpu_share: float

    def ttft_s(self, share: float) -> float:
        """Return a quantile of the callers' wait for their first token; NaN if none got one."""
        waited_s = [call.ttft_s for call in self.calls if call.ttft_s is not None]
        return percentile(waited_s, share) if waited_s else nan

    @property
    def errors(self) -> int:
        """Return the number of calls without a complete answer."""
        return sum(bool(call.problem) for call in self.calls)

    @property
    def spilled(self) -> int:
        """Return the number of calls whose answers report a spill."""
        return sum(call.degraded == SPILL for call in self.calls)


def wrongs(
    phase: Phase, *, events: Sequence[Mapping[str, Any]], entries: Sequence[Mapping[str, Any]]
) -> list[str]:
    """Return the disagreements between a phase's books. `events` and `entries` are those of the
    whole run.
    """
    ids = {call.request_id for call in phase.calls}
    booked = [event for event in events if str(event["request_id"]) in ids]
    served = [entry for entry in entries if entry["request_id"] in ids]
    return [f"{phase.name}: {wrong}" for wrong in _wrongs(phase, booked, served)]


def _wrongs(
    phase: Phase, booked: Sequence[Mapping[str, Any]], served: Sequence[Mapping[str, Any]]
) -> Iterator[str]:
    for problem, count in Counter(call.problem for call in phase.calls if call.problem).items():
        yield f"{count} × {problem}"
    at_engine = sum(event["deployment"] == ENGINE for event in booked)
    if at_engine != phase.engine_finished:
        yield (
            f"the engine counted {phase.engine_finished} requests, the ledger has "
            f"{at_engine} events of it"
        )
    made = sorted((entry["request_id"], entry["generated"]) for entry in served)
    metered = sorted(
        (str(event["request_id"]), event["output_tokens"])
        for event in booked
        if event["deployment"] == API
    )
    if made != metered:
        yield (
            f"the API served {len(made)} requests, the ledger has {len(metered)} events of "
            "it, or other tokens"
        )
    shown = Counter(
        (call.request_id, call.deployment, call.degraded)
        for call in phase.calls
        if not call.problem
    )
    kept = Counter(
        (str(event["request_id"]), event["deployment"], event["degraded"])
        for event in booked
        if event["outcome"] == "ok"
    )
    if shown != kept:
        yield (
            f"{(shown - kept).total()} callers were told of a place or a spill that the "
            "ledger does not have"
        )
    if phase.route == UNBOUNDED and any(call.degraded is not None for call in phase.calls):
        yield "without a bound there is nothing to spill for"


def misses(room: Phase, phases: Sequence[Phase], *, bound_s: float) -> list[str]:
    """Return the expected results that the run did not show."""
    found = []
    if not room.ttft_s(0.95) <= bound_s / 2:
        found.append(
            f"with room the engine's p95 is {room.ttft_s(0.95):.2f} s: the bound is too tight "
            "for this machine"
        )
    for phase in phases:
        p95_s = phase.ttft_s(0.95)
        if phase.route == BOUNDED and not p95_s <= bound_s:
            found.append(f"{phase.name}: p95 {p95_s:.2f} s is over the bound of {bound_s:g} s")
        if phase.route == UNBOUNDED and not p95_s > bound_s:
            found.append(
                f"{phase.name}: p95 {p95_s:.2f} s keeps the bound of {bound_s:g} s: the engine "
                "had room"
            )
        if phase.route == BOUNDED and not 0 < phase.spilled < len(phase.calls):
            found.append(
                f"{phase.name}: {phase.spilled} of {len(phase.calls)} spilled: neither all nor "
                "none should"
            )
    return found


def table(phases: Sequence[Phase]) -> list[str]:
    """Return one row for each phase."""
    head = (
        "| phase | callers | requests | TTFT p50 s | TTFT p95 s | spilled | errors | at the "
        "engine, its count | at the API, its book | engine's CPU | others' CPU |"
    )
    return [head, "|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|", *map(_row, phases)]


def _row(phase: Phase) -> str:
    count = len(phase.calls)
    at_api = sum(call.deployment == API for call in phase.calls)
    return (
        f"| {phase.name} | {phase.clients} | {count:,} | {phase.ttft_s(0.5):.2f} | "
        f"{phase.ttft_s(0.95):.2f} | {phase.spilled / max(count, 1):.0%} | {phase.errors} | "
        f"{phase.engine_finished:,} | {at_api:,} | {phase.engine_cpu_share:.0%} | "
        f"{phase.strangers_cpu_share:.0%} |"
    )
