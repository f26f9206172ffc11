"""An upstream that fails on purpose and keeps its own ledger of its generated tokens.

Run as a process: `python -m tests.chaos.upstream --seed 1 --mix faults --ledger FILE`; it prints
its address. It shares nothing with the gateway except HTTP. Each attempt is a line when it arrives
and a line when it has ended; lines are appended at once and synced in groups before an answer
begins. A `paid` model continues generating when the other side leaves, and charges for it; a `vllm`
model stops.

Models: `vllm-…` reports running usage on every event if requested (`continuous_usage_stats`),
`paid-…` only at the end; `golden-…` plays a recorded transcript and cuts it after as many bytes as
the request's `seed`.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import socket
import struct
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import uvloop

from tests.chaos.answers import Wording
from tests.chaos.plans import MAXIMUM, MIXES, PATHS, Fault, Kind, Plan, Shape, plan, shape

GOLDEN = Path(__file__).parents[1] / "golden"
PATIENCE_S = 90.0  # of a hanging answer; every gateway's deadline is shorter
POLL_S = 0.02
STATUS = {Fault.BUSY: 429, Fault.BROKEN: 500, Fault.OVERLOADED: 503, Fault.ERROR_WITH_USAGE: 500}


@dataclass(slots=True, kw_only=True)
class Entry:
    """One attempt as it really went.

    `output` grows while it runs; `usage_s` is when usage first left.
    """

    number: int
    request_id: str
    index: int
    model: str
    fault: str
    is_stream: bool
    arrived_s: float
    ended_s: float = 0.0
    prompts: int = 1
    input: int = 0
    cached: int = 0
    output: int = 0
    reasoning: int = 0
    usage_s: float = 0.0
    is_usage_final: bool = False
    wrote_bytes: int = 0
    ending: str = "open"  # complete, fault, other_left


class Ledger:
    """Appends lines, and syncs them in groups off the loop."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self._waiting: list[asyncio.Future[None]] = []
        self._is_syncing = False

    def note(self, entry: Entry) -> None:
        """Append the attempt as it stands now."""
        members = {name: getattr(entry, name) for name in Entry.__slots__}
        os.write(self._file, json.dumps(members).encode() + b"\n")

    async def sync(self) -> None:
        """Return once everything noted so far is on the disk."""
        loop = asyncio.get_running_loop()
        mine = loop.create_future()
        self._waiting.append(mine)
        if not self._is_syncing:
            self._is_syncing = True
            try:
                while self._waiting:
                    group, self._waiting = self._waiting, []
                    await loop.run_in_executor(None, os.fdatasync, self._file)
                    for one in group:
                        if not one.done():
                            one.set_result(None)
            finally:
                self._is_syncing = False
        await mine


@dataclass(slots=True)
class Upstream:
    """The server. `busy` counts attempts in progress, `open_sockets` connections."""

    seed: int
    mix: dict[Fault, int]
    ledger: Ledger
    most_output: int
    busy: int = 0
    open_sockets: int = 0
    arrived: int = 0
    transcripts: dict[str, tuple[bytes, ...]] = field(default_factory=dict)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection."""
        self.open_sockets += 1
        try:
            while await self._one(reader, writer):
                pass
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            self.open_sockets -= 1
            writer.close()

    async def _one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Serve one request; return False if the connection is over."""
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        method, path, _ = head.split(" ", 2)
        headers = dict(
            line.lower().split(": ", 1) for line in head.split("\r\n")[1:] if ": " in line
        )
        body = await reader.readexactly(int(headers.get("content-length", "0")))
        if method == "GET":
            stats = {
                "busy": self.busy,
                "open_sockets": self.open_sockets - 1,
                "arrived": self.arrived,
            }
            writer.write(_whole(200, json.dumps(stats).encode()))
            return True
        asked = json.loads(body)
        self.busy += 1
        self.arrived += 1
        try:
            return await self._attempt(path, asked, headers.get("x-request-id", ""), reader, writer)
        finally:
            self.busy -= 1

    async def _attempt(
        self,
        path: str,
        asked: dict[str, Any],
        request_id: str,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> bool:
        # An index stands in `user`; requests of the scenario `cuts` have it in `seed`, if their
        # endpoint knows that.
        model, index = str(asked["model"]), int(asked.get("user") or asked.get("seed") or 0)
        wanted = shape(self.seed, index, most_output=self.most_output, kind=_kind(path, asked))
        drawn = plan(self.seed, index, model, self.mix, is_stream=wanted.is_stream)
        entry = Entry(
            number=self.arrived,
            request_id=request_id,
            index=index,
            model=model,
            fault=drawn.fault.value,
            is_stream=bool(asked.get("stream")),
            arrived_s=time.time(),
            prompts=wanted.prompts,
            input=wanted.input_tokens,
            cached=wanted.cached_tokens,
        )
        line = _Line(reader, writer)
        if model.startswith("golden-"):
            return await self._golden(model, asked, entry, line)
        self.ledger.note(entry)
        await self.ledger.sync()
        exchange = _Exchange(asked, drawn, wanted, entry, line)
        try:
            return await exchange.run()
        finally:
            entry.ended_s = time.time()
            if entry.ending == "other_left" and model.startswith("paid"):
                exchange.generate_rest()  # the caller left; it is charged all the same
            self.ledger.note(entry)

    async def _golden(self, model: str, asked: dict[str, Any], entry: Entry, line: _Line) -> bool:
        """Play a transcript event by event.

        `golden-CASE:cut` cuts it after `seed` bytes, `:whole` does not.
        """
        case, _, how = model.removeprefix("golden-").partition(":")
        # `/v1/responses` has no `seed`; its index stands in `user`.
        entry.index = int(asked.get("seed") or asked.get("user") or 0)
        left = entry.index if how == "cut" else 10**9
        entry.fault = Fault.CUT if how == "cut" else Fault.NONE
        self.ledger.note(entry)
        try:
            await line.write(STREAM_HEAD)
            for event in self._transcript(case):
                piece, left = event[:left], left - len(event)
                await line.write_chunk(piece)
                entry.wrote_bytes += len(piece)
                if left < 0:
                    entry.ending = "fault"
                    await asyncio.sleep(
                        0.005
                    )  # the sent bytes must be on their way before the connection breaks
                    return line.cut(reset=entry.index % 2 == 1)
                if how == "whole" and await line.is_left_within(0.002):
                    entry.ending = "other_left"
                    return False
            entry.ending = "complete"
            await line.write(b"0\r\n\r\n")
            return True
        except ConnectionError:
            entry.ending = "other_left"
            return False
        finally:
            entry.ended_s = time.time()
            self.ledger.note(entry)

    def _transcript(self, case: str) -> tuple[bytes, ...]:
        if case not in self.transcripts:
            self.transcripts[case] = events_of((GOLDEN / case / "upstream.sse").read_bytes())
        return self.transcripts[case]


def _kind(path: str, asked: dict[str, Any]) -> Kind:
    if "tools" in asked:
        return Kind.PICTURES
    return next((kind for kind, its in PATHS.items() if its == path), Kind.CHAT)


def events_of(transcript: bytes) -> tuple[bytes, ...]:
    """A recorded stream by events, each with its empty line."""
    return tuple(part + b"\n\n" for part in transcript.split(b"\n\n") if part)


STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; "
    b"charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"
)


def _whole(status: int, body: bytes, *, extra: str = "") -> bytes:
    head = (
        f"HTTP/1.1 {status} X\r\ncontent-type: application/json\r\n{extra}content-length: "
        f"{len(body)}\r\n\r\n"
    )
    return head.encode() + body


@dataclass(slots=True)
class _Line:
    """A connection that knows when the other side has left it."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    @property
    def is_left(self) -> bool:
        return (
            self.reader.at_eof()
            or self.reader.exception() is not None
            or self.writer.transport.is_closing()
        )

    async def is_left_within(self, seconds: float) -> bool:
        """Take time, but no longer than the other side stays."""
        end_s = time.monotonic() + seconds
        while not self.is_left and (left_s := end_s - time.monotonic()) > 0:  # noqa: ASYNC110 - EOF has no event
            await asyncio.sleep(min(left_s, POLL_S))
        return self.is_left

    async def write(self, data: bytes) -> None:
        if self.is_left:
            raise ConnectionResetError
        self.writer.write(data)
        await self.writer.drain()

    async def write_chunk(self, data: bytes) -> None:
        if data:
            await self.write(b"%x\r\n%s\r\n" % (len(data), data))

    def cut(self, *, reset: bool) -> bool:
        """Break the connection; the answer is not complete by any framing."""
        if reset:
            linger = struct.pack("ii", 1, 0)
            with contextlib.suppress(OSError, AttributeError):
                self.writer.get_extra_info("socket").setsockopt(
                    socket.SOL_SOCKET, socket.SO_LINGER, linger
                )
            self.writer.transport.abort()
        else:
            self.writer.close()
        return False


class _Exchange:
    """One attempt being answered by its plan."""

    def __init__(
        self, asked: dict[str, Any], drawn: Plan, wanted: Shape, entry: Entry, line: _Line
    ) -> None:
        self.asked, self.plan, self.wanted, self.entry, self.line = (
            asked,
            drawn,
            wanted,
            entry,
            line,
        )
        options = asked.get("stream_options") or {}
        is_asked = (
            bool(options.get("include_usage")) or wanted.kind is Kind.RESPONSES
        )  # which says it unasked
        self.says_usage = is_asked and drawn.fault is not Fault.NO_USAGE
        self.says_running = bool(options.get("continuous_usage_stats")) and entry.model.startswith(
            "vllm"
        )
        maximum = int(asked.get(MAXIMUM.get(wanted.kind, "max_tokens")) or wanted.output_tokens)
        self.words = min(wanted.output_tokens, maximum) * wanted.answers  # of all answers together
        self.wording = Wording(number=entry.number, model=entry.model, shape=wanted)

    async def run(self) -> bool:
        """Answer, or fail as planned; return False if the connection is over."""
        try:
            if await self.line.is_left_within(self.plan.ttft_s):
                return self._other_left()
            if self.plan.fault is Fault.HANG:
                self.entry.ending = "fault"
                await self.line.is_left_within(PATIENCE_S)
                return False
            if self.plan.fault in STATUS:
                return await self._error()
            answered = await (self._stream() if self.entry.is_stream else self._plain())
        except ConnectionError:
            return self._other_left()
        if answered and self.plan.fault is Fault.STALE:
            await self.line.is_left_within(0.01)
            return self.line.cut(reset=False)
        return answered

    def generate_rest(self) -> None:
        """Make all tokens that are still to be made."""
        if self.plan.fault not in STATUS and self.plan.fault is not Fault.HANG:
            for number in range(self.entry.output, self.words):
                self._generate(number)

    def _generate(self, number: int) -> None:
        self.entry.output += 1
        self.entry.reasoning += number < self.wanted.reasoning_tokens

    def _other_left(self) -> bool:
        self.entry.ending = "other_left"
        return False

    async def _error(self) -> bool:
        self.entry.ending = "fault"
        status = STATUS[self.plan.fault]
        body: dict[str, Any] = {
            "error": {"message": "planned", "type": "planned", "code": status, "param": None}
        }
        if self.plan.fault is Fault.ERROR_WITH_USAGE:
            for number in range(self.words):
                self._generate(number)
            body["usage"] = self._usage()
            self._note_usage(is_final=True)
        extra = "retry-after: 1\r\n" if status == 429 else ""
        await self.line.write(_whole(status, json.dumps(body).encode(), extra=extra))
        return True

    async def _plain(self) -> bool:
        if (
            self.plan.fault is Fault.IN_BAND
        ):  # a plain answer has no band: it is an error of status 200
            self.entry.ending = "fault"
            error = {"message": "planned", "type": "planned", "code": 500, "param": None}
            await self.line.write(_whole(200, json.dumps({"error": error}).encode()))
            return True
        for number in range(self.words):
            if self.plan.gap_s and await self.line.is_left_within(self.plan.gap_s):
                return self._other_left()
            self._generate(number)
        usage = None if self.plan.fault is Fault.NO_USAGE else self._usage()
        whole = _whole(200, self.wording.whole(self.words, usage))
        if not self._breaks:
            await self.line.write(whole)
            self.entry.ending = "complete"
            if usage is not None:
                self._note_usage(is_final=True)
            return True
        body_at = whole.index(b"\r\n\r\n") + 4
        await self.line.write(whole[: body_at + int(self.plan.at * (len(whole) - body_at))])
        return await self._break()

    async def _stream(self) -> bool:
        await self.line.write(STREAM_HEAD)
        steps = self._steps()
        breaks_at = self.plan.at * len(steps) if self._breaks else len(steps)
        for position, step in enumerate(steps):
            if step == "token":
                if self.plan.gap_s and await self.line.is_left_within(self.plan.gap_s):
                    return self._other_left()
                self._generate(self.entry.output)
            event = self._event_of(step)
            if position + 1 > breaks_at:
                await self._write_event(event[: int((breaks_at - position) * len(event))])
                return await self._break()
            await self._write_event(event)
            if (step == "usage" and self.says_usage) or (step == "token" and self.says_running):
                self._note_usage(is_final=step == "usage")
        self.entry.ending = "fault" if self.plan.fault is Fault.IN_BAND else "complete"
        await self.line.write(b"0\r\n\r\n")
        return True

    def _steps(self) -> list[str]:
        """The stream's events in order."""
        if self.plan.fault is Fault.IN_BAND:  # as vLLM does when its engine dies, `[DONE]` included
            return ["begin", *["token"] * int(self.plan.at * self.words), "error", "done"]
        return ["begin", *["token"] * self.words, "end", "usage", "done"]

    def _event_of(self, step: str) -> bytes:
        if step == "begin":
            return self.wording.begin(self._running_usage())
        if step == "token":
            return self.wording.token(self.entry.output - 1, self._running_usage())
        if step == "end":
            return self.wording.end(self._running_usage())
        if step == "usage":
            return self.wording.last(self._usage() if self.says_usage else None)
        return self.wording.error() if step == "error" else self.wording.done()

    async def _write_event(self, event: bytes) -> None:
        size = 37 if self.plan.fault is Fault.SPLIT else max(len(event), 1)
        for at in range(0, len(event), size):
            await self.line.write_chunk(event[at : at + size])

    @property
    def _breaks(self) -> bool:
        return self.plan.fault in (Fault.CUT, Fault.RESET, Fault.STALL)

    async def _break(self) -> bool:
        self.entry.ending = "fault"
        if self.plan.fault is Fault.STALL:
            await self.line.is_left_within(PATIENCE_S)
            return False
        # the sent bytes must be on their way before the connection breaks
        await asyncio.sleep(0.005)
        return self.line.cut(reset=self.plan.fault is Fault.RESET)

    def _note_usage(self, *, is_final: bool) -> None:
        self.entry.usage_s = self.entry.usage_s or time.time()
        self.entry.is_usage_final = is_final

    def _running_usage(self) -> dict[str, Any] | None:
        if not self.says_running:
            return None
        return self.wording.running(self.entry.output, max(self.entry.output - 1, 0))

    def _usage(self) -> dict[str, Any]:
        made, read = self.entry.output, self.wanted.input_tokens
        if self.plan.fault is Fault.WILD and self.wanted.kind is Kind.EMBEDDINGS:
            read = (-read, 10**12)[self.entry.index % 2]
        elif self.plan.fault is Fault.WILD:
            made = (-made, 10**12)[self.entry.index % 2]
        return self.wording.usage(made, self.entry.reasoning, prompt=read)


async def _serve(make: Callable[[], Upstream], listener: socket.socket) -> None:
    upstream = make()
    server = await asyncio.start_server(upstream.serve, sock=listener, backlog=4096, limit=2**22)
    await server.serve_forever()


def main() -> int:
    """Serve until stopped; the first line of standard output is the address."""
    parser = argparse.ArgumentParser(
        description="An upstream that fails on purpose, with a ledger of its own."
    )
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--mix", choices=MIXES, required=True)
    parser.add_argument("--ledger", type=Path, required=True)
    parser.add_argument("--most-output", type=int, default=40)
    chosen = parser.parse_args()
    listener = socket.create_server(("127.0.0.1", 0), backlog=4096)
    print(f"http://127.0.0.1:{listener.getsockname()[1]}", flush=True)
    uvloop.run(
        _serve(
            lambda: Upstream(
                chosen.seed, MIXES[chosen.mix], Ledger(chosen.ledger), chosen.most_output
            ),
            listener,
        )
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
