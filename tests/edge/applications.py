"""Minimal applications behind our HTTP server, for tests from outside."""

from __future__ import annotations

import asyncio
from typing import Any

from gateway.api.errors import error_answer
from gateway.api.http.caller_exchange import CallerExchange, ClientGone
from gateway.errors import RequestError

LIMIT_BYTES = 1_000_000


class Echo:
    """An application that answers with the path and the body, and records bodies and callers
    that left.
    """

    def __init__(self) -> None:
        self.requests: list[tuple[str, bytes]] = []
        self.fields: list[list[tuple[bytes, bytes]]] = []
        self.left = 0

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answer an ASGI request."""
        body, more = b"", True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                self.left += 1
                return
            body, more = body + message["body"], message["more_body"]
        self.requests.append((scope["path"], body))
        self.fields.append(scope["headers"])
        answer = scope["path"].encode() + b" " + body
        headers = [(b"content-length", b"%d" % len(answer))]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": answer})

    async def forward_one(self, exchange: CallerExchange) -> None:
        """Answer a request that the edge forwards."""
        try:
            body = await exchange.body(limit_bytes=LIMIT_BYTES)
        except ClientGone:
            self.left += 1
            return
        except RequestError as error:
            status, headers, answer = error_answer(error)
            exchange.start(
                status,
                [*headers, (b"content-length", b"%d" % len(answer)), (b"connection", b"close")],
            )
            await exchange.send(answer, is_last=True)
            return
        self.requests.append((exchange.endpoint.path, body))
        self.fields.append(exchange.fields)
        answer = exchange.endpoint.path.encode() + b" " + body
        exchange.start(200, [(b"content-length", b"%d" % len(answer))])
        await exchange.send(answer, is_last=True)

    def new_request_id(self) -> bytes:
        """Return a constant id."""
        return b"an-id"


class Held(Echo):
    """An application that begins a streamed answer and continues when `go` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.go = asyncio.Event()
        self.begun: list[bytes] = []
        self.disconnected: list[bytes] = []

    async def forward_one(self, exchange: CallerExchange) -> None:
        """Begin an answer, and record in `disconnected` each request whose caller left."""
        body = await exchange.body(limit_bytes=LIMIT_BYTES)
        self.begun.append(body)
        exchange.on_leaving = lambda: self.disconnected.append(body)
        try:
            exchange.start(200, [])
            await exchange.send(b"begun")
            await self.go.wait()
            await exchange.send(b"", is_last=True)
        finally:
            exchange.on_leaving = None
