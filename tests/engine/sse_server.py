"""A small OpenAI-compatible server with a clock and a ledger of its own, which misbehaves on order.

It runs in a thread of its own. Its clock is the machine's (`time.perf_counter`), as the client's.
"""

import asyncio
import json
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

Fault = Literal["refuse", "error", "no-finish", "cut", "stall", "plain-body"]
MODEL = "fake"
TEMPLATE_TOKENS = 3  # of each message


Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@dataclass(slots=True, kw_only=True)
class Served:
    """One request as the server saw it; moments by its clock."""

    number: int
    body: Mapping[str, Any]
    received: float
    connection: int
    tokens: list[float] = field(default_factory=list)
    finished: float | None = None


@dataclass(slots=True, kw_only=True)
class SseServer:
    """The server's orders and its ledger."""

    faults: Mapping[int, Fault] = field(default_factory=dict)
    """By the request's number, from 0, in the order of arrival; the warm-up counts."""
    first_s: float = 0.0
    gap_s: float = 0.0
    stall_s: float = 1.0
    opening_s: float | None = None
    """Before the first token, a chunk with the role alone comes after this time."""
    is_vllm: bool = True
    cached_tokens: int = 0
    ledger: list[Served] = field(default_factory=list)
    stalls: list[tuple[float, float]] = field(default_factory=list)
    url: str = ""
    key: str | None = None
    _connections: int = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer the requests of one connection."""
        self._connections += 1
        connection = self._connections
        try:
            while head := (await reader.readuntil(b"\r\n\r\n")).decode():
                received = time.perf_counter()
                lines = head.lower().splitlines()
                lengths = [line.split(":")[1] for line in lines if line[:15] == "content-length:"]
                body = json.loads(await reader.readexactly(int(lengths[0]))) if lengths else {}
                path = head.split(" ")[1]
                if self.key and f"authorization: bearer {self.key}" not in lines:
                    self._plain(writer, 401, {"error": "Unauthorized"})
                elif path == "/v1/models":
                    self._plain(writer, 200, {"data": [{"id": MODEL}]})
                elif path == "/tokenize" and self.is_vllm:
                    self._plain(writer, 200, tokenized(body))
                elif path == "/v1/completions":  # the probe of `serve`
                    self._plain(writer, 200, {"choices": [{"text": "1"}]})
                elif path == "/v1/chat/completions":
                    served = Served(
                        number=len(self.ledger), body=body, received=received, connection=connection
                    )
                    self.ledger.append(served)
                    await self._chat(served, writer)
                else:
                    self._plain(writer, 404, {"error": {"message": "not found"}})
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async def _chat(self, served: Served, writer: asyncio.StreamWriter) -> None:
        """Answer one chat request as ordered."""
        fault = self.faults.get(served.number)
        if fault == "refuse":
            self._plain(writer, 503, {"error": {"message": "the queue is full"}})
            return
        if fault == "plain-body":
            self._plain(writer, 200, {"choices": [{"message": {"content": "all at once"}}]})
            return
        if fault == "stall":
            now = time.perf_counter()
            self.stalls.append((now, now + self.stall_s))
        writer.write(
            b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n"
            b"transfer-encoding: chunked\r\n\r\n"
        )
        if self.opening_s is not None:
            await asyncio.sleep(self.opening_s)
            chunk(writer, {"choices": [{"delta": {"role": "assistant", "content": ""}}]})
        await self._sleep(served.received + self.first_s - time.perf_counter())
        most = served.body.get("max_tokens") or served.body["max_completion_tokens"]
        for index in range(most):
            if index:
                await self._sleep(self.gap_s)
            if index == most // 2 and fault in ("error", "cut"):
                if fault == "cut":
                    await writer.drain()
                    writer.transport.abort()
                    raise ConnectionError
                chunk(writer, {"error": {"message": "EngineCore died", "code": 500}})
                done(writer)
                return
            is_last = index == most - 1
            reason = "length" if is_last and fault != "no-finish" else None
            served.tokens.append(time.perf_counter())
            chunk(writer, {"choices": [{"delta": {"content": " a"}, "finish_reason": reason}]})
            await writer.drain()
        served.finished = time.perf_counter()
        usage: dict[str, Any] = {
            "prompt_tokens": prompt_tokens(served.body["messages"]),
            "completion_tokens": most,
            "prompt_tokens_details": {"cached_tokens": self.cached_tokens},
        }
        chunk(writer, {"choices": [], "usage": usage})
        done(writer)

    async def _sleep(self, wait_s: float) -> None:
        """Sleep, and then until each stall is over."""
        await asyncio.sleep(max(0.0, wait_s))
        for _, end in self.stalls:
            await asyncio.sleep(max(0.0, end - time.perf_counter()))

    def _plain(self, writer: asyncio.StreamWriter, status: int, body: Mapping[str, Any]) -> None:
        """Answer with a JSON body."""
        data = json.dumps(body).encode()
        writer.write(f"HTTP/1.1 {status} S\r\ncontent-length: {len(data)}\r\n\r\n".encode() + data)


def chunk(writer: asyncio.StreamWriter, data: Mapping[str, Any]) -> None:
    """Send one event as one HTTP chunk."""
    event = b"data: " + json.dumps(data).encode() + b"\n\n"
    writer.write(f"{len(event):x}\r\n".encode() + event + b"\r\n")


def done(writer: asyncio.StreamWriter) -> None:
    """Send the end of the stream and of the body."""
    writer.write(b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n")


def words_of(text: str) -> list[str]:
    """Return the tokens of a text: words, with the space before them; long words are two."""
    found: list[str] = []
    for index, word in enumerate(text.split(" ")):
        space = "Ġ" if index else ""
        found += [space + word] if len(word) <= 6 else [space + word[:6], word[6:]]
    return found


def tokenized(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return the answer of `/tokenize`."""
    if "messages" in body:
        return {"count": prompt_tokens(body["messages"])}
    words = words_of(body["prompt"])
    return {"count": len(words), "token_strs": words if body.get("return_token_strs") else None}


def prompt_tokens(messages: Sequence[Mapping[str, Any]]) -> int:
    """Return the tokens of a chat with its template."""
    texts = [one["content"] for one in messages]
    texts = [text if isinstance(text, str) else text[0]["text"] for text in texts]
    return sum(TEMPLATE_TOKENS + len(words_of(text)) for text in texts)


@contextmanager
def listening(serve: Serve, *, port: int = 0) -> Iterator[str]:
    """Let a function serve connections in a thread while the block runs; yield its address."""
    ready, ends = threading.Event(), threading.Event()
    addresses: list[str] = []

    async def run() -> None:
        server = await asyncio.start_server(serve, "127.0.0.1", port)
        addresses.append(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
        ready.set()
        await asyncio.to_thread(ends.wait)
        server.close()

    thread = threading.Thread(target=lambda: asyncio.run(run()))
    thread.start()
    assert ready.wait(10)
    try:
        yield addresses[0]
    finally:
        ends.set()
        thread.join()


@contextmanager
def running(*, port: int = 0, **orders: Any) -> Iterator[SseServer]:
    """Run a server in a thread for the block."""
    server = SseServer(**orders)
    with listening(server.serve, port=port) as server.url:
        yield server
