"""One attempt being answered by its behaviour: its pace, its tokens, and its fault."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

from tests.fake_upstream.dialects.asked import wording_of
from tests.fake_upstream.faults import BREAKS, ERRORS, Behaviour, Fault, Kind
from tests.fake_upstream.ledger import CLIENT_GONE, COMPLETE, Entry
from tests.fake_upstream.line import Line, whole
from tests.fake_upstream.transcripts import transcript

PATIENCE_S = 90.0  # of a hanging answer; every gateway's deadline is shorter
ON_ITS_WAY_S = 0.005  # sent bytes leave before the connection breaks
SPLIT_BYTES = 37
JSON = "content-type: application/json\r\n"
# Headers that no caller may see.
PRIVATE = "set-cookie: upstream=secret; Path=/\r\nx-upstream-secret: 1\r\n"


def stream_head(kind: str) -> bytes:
    """Return the head of a streamed answer of this content type."""
    return (
        f"HTTP/1.1 200 OK\r\nserver: fake\r\ncontent-type: {kind}\r\n"
        "set-cookie: upstream=secret\r\ntransfer-encoding: chunked\r\n\r\n"
    ).encode()


class Exchange:
    """One attempt. Its methods return False if the connection is over."""

    def __init__(
        self, asked: dict[str, Any], behaviour: Behaviour, entry: Entry, line: Line
    ) -> None:
        self.behaviour, self.work, self.entry, self.line = behaviour, behaviour.work, entry, line
        self.wording = wording_of(
            asked, number=entry.number, model=entry.model, behaviour=behaviour
        )
        entry.untold = sorted(self.wording.untold)

    async def run(self) -> bool:
        """Answer, or fail as planned."""
        behaviour = self.behaviour
        is_stream = self.entry.is_stream and self.work.kind.writes_output
        is_early = behaviour.is_early and is_stream
        try:
            if is_early:
                await self.line.write(stream_head(self.wording.stream_type))
            if await self.line.is_left_within(behaviour.ttft_s):
                return self._left()
            if behaviour.fault is Fault.HANG:
                self._ends_by_fault()
                await self.line.is_left_within(PATIENCE_S)
                return False
            if behaviour.fault in ERRORS:
                return await self._error()
            if behaviour.fault is Fault.REDIRECT:
                self._ends_by_fault()
                return await self._send_whole(302, b"{}", "location: /elsewhere\r\n")
            if self.work.kind is Kind.COUNT:
                self.entry.ending = COMPLETE
                return await self._send_whole(200, b'{"input_tokens": %d}' % self.work.input_tokens)
            if not is_stream:
                answered = await self._plain()
            else:
                if not is_early:
                    await self.line.write(stream_head(self.wording.stream_type))
                answered = await self._stream()
        except ConnectionError:
            return self._left()
        if answered and behaviour.fault is Fault.STALE:
            await self.line.is_left_within(0.01)
            return self.line.cut(reset=False)
        return answered

    def generate_rest(self) -> None:
        """Generate all remaining tokens: the caller left, and is charged all the same."""
        if self.behaviour.fault not in ERRORS and self.behaviour.fault is not Fault.HANG:
            while self.entry.generated < self.work.output_tokens:
                self._generate()

    def _generate(self) -> None:
        self.entry.reasoning += self.entry.generated < self.work.reasoning_tokens
        self.entry.generated += 1

    async def _paced(self) -> bool:
        """Generate the next token in its time; return False if the other side has left."""
        gap_s = self.behaviour.gap_s if self.entry.generated else 0.0
        if await self.line.is_left_within(gap_s):
            return self._left()
        self._generate()
        return True

    def _left(self) -> bool:
        self.entry.ending = CLIENT_GONE
        return False

    def _ends_by_fault(self) -> None:
        self.entry.ending = self.behaviour.fault.name.lower()

    # ---- whole answers

    async def _send_whole(self, status: int, body: bytes, extra: str = "") -> bool:
        await self.line.write(whole(status, body, extra=JSON + extra))
        return True

    async def _error(self) -> bool:
        behaviour, usage = self.behaviour, None
        self._ends_by_fault()
        if behaviour.fault is Fault.ERROR_WITH_USAGE:
            while self.entry.generated < self.work.output_tokens:
                self._generate()
            usage = self._usage()
            self._note_usage(is_final=True)
        wait_s, has_header = behaviour.retry_after_s, self.wording.has_wait_header
        extra = f"retry-after: {wait_s}\r\n" if has_header and wait_s is not None else ""
        status = self.wording.failing_status
        extra += self.wording.error_headers()
        return await self._send_whole(status, self.wording.error_body(usage), extra)

    async def _plain(self) -> bool:
        behaviour = self.behaviour
        if behaviour.fault is Fault.IN_BAND:
            if not self.wording.has_plain_error:
                return await self._error()
            self._ends_by_fault()
            return await self._send_whole(200, self.wording.error_body(None))
        tokens, total = behaviour.at_tokens, self.work.output_tokens
        for _ in range(total if tokens is None else int(tokens)):
            if not await self._paced():
                return False
        if behaviour.fault is Fault.BAD_JSON:
            self._ends_by_fault()
            return await self._send_whole(200, self.wording.broken_json())
        usage = self._usage() if behaviour.has_final_usage else None
        body = self.wording.whole(self.entry.generated, usage)
        answer = whole(200, body, extra=JSON + PRIVATE)
        if behaviour.fault in BREAKS:
            share = behaviour.at if tokens is None else tokens / (total + 1)
            await self.line.write(answer[: len(answer) - len(body) + int(share * len(body))])
            return await self._break()
        await self.line.write(answer)
        self.entry.ending = COMPLETE
        if usage is not None:
            self._note_usage(is_final=True)
        return True

    # ---- streams

    async def _stream(self) -> bool:
        behaviour, steps = self.behaviour, self._steps()
        breaks_at = float(len(steps))
        if behaviour.fault in BREAKS:
            tokens = behaviour.at_tokens
            breaks_at = behaviour.at * len(steps) if tokens is None else float(tokens + 1)
        for position, step in enumerate(steps):
            if position == breaks_at:
                return await self._break()
            if step == "token" and not await self._paced():
                return False
            event = self._event(step)
            self.entry.has_shown |= step == "token" and bool(event)
            if position + 1 > breaks_at:
                await self._write_event(event[: int((breaks_at - position) * len(event))])
                return await self._break()
            await self._write_event(event)
            self._note_usage_of(step)
        if behaviour.fault in (Fault.IN_BAND, Fault.BAD_JSON):
            self._ends_by_fault()
        else:
            self.entry.ending = COMPLETE
        await self.line.end_chunks()
        return True

    def _steps(self) -> list[str]:
        """Return the stream's events in order."""
        behaviour, total = self.behaviour, self.work.output_tokens
        if behaviour.fault is Fault.IN_BAND:  # as vLLM does when its engine dies, `[DONE]` included
            made = behaviour.at_tokens
            made = int(behaviour.at * total if made is None else min(made, total))
            return ["begin", *["token"] * made, "error", "done"]
        steps = ["begin", *["token"] * total, "usage", "done"]
        if behaviour.fault is Fault.BAD_JSON:
            steps.insert(2, "bad")
        return steps

    def _event(self, step: str) -> bytes:
        wording = self.wording
        makers: dict[str, Callable[[], bytes]] = {
            "begin": wording.begin,
            "token": lambda: wording.token(self.entry.generated - 1, self._usage()),
            "bad": wording.bad_event,
            "usage": lambda: wording.last(
                self._usage() if wording.has_final_usage else None, self._text()
            ),
            "error": wording.error,
            "done": wording.done,
        }
        return makers[step]()

    def _text(self) -> str:
        return self.wording.text(range(self.work.reasoning_tokens, self.entry.generated))

    async def _write_event(self, event: bytes) -> None:
        size = SPLIT_BYTES if self.behaviour.fault is Fault.SPLIT else max(len(event), 1)
        for at in range(0, len(event), size):
            await self.line.write_chunk(event[at : at + size])

    async def _break(self) -> bool:
        """Break the answer as planned."""
        fault = self.behaviour.fault
        self._ends_by_fault()
        if fault is Fault.STALL:
            await self.line.is_left_within(PATIENCE_S)
            return False
        if fault is Fault.END:
            await self.line.end_chunks()
            return True
        await asyncio.sleep(ON_ITS_WAY_S)
        return self.line.cut(reset=fault is Fault.RESET)

    # ---- usage

    def _note_usage_of(self, step: str) -> None:
        wording = self.wording
        if step == "usage" and wording.has_final_usage:
            self._note_usage(is_final=True)
        elif step == "token" and wording.has_running_usage:
            self._note_usage(is_final=False)

    def _note_usage(self, *, is_final: bool) -> None:
        self.entry.usage_s = self.entry.usage_s or time.time()
        self.entry.is_usage_final = is_final

    def _usage(self) -> dict[str, Any]:
        made, prompt = self.entry.generated, self.work.input_tokens
        if self.behaviour.fault is Fault.WILD and self.work.kind in (Kind.EMBEDDINGS, Kind.RERANK):
            prompt = (-prompt, 10**12)[self.entry.index % 2]
        elif self.behaviour.fault is Fault.WILD:
            made = (-made, 10**12)[self.entry.index % 2]
        return self.wording.usage(made, self.entry.reasoning, prompt=prompt)


async def play_transcript(entry: Entry, line: Line, kind: str) -> bool:
    """Play a recorded stream event by event.

    `golden-CASE:cut` cuts it after as many bytes as the entry's index, `:whole` does not.
    """
    case, _, how = entry.model.removeprefix("golden-").partition(":")
    left = entry.index if how == "cut" else 10**9
    try:
        await line.write(stream_head(kind))
        for event in transcript(case):
            piece, left = event[:left], left - len(event)
            await line.write_chunk(piece)
            entry.wrote_bytes += len(piece)
            if left < 0:
                entry.ending = Fault.CUT.name.lower()
                await asyncio.sleep(ON_ITS_WAY_S)
                return line.cut(reset=entry.index % 2 == 1)
            if how == "whole" and await line.is_left_within(0.002):
                entry.ending = CLIENT_GONE
                return False
        entry.ending = COMPLETE
        await line.end_chunks()
        return True
    except ConnectionError:
        entry.ending = CLIENT_GONE
        return False
