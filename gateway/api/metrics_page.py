"""Serves `/metrics` on a listener of its own, by the edge's HTTP server and its limits: without a
key check, with a check of the Host header.

The listener shares the process with callers, so it has a small table of connections of its own,
and drawing its page takes a bounded share of the event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from socket import socket
from uuid import UUID

from prometheus_client import CollectorRegistry, make_asgi_app

from gateway.api.edge import Message, Receive, Scope, Send, refuse
from gateway.api.http.caller_exchange import CallerExchange
from gateway.api.http.connection import Connection
from gateway.api.http.connection_table import ConnectionTable
from gateway.api.http.limits import HttpLimits
from gateway.api.routes import DEFAULT_DIALECT
from gateway.domain.allowed_hosts import answers_to
from gateway.errors import InvalidRequest, NotSupported, RequestError

# A scraper connects, reads one page and leaves; several may come at once.
CONNECTIONS = 10
BACKLOG = 16
WRITE_S = 10.0
REST = 9  # pages take one part of the loop's time in ten, however many are asked for


@dataclass(slots=True, kw_only=True)
class MetricsPage:
    """The application behind the metrics listener; it draws one page at a time.

    `bound` is the address of the listener, `names` the Host names that it answers to besides this
    machine's.
    """

    registry: CollectorRegistry
    bound: str
    names: Collection[str]
    new_id: Callable[[], UUID]
    _turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    _rests_until_s: float = 0.0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request (ASGI): the page, or the reason why there is none."""
        refusal = self._refusal(scope)
        if refusal is not None:
            await refuse(refusal, send, DEFAULT_DIALECT, self.new_id())
            return
        page = await self._drawn(scope, receive)
        for message in page:
            await send(message)

    async def forward_one(self, exchange: CallerExchange) -> None:
        """Refuse a request to a forwarding endpoint: this listener has none."""

        async def send(message: Message) -> None:
            if message["type"] == "http.response.start":
                exchange.start(message["status"], message["headers"])
            else:
                await exchange.send(message["body"], is_last=True)

        await refuse(_no_page("POST"), send, DEFAULT_DIALECT, self.new_id())

    def new_request_id(self) -> bytes:
        """Return an `x-request-id` for an answer that the connection itself makes."""
        return str(self.new_id()).encode()

    def _refusal(self, scope: Scope) -> RequestError | None:
        """Return the error for a foreign Host or a method that reads nothing, else None."""
        hosts = [value.decode("latin-1") for name, value in scope["headers"] if name == b"host"]
        # HTTP/1.0 has no such header, and a browser always sends one.
        if hosts and not answers_to(hosts[0], bound=self.bound, listed=self.names):
            return InvalidRequest(
                "This listener does not answer to that Host. Add the name to "
                "TOLLGATE_METRICS_HOSTS."
            )
        return None if scope["method"] in ("GET", "HEAD") else _no_page(scope["method"])

    async def _drawn(self, scope: Scope, receive: Receive) -> list[Message]:
        """Return the messages of a page of this moment, once the earlier ones are drawn and the
        loop had its other time.

        The connection closes after the page, so that no idle scraper keeps one of the few places.
        """
        page: list[Message] = []

        async def keep(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], (b"connection", b"close")]
            page.append(message)

        loop = asyncio.get_running_loop()
        async with self._turn:
            await asyncio.sleep(max(0.0, self._rests_until_s - loop.time()))
            began_s = loop.time()
            await make_asgi_app(self.registry)(scope, receive, keep)
            self._rests_until_s = loop.time() + REST * (loop.time() - began_s)
        return page


@asynccontextmanager
async def serving_metrics(
    page: MetricsPage,
    listener: socket,
    *,
    limits: HttpLimits,
    on_closed: Callable[[str], None],
) -> AsyncIterator[None]:
    """Serve the page on a bound socket until the block ends, also while the process drains.

    `limits` are the edge's; the listener has fewer connections and waits less for a reader.
    """
    fewer = replace(limits, connections=CONNECTIONS, write_s=min(WRITE_S, limits.write_s))
    table = ConnectionTable(fewer, on_closed=on_closed)
    loop = asyncio.get_running_loop()
    server = await loop.create_server(
        lambda: Connection(page, table), sock=listener, backlog=BACKLOG
    )
    try:
        yield
    finally:
        server.close()
        for connection in list(table.open):
            connection.abort()


def _no_page(method: str) -> NotSupported:
    """Return the error for a request that this listener does not offer."""
    return NotSupported(f"This listener offers GET /metrics alone, not {method[:20]}.")
