"""Six recorded transcripts cut at every byte: by the upstream, which breaks off, and by the caller,
who leaves.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.chaos.client import Call, Leave, ask
from tests.chaos.fleet import TEAMS, Fleet
from tests.chaos.load import LIMIT_S, idle
from tests.chaos.report import Result
from tests.fake_upstream.transcripts import GOLDEN, events_of

CASES = (
    "openai/chat-stream",
    "openai/chat-stream-tools",
    "openai/responses-stream",
    "vllm/chat-stream",
    "deepseek/chat-stream",
    "groq/chat-stream",
)
PROVIDERS = {"openai": "openai", "vllm": "vllm"}
ALL = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """A transcript, with each event's usage: (input, output), None without any."""

    case: str
    path: str
    request: dict[str, Any]
    events: tuple[bytes, ...]
    usage: tuple[tuple[int, int] | None, ...]
    hints: tuple[
        bool, ...
    ]  # usage in a member of one provider's own, which may be read and need not be
    has_done: tuple[bool, ...]
    has_text: tuple[bool, ...]  # something that was generated, which can be counted

    @property
    def length(self) -> int:
        return sum(map(len, self.events))

    @property
    def is_running(self) -> bool:
        """Return True if usage is reported all along, not only at the end."""
        return self.case.startswith("vllm")

    def whole_events(self, first_bytes: int) -> int:
        """How many events are complete within so many bytes."""
        count = 0
        for event in self.events:
            first_bytes -= len(event)
            if first_bytes < 0:
                break
            count += 1
        return count

    def body(self, route: str, cut: int) -> bytes:
        """The caller's request. It says after how many bytes the upstream is to cut."""
        index = {"user": str(cut)} if self.path.endswith("/responses") else {"seed": cut}
        return json.dumps({**self.request, "model": route, **index}).encode()


@dataclass(slots=True)
class Cut:
    """One cut of one transcript, and its caller's view."""

    recorded: Recorded
    side: str
    at: int
    call: Call


def read(case: str) -> Recorded:
    """One recorded case."""
    folder = GOLDEN / case
    operation = json.loads((folder / "case.json").read_text())["operation"]
    events = events_of((folder / "upstream.sse").read_bytes())
    return Recorded(
        case=case,
        path="/v1/responses" if operation == "responses" else "/v1/chat/completions",
        request=json.loads((folder / "request.json").read_text()),
        events=events,
        usage=tuple(map(_usage_of, events)),
        hints=tuple(b'"x_groq":' in event and b'"usage":' in event for event in events),
        has_done=tuple(b"[DONE]" in event or b'"response.completed"' in event for event in events),
        has_text=tuple(map(_has_text, events)),
    )


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
        for event in sorted(
            fleet.events(), key=lambda event: -event["attempt"]
        ):  # the last is its caller's view
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
                result.demand(False, "lost", f"{_cut_text(cut)}: no event")
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
        is_final = bool(reported) and (not recorded.is_running or whole >= len(recorded.events) - 1)
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
        if not recorded.is_running and row["usage_source"] != "provider":
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


def _usage_of(event: bytes) -> tuple[int, int] | None:
    data = event.rpartition(b"data: ")[2].strip()
    if not data.startswith(b"{"):
        return None
    chunk = json.loads(data)
    usage = chunk.get("usage") or (chunk.get("response") or {}).get("usage")
    if not usage:
        return None
    if "prompt_tokens" in usage:
        return usage["prompt_tokens"], usage["completion_tokens"]
    return usage["input_tokens"], usage["output_tokens"]


def _has_text(event: bytes) -> bool:
    data = event.rpartition(b"data: ")[2].strip()
    if not data.startswith(b"{"):
        return False
    chunk = json.loads(data)
    deltas = [choice.get("delta") or {} for choice in chunk.get("choices") or ()]
    written = (
        delta.get(name)
        for delta in deltas
        for name in ("content", "reasoning", "reasoning_content")
    )
    return any(written) or (
        str(chunk.get("type")).endswith("_text.delta") and bool(chunk.get("delta"))
    )


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
            provider = PROVIDERS.get(one.case.partition("/")[0], "openai_compatible")
            key = ' api_key: "env:FAKE_KEY",' if provider == "openai" else ""
            deployments += (
                f'  - {{name: {name}, model: "golden-{one.case}:{how}", provider: '
                f"{provider},{key} region: here,\n"
                f'     base_url: "UPSTREAM/v1", price: {{input_usd_per_mtok: 1, '
                "cached_input_usd_per_mtok: 0.1, "
                f"output_usd_per_mtok: 2}}, timeouts: {{connect_s: 1, first_byte_s: 3, idle_s: "
                f"3, total_s: 60}}}}\n"
            )
    routes = "".join(f"  - {{name: {name}, deployments: [{name}]}}\n" for name in names)
    teams = "".join(
        f"  - {{name: {team}, cost_centre: CC, data_class: internal, routes: "
        f"[{', '.join(names)}]}}\n"
        for team in TEAMS
    )
    return (
        "version: 1\nregions: {home: [here]}\nclasses: {internal: {regions: [home]}}\n"
        f"deployments:\n{deployments}routes:\n{routes}teams:\n{teams}"
    )
