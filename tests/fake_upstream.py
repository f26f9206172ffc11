"""A deterministic upstream of the OpenAI dialect that keeps a ledger of its generated tokens.

Run it: `python -m tests.fake_upstream --port 0 --ledger FILE`; it prints its address. It is the
other side of the meter: tests compare Tollgate's bookings with this program's ledger.

The model name, a body member `fake`, or a header `x-fake` selects its behaviour; later ones win:

    fake/in=1000,cached=400,write=50,out=50,think=20,ttft=80,tps=200,cut@5
    fake/in:1000+cached:400+out:50+cut@5                      (the same, in the letters a policy allows)

    in, cached, write   prompt tokens, and how many of them are cache reads and cache writes
    out, think          answer tokens, and how many of the first of them are reasoning
    ttft, tps           milliseconds to the first token; tokens per second after it (0: at once)
    style               openai (default), vllm, deepseek, mistral: how usage is spelled and when it is sent
    on_choice           usage stands on the last chunk with choices, not on one of its own
    nousage             no usage at all, even on request
    cut@N, end@N        after N tokens break the connection, or end it cleanly without [DONE]
    hang, hang@N        never answer; or stop answering after N tokens
    miderr@N            after N tokens an error event, then [DONE], as vLLM does when its engine dies
    badjson             an answer that is no JSON; in a stream, one such event after the first token
    redirect            302 to /elsewhere, which counts who follows
    NNN                 answer with this HTTP status; ra=SECONDS adds a retry-after
    slow                the answer's headers come after two seconds
    early               a stream's headers come at once, however long the first token takes: vLLM says 200 and queues
    quota               a 429 because the account is used up
    toolong             a 400 because the prompt is too long for the context

Every word of an answer is one token: token number i is the word `t<i>`, and the first of them is
the canary that `tests.canary` searches for, so that a completion that is kept anywhere is found.
"""  # noqa: E501

from __future__ import annotations

import argparse
import asyncio
import json
import socket
import sys
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.canary import COMPLETION

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

NUMBERS = ("in", "cached", "write", "out", "think", "ttft", "tps", "ra")
WORDS = ("on_choice", "nousage", "badjson", "redirect", "slow", "hang", "early", "quota", "toolong")
FAULTS_AT = ("cut", "end", "hang", "miderr")
CREATED = 1_764_000_000


def word(number: int) -> str:
    """Token number `number` of every answer."""
    return f"t{number}" if number else COMPLETION


class Cut(Exception):
    """Raised out of the application, so that the server breaks the connection."""


@dataclass
class Plan:
    """What one request gets."""

    numbers: dict[str, int] = field(default_factory=lambda: {"in": 10, "out": 8})
    words: set[str] = field(default_factory=set)
    faults_at: dict[str, int] = field(default_factory=dict)
    style: str = "openai"
    status: int = 200

    def read(self, text: str) -> None:
        """Take in `in=5,cut@3` or `in:5+cut@3`."""
        for part in text.replace("+", ",").replace(":", "=").split(","):
            name, _, value = part.partition("=")
            fault, _, at = part.partition("@")
            if name in NUMBERS and value:
                self.numbers[name] = int(value)
            elif name == "style":
                self.style = value
            elif fault in FAULTS_AT and at:
                self.faults_at[fault] = int(at)
            elif part in WORDS:
                self.words.add(part)
            elif part.isdigit() and len(part) == 3:
                self.status = int(part)
            elif part:
                raise ValueError(f"the fake upstream does not know {part!r}")

    def __getitem__(self, name: str) -> int:
        return self.numbers.get(name, 0)

    @property
    def input_tokens(self) -> int:
        return self["in"]


@dataclass
class Entry:
    """One request as it really went. `generated` grows while the answer runs."""

    number: int
    path: str
    headers: list[list[str]]
    body: str
    model: str = ""
    request_id: str = ""
    input_tokens: int = 0
    cached_tokens: int = 0
    cache_write_tokens: int = 0
    generated: int = 0
    reasoning: int = 0
    ending: str = "open"  # complete, client_gone, cut, end, hang, miderr, error, redirect


class FakeUpstream:
    """The ASGI application."""

    def __init__(self, ledger: Path | None = None) -> None:
        self.entries: list[Entry] = []
        self.redirects_followed = 0
        self._ledger = ledger

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        path = scope["path"]
        if path == "/ledger":
            await _json(
                send,
                {"entries": [vars(e) for e in self.entries], "followed": self.redirects_followed},
            )
        elif path == "/elsewhere":
            self.redirects_followed += 1
            await _json(send, {"you": "followed a redirect"})
        elif path == "/v1/models":
            await _json(
                send,
                {"object": "list", "data": [{"id": "fake", "object": "model", "created": CREATED}]},
            )
        else:
            await self._answer(scope, receive, send)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        raw = await _read(receive)
        headers = [
            [name.decode("latin-1"), value.decode("latin-1")] for name, value in scope["headers"]
        ]
        entry = Entry(len(self.entries), scope["path"], headers, raw.decode("utf-8", "replace"))
        self.entries.append(entry)
        entry.request_id = dict(map(tuple, headers)).get("x-request-id", "")
        gone = asyncio.create_task(_disconnect(receive))
        try:
            await _Exchange(entry, json.loads(raw), send, gone).run()
        finally:
            gone.cancel()
            if self._ledger is not None:
                with self._ledger.open("a") as file:
                    file.write(json.dumps(vars(entry)) + "\n")


class _Exchange:
    """One request being answered."""

    def __init__(
        self, entry: Entry, body: dict[str, Any], send: Send, gone: asyncio.Task[None]
    ) -> None:
        self.entry, self.body, self.send, self.gone = entry, body, send, gone
        self.plan = Plan()
        self.model = entry.model = str(body.get("model", ""))
        headers = dict(map(tuple, entry.headers))
        named = self.model.removeprefix("fake/") if self.model.startswith("fake/") else ""
        for text in (named, str(body.get("fake", "")), headers.get("x-fake", "")):
            self.plan.read(text)
        entry.input_tokens = self.plan.input_tokens
        entry.cached_tokens, entry.cache_write_tokens = self.plan["cached"], self.plan["write"]
        limits = [
            body.get(name) for name in ("max_tokens", "max_completion_tokens", "max_output_tokens")
        ]
        self.out = min([self.plan["out"], *(limit for limit in limits if limit is not None)])
        self.think = min(self.plan["think"], self.out)
        self.options = body.get("stream_options") or {}

    async def run(self) -> None:
        """Answer, or fail as asked."""
        if "hang" in self.plan.words:
            self.entry.ending = "hang"
            await self.gone
            return
        if "slow" in self.plan.words:
            await self._pause(2)
        if self.plan.status != 200:
            self.entry.ending = "error"
            await self._error()
        elif "redirect" in self.plan.words:
            self.entry.ending = "redirect"
            await _json(self.send, {}, status=302, headers=[(b"location", b"/elsewhere")])
        elif self.entry.path.endswith("/embeddings"):
            await self._embeddings()
        elif self.entry.path.endswith("/responses"):
            await (
                self._responses_stream()
                if self.body.get("stream")
                else self._plain(self._response("completed"))
            )
        elif self.body.get("stream"):
            await self._stream()
        else:
            await self._plain(self._whole())

    # ---- usage

    def usage(self) -> dict[str, Any]:
        """Usage so far, spelled as the style does."""
        made, thought = self.entry.generated, self.entry.reasoning
        usage: dict[str, Any] = {
            "prompt_tokens": self.plan.input_tokens,
            "total_tokens": self.plan.input_tokens + made,
            "completion_tokens": made,
        }
        if self.plan.style == "deepseek":
            usage["prompt_cache_hit_tokens"] = self.plan["cached"]
            usage["prompt_cache_miss_tokens"] = self.plan.input_tokens - self.plan["cached"]
        elif self.plan.style == "vllm":
            usage["prompt_tokens_details"] = {
                "cached_tokens": self.plan["cached"],
                "created_cache_tokens": self.plan["write"],
                "multimodal_tokens": None,
            }
        else:
            usage["prompt_tokens_details"] = {
                "cached_tokens": self.plan["cached"],
                "cache_write_tokens": self.plan["write"],
            }
        usage["completion_tokens_details"] = {"reasoning_tokens": thought}
        return usage

    def running_usage(self) -> dict[str, Any]:
        """What vLLM puts on every chunk: without the cache's share."""
        made = self.entry.generated
        return {
            "prompt_tokens": self.plan.input_tokens,
            "total_tokens": self.plan.input_tokens + made,
            "completion_tokens": made,
        }

    def responses_usage(self) -> dict[str, Any]:
        """Usage as `/v1/responses` spells it."""
        made = self.entry.generated
        return {
            "input_tokens": self.plan.input_tokens,
            "input_tokens_details": {
                "cached_tokens": self.plan["cached"],
                "cache_write_tokens": self.plan["write"],
            },
            "output_tokens": made,
            "output_tokens_details": {"reasoning_tokens": self.entry.reasoning},
            "total_tokens": self.plan.input_tokens + made,
        }

    # ---- whole answers

    async def _plain(self, build: Callable[[], dict[str, Any]]) -> None:
        await self._pause(self.plan["ttft"] / 1000)
        for number in range(self.out):
            if not await self._generate(number):
                return
        if "badjson" in self.plan.words:
            self.entry.ending = "badjson"
            await _body(
                self.send, b'{"choices": [{"message"', 200, [(b"content-type", b"application/json")]
            )
            return
        self.entry.ending = "complete"
        extra = [(b"set-cookie", b"upstream=secret; Path=/"), (b"x-upstream-secret", b"1")]
        await _json(self.send, build(), headers=extra)

    def _whole(self) -> Callable[[], dict[str, Any]]:
        is_chat = self.entry.path.endswith("/chat/completions")

        def build() -> dict[str, Any]:
            text = " ".join(word(i) for i in range(self.think, self.out))
            choice: dict[str, Any] = {
                "index": 0,
                "finish_reason": self._finish_reason(),
                "logprobs": None,
            }
            if is_chat:
                choice["message"] = {"role": "assistant", "content": text, "refusal": None}
            else:
                choice["text"] = text
            answer = {
                "id": f"chatcmpl-{self.entry.number}",
                "object": "chat.completion" if is_chat else "text_completion",
                "created": CREATED,
                "model": self.model,
                "choices": [choice],
                "system_fingerprint": "fp_fake",
            }
            return answer if "nousage" in self.plan.words else {**answer, "usage": self.usage()}

        return build

    async def _embeddings(self) -> None:
        await self._pause(self.plan["ttft"] / 1000)
        self.entry.ending = "complete"
        tokens = self.plan.input_tokens
        answer: dict[str, Any] = {
            "object": "list",
            "model": self.model,
            "data": [{"object": "embedding", "index": 0, "embedding": [0.5, -0.25]}],
        }
        if "nousage" not in self.plan.words:
            answer["usage"] = {"prompt_tokens": tokens, "total_tokens": tokens}
        await _json(self.send, answer)

    def _response(self, status: str) -> Callable[[], dict[str, Any]]:
        def build() -> dict[str, Any]:
            text = " ".join(word(i) for i in range(self.think, self.entry.generated))
            part = {"type": "output_text", "text": text, "annotations": []}
            message = {
                "id": "msg_1",
                "type": "message",
                "role": "assistant",
                "status": "completed",
                "content": [part],
            }
            is_over = status in ("completed", "failed", "incomplete")
            return {
                "id": f"resp_{self.entry.number}",
                "object": "response",
                "created_at": CREATED,
                "status": status,
                "error": None,
                "incomplete_details": None,
                "instructions": None,
                "metadata": {},
                "model": self.model,
                "output": [message] if is_over else [],
                "parallel_tool_calls": True,
                "temperature": 1.0,
                "tool_choice": "auto",
                "tools": [],
                "top_p": 1.0,
                "store": self.body.get("store", True),
                "usage": self.responses_usage()
                if is_over and "nousage" not in self.plan.words
                else None,
            }

        return build

    # ---- streams

    async def _stream(self) -> None:
        if "early" in self.plan.words:
            await self._start_stream()
        await self._pause(self.plan["ttft"] / 1000)
        if "early" not in self.plan.words:
            await self._start_stream()
        if self.entry.path.endswith("/chat/completions"):
            await self._chunk({"role": "assistant", "content": ""})
        for number in range(self.out):
            if not await self._generate(number):
                return
            name = "reasoning" if number < self.think else "content"
            is_last = number == self.out - 1
            if "badjson" in self.plan.words and number == 1:
                await self._event("{not json")
            await self._chunk({name: word(number) + ("" if is_last else " ")}, is_last=is_last)
        if await self._fault(self.out):
            return
        self.entry.ending = "complete"
        if self._sends_tail():
            await self._event(json.dumps({**self._frame([]), "usage": self.usage()}))
        await self._event("[DONE]")
        await self.send({"type": "http.response.body", "body": b""})

    def _sends_tail(self) -> bool:
        is_asked = self.options.get("include_usage") or self.plan.style == "mistral"
        return bool(is_asked) and not self.plan.words & {"nousage", "on_choice"}

    async def _chunk(self, delta: dict[str, str], *, is_last: bool = False) -> None:
        choice: dict[str, Any] = {
            "index": 0,
            "finish_reason": self._finish_reason() if is_last else None,
        }
        if self.entry.path.endswith("/chat/completions"):
            choice["delta"] = delta
        else:
            choice["text"] = next(iter(delta.values()))
        chunk = self._frame([choice])
        if "nousage" not in self.plan.words:
            if "on_choice" in self.plan.words and is_last:
                chunk["usage"] = self.usage()
            elif self.options.get("continuous_usage_stats") and self.plan.style == "vllm":
                chunk["usage"] = self.running_usage()
            elif self.options.get("include_usage") and self.plan.style == "openai":
                chunk["usage"] = None
        await self._event(json.dumps(chunk))

    def _frame(self, choices: list[dict[str, Any]]) -> dict[str, Any]:
        kind = (
            "chat.completion.chunk"
            if self.entry.path.endswith("/chat/completions")
            else "text_completion"
        )
        return {
            "id": f"chatcmpl-{self.entry.number}",
            "object": kind,
            "created": CREATED,
            "model": self.model,
            "choices": choices,
        }

    async def _responses_stream(self) -> None:
        await self._pause(self.plan["ttft"] / 1000)
        await self._start_stream()
        count = 0

        async def event(kind: str, **members: Any) -> None:
            nonlocal count
            data = json.dumps({"type": kind, "sequence_number": count, **members})
            count += 1
            await self._send(f"event: {kind}\ndata: {data}\n\n".encode())

        await event("response.created", response=self._response("in_progress")())
        for number in range(self.out):
            if not await self._generate(number):
                return
            where = {"item_id": "msg_1", "output_index": 0}
            if number < self.think:
                await event(
                    "response.reasoning_text.delta",
                    **where,
                    content_index=0,
                    delta=word(number) + " ",
                )
            else:
                await event(
                    "response.output_text.delta",
                    **where,
                    content_index=0,
                    delta=word(number) + " ",
                    logprobs=[],
                )
        if await self._fault(self.out):
            return
        self.entry.ending = "complete"
        await event("response.completed", response=self._response("completed")())
        await self.send({"type": "http.response.body", "body": b""})

    # ---- the parts

    async def _generate(self, number: int) -> bool:
        """Make token `number`; False if the request is over instead."""
        if await self._fault(number):
            return False
        if number and self.plan["tps"]:
            await self._pause(1 / self.plan["tps"])
        if self.gone.done():
            self.entry.ending = "client_gone"
            return False
        self.entry.generated += 1
        self.entry.reasoning += number < self.think
        return True

    async def _fault(self, number: int) -> bool:
        fault = next((name for name, at in self.plan.faults_at.items() if at == number), None)
        if fault is None:
            return False
        self.entry.ending = fault
        if fault == "hang":
            await self.gone
            return True
        if fault == "cut":
            await asyncio.sleep(
                0.02
            )  # what was sent must be on its way before the connection breaks
            raise Cut
        if fault == "miderr":
            error = {
                "message": "EngineCore encountered an issue",
                "type": "InternalServerError",
                "code": 500,
            }
            await self._event(json.dumps({"error": {**error, "param": None}}))
            await self._event("[DONE]")
        await self.send({"type": "http.response.body", "body": b""})
        return True

    async def _error(self) -> None:
        headers = (
            [(b"retry-after", str(self.plan["ra"]).encode())] if "ra" in self.plan.numbers else []
        )
        code: int | str = self.plan.status
        if "quota" in self.plan.words:
            code = "insufficient_quota"
        elif "toolong" in self.plan.words:
            code = "context_length_exceeded"
        error = {
            "message": f"the fake fails with {self.plan.status}",
            "type": "fake_error",
            "param": None,
        }
        if self.plan.status == 404:
            error["param"] = "model"
        await _json(
            self.send, {"error": {**error, "code": code}}, status=self.plan.status, headers=headers
        )

    async def _pause(self, seconds: float) -> None:
        """Take time, but no longer than the client stays."""
        if seconds:
            await asyncio.wait([self.gone], timeout=seconds)

    async def _start_stream(self) -> None:
        headers = [(b"content-type", b"text/event-stream"), (b"set-cookie", b"upstream=secret")]
        await self.send({"type": "http.response.start", "status": 200, "headers": headers})

    async def _event(self, data: str) -> None:
        await self._send(f"data: {data}\n\n".encode())

    async def _send(self, event: bytes) -> None:
        await self.send({"type": "http.response.body", "body": event, "more_body": True})
        await asyncio.sleep(0)  # each event leaves by itself, as from a real engine

    def _finish_reason(self) -> str:
        return "length" if self.out < self.plan["out"] else "stop"


async def _read(receive: Receive) -> bytes:
    body = b""
    while True:
        message = await receive()
        body += message.get("body", b"")
        if not message.get("more_body"):
            return body


async def _disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _json(
    send: Send, value: Any, *, status: int = 200, headers: list[tuple[bytes, bytes]] | None = None
) -> None:
    await _body(
        send,
        json.dumps(value).encode(),
        status,
        [(b"content-type", b"application/json"), *(headers or [])],
    )


async def _body(send: Send, body: bytes, status: int, headers: list[tuple[bytes, bytes]]) -> None:
    headers = [*headers, (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def main() -> None:
    """Serve until stopped; the first line of standard output is the address."""
    import uvicorn

    parser = argparse.ArgumentParser(
        description="A deterministic upstream with a ledger of its own."
    )
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--ledger", type=Path)
    arguments = parser.parse_args()
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("127.0.0.1", arguments.port))
    listener.listen(512)
    print(f"http://127.0.0.1:{listener.getsockname()[1]}", flush=True)
    config = uvicorn.Config(
        FakeUpstream(arguments.ledger),
        lifespan="off",
        log_level="critical",
        timeout_graceful_shutdown=1,
    )
    uvicorn.Server(config).run(sockets=[listener])


if __name__ == "__main__":
    sys.exit(main())
