"""The upstream of the crash demo: streams made-up tokens like an engine and counts each one.

It stops as soon as its caller leaves, as vLLM does, and records each request's tokens so far. Model
`own` reports its running usage with every token, `hosted` only at the end. `python -m
bench.stand.demo_upstream` prints its address; `GET /ledger` is its own book.
"""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

import uvicorn

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

FIRST_TOKEN_S, TOKEN_S, PLAIN_S = 0.3, 0.025, 0.15


class Upstream:
    """An ASGI application with its book, one entry for each request that reached it."""

    def __init__(self) -> None:
        self.entries: list[dict[str, Any]] = []

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Answer a chat request or show the book."""
        if scope["type"] != "http":
            return
        if scope["method"] == "GET":
            await _answer(send, {"entries": self.entries})
            return
        body = json.loads(await _body(receive))
        headers = {name.decode(): value.decode() for name, value in scope["headers"]}
        # Like most tokenizers, fewer tokens than bytes: the gateway's bound must hold without
        # knowing it.
        prompt = sum(len(message["content"].split()) for message in body["messages"])
        entry = {
            "request_id": headers.get("x-request-id", ""),
            "prompt": prompt,
            "generated": 0,
            "is_open": True,
        }
        self.entries.append(entry)
        gone = asyncio.create_task(_until_gone(receive))
        try:
            await (_stream if body.get("stream") else _plain)(send, body, entry, gone)
        finally:
            entry["is_open"] = False
            gone.cancel()


async def _stream(
    send: Send, body: dict[str, Any], entry: dict[str, Any], gone: asyncio.Task[None]
) -> None:
    await _start(send, b"text/event-stream")
    says_running = body["model"] == "own"
    for number in range(int(body["max_tokens"])):
        if await _left_within(gone, TOKEN_S if number else FIRST_TOKEN_S):
            return
        entry["generated"] += 1
        chunk = {
            "choices": [{"index": 0, "delta": {"content": f"t{number} "}, "finish_reason": None}]
        }
        await _event(send, chunk | ({"usage": _usage(entry)} if says_running else {}))
    await _event(send, {"choices": [{"index": 0, "delta": {}, "finish_reason": "length"}]})
    await _event(send, {"choices": [], "usage": _usage(entry)})
    await send({"type": "http.response.body", "body": b"data: [DONE]\n\n"})


async def _plain(
    send: Send, body: dict[str, Any], entry: dict[str, Any], gone: asyncio.Task[None]
) -> None:
    if await _left_within(gone, PLAIN_S):
        return
    entry["generated"] = int(body["max_tokens"])
    message = {"role": "assistant", "content": "t " * entry["generated"]}
    choice = {"index": 0, "message": message, "finish_reason": "length"}
    await _answer(send, {"object": "chat.completion", "choices": [choice], "usage": _usage(entry)})


def _usage(entry: dict[str, Any]) -> dict[str, int]:
    total = entry["prompt"] + entry["generated"]
    return {
        "prompt_tokens": entry["prompt"],
        "completion_tokens": entry["generated"],
        "total_tokens": total,
    }


async def _left_within(gone: asyncio.Task[None], seconds: float) -> bool:
    done, _ = await asyncio.wait({gone}, timeout=seconds)
    return bool(done)


async def _until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _body(receive: Receive) -> bytes:
    parts = []
    while True:
        message = await receive()
        parts.append(message.get("body", b""))
        if not message.get("more_body"):
            return b"".join(parts)


async def _start(send: Send, content_type: bytes) -> None:
    await send(
        {"type": "http.response.start", "status": 200, "headers": [(b"content-type", content_type)]}
    )


async def _event(send: Send, chunk: dict[str, Any]) -> None:
    whole = {
        "id": "demo",
        "object": "chat.completion.chunk",
        "created": 0,
        "model": "demo",
        **chunk,
    }
    body = f"data: {json.dumps(whole, separators=(',', ':'))}\n\n".encode()
    await send({"type": "http.response.body", "body": body, "more_body": True})


async def _answer(send: Send, value: dict[str, Any]) -> None:
    await _start(send, b"application/json")
    await send({"type": "http.response.body", "body": json.dumps(value).encode()})


def main() -> None:
    """Serve on a free port until ended."""
    listener = socket.create_server(("127.0.0.1", 0))
    print(f"http://127.0.0.1:{listener.getsockname()[1]}", flush=True)
    config = uvicorn.Config(
        Upstream(), log_level="error", lifespan="off", timeout_graceful_shutdown=1
    )
    uvicorn.Server(config).run(sockets=[listener])


if __name__ == "__main__":
    main()
