"""Answers every request first: refuses foreign hosts, unknown paths and overload, tracks requests
in flight for the drain, and passes the rest to forwarding or FastAPI.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any
from uuid import UUID

from gateway.api.errors import Headers, error_answer
from gateway.api.forward import Forwarder
from gateway.api.http.caller_exchange import CallerExchange
from gateway.api.http.parser import Fields
from gateway.api.not_offered import instead_of, shape_of
from gateway.api.routes import (
    ANTHROPIC,
    DEFAULT_DIALECT,
    ENDPOINTS,
    FORWARDING,
    OFFERED,
    PROBES,
)
from gateway.errors import InvalidRequest, NotSupported, Overloaded, RequestError, Unavailable
from gateway.wire.dialect import ErrorShape

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

_HOST = re.compile(rb"(\[[0-9a-fA-F:.]+\]|[A-Za-z0-9._-]+)(:[0-9]{1,5})?")
_MESSAGES = "/v1/messages"
DESCRIPTION = "/openapi.json"  # FastAPI's own endpoint, so not in the table


def _matched(parameter: re.Match[str]) -> str:
    """Return the pattern of a parameter in a path."""
    return "[^/]+" if parameter[1] is None else ".+"


# By method, the paths that FastAPI serves.
_PLAIN_PATHS = {
    method: re.compile(
        "|".join(
            re.sub(r"\\{[a-z_]+(:path)?\\}", _matched, re.escape(path))
            for path in [
                *(
                    endpoint.template
                    for endpoint in ENDPOINTS
                    if endpoint.method == method and not endpoint.is_metered
                ),
                *([DESCRIPTION] if method == "GET" else []),
            ]
        )
    )
    for method in {endpoint.method for endpoint in ENDPOINTS}
}


@dataclass(slots=True)
class Drain:
    """The drain of this replica: whether it accepts new requests, and which ones are in flight."""

    is_draining: bool = False
    is_over: bool = False  # True once requests in flight get no more time
    asked_s: float | None = None  # when the stop was requested, by the monotonic clock
    in_flight: set[asyncio.Task[object]] = field(default_factory=set)
    is_asked: asyncio.Event = field(default_factory=asyncio.Event)

    def begin(self) -> None:
        """Begin the drain: accept no new requests from now on. Safe in a signal handler."""
        self.is_draining = True
        self.asked_s = self.asked_s or time.monotonic()

    async def run(self, drain_s: float) -> None:
        """Cut off the requests in flight `drain_s` after the stop was requested; runs until
        cancelled.
        """
        await self.is_asked.wait()
        assert self.asked_s is not None
        await asyncio.sleep(self.asked_s + drain_s - time.monotonic())
        self.end()
        await asyncio.Event().wait()

    def end(self) -> None:
        """Cut off the requests in flight: each stream ends with an error event, each attempt is
        settled.
        """
        self.is_over = True
        for task in self.in_flight:
            task.cancel()


@dataclass(frozen=True, slots=True, kw_only=True)
class Edge:
    """The server's application. `plain` is FastAPI with every endpoint except forwarding."""

    forward: Forwarder
    plain: object
    allowed_hosts: frozenset[str]
    max_in_flight: int
    metrics_address: str
    drain: Drain = field(default_factory=Drain)
    loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.get_running_loop)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request that is not forwarded (ASGI): refuse a foreign host or an unknown
        path, else let FastAPI answer. No decision uses a reconstructed URL.
        """
        if scope["type"] == "http":
            request_id = self.forward.new_id()
            scope.setdefault("state", {})["request_id"] = request_id
            shape = shape_of(scope["path"], scope["headers"])
            scope["state"]["is_anthropic"] = shape is ANTHROPIC
            send = _with_id(send, request_id, shape)
            is_probe = scope["path"] in PROBES
            refusal = self._host_refusal(
                scope["headers"], is_probe=is_probe
            ) or self._plain_refusal(scope["method"], scope["path"])
            if refusal is not None:
                if shape is not ANTHROPIC and not isinstance(refusal, NotSupported):
                    shape = DEFAULT_DIALECT
                await refuse(refusal, send, shape, request_id)
                return
        await self.plain(scope, receive, send)  # type: ignore[operator]  # FastAPI is an ASGI app

    async def forward_one(self, exchange: CallerExchange) -> None:
        """Refuse one request to a forwarding endpoint for its host, a drain or too many in flight,
        else pass it to the forwarder, which authenticates it.
        """
        refusal = self._host_refusal(exchange.fields) or self._overload_refusal()
        if refusal is not None:
            status, headers, body = self._answer(refusal, exchange.endpoint.dialect)
            exchange.start(status, headers)
            await exchange.send(body, is_last=True)
            return
        # Before Python 3.12, looking up the loop is a system call.
        task = asyncio.current_task(self.loop)
        assert task is not None, "a server calls an application in a task"
        self.drain.in_flight.add(task)
        try:
            await self.forward(exchange, task=task)
        finally:
            self.drain.in_flight.discard(task)

    def new_request_id(self) -> bytes:
        """Return a new `x-request-id` for an answer that is made outside of forwarding."""
        return str(self.forward.new_id()).encode()

    def _answer(self, error: RequestError, shape: ErrorShape) -> tuple[int, Headers, bytes]:
        """Return the error answer of a request that the edge itself refuses, with a new
        `x-request-id`.
        """
        request_id = self.forward.new_id()
        status, headers, body = _closing_answer(error, shape, request_id)
        return status, [*headers, *_id_headers(request_id, shape)], body

    def _host_refusal(self, fields: Fields, *, is_probe: bool = False) -> RequestError | None:
        """Return the error for a foreign Host header, None if the host is allowed.

        HTTP/1.0 has no such header, and balancers probe with it: no browser can send that.
        """
        for name, value in fields:
            if name == b"host":
                host = _host_name(value)
                break
        else:
            if is_probe or not self.allowed_hosts:
                return None
            return InvalidRequest(
                "The request has no Host header; this gateway answers to the names of "
                "TOLLGATE_ALLOWED_HOSTS alone."
            )
        if host is None:
            return InvalidRequest("The Host header is no name of a host.")
        if self.allowed_hosts and host not in self.allowed_hosts:
            return InvalidRequest(
                "The Host header names a host this gateway does not answer to "
                "(TOLLGATE_ALLOWED_HOSTS)."
            )
        return None

    def _overload_refusal(self) -> RequestError | None:
        """Return the error if this replica drains or has its maximum of requests in flight, else
        None.
        """
        if self.drain.is_draining:
            return Unavailable(
                "This replica is shutting down. Try again; another one answers.", retry_after_s=1
            )
        if len(self.drain.in_flight) >= self.max_in_flight:
            return Overloaded("Too many requests are in flight here. Try again.", retry_after_s=1)
        return None

    def _plain_refusal(self, method: str, path: str) -> RequestError | None:
        """Return the error for a method and path that are not offered, with a hint; None if FastAPI
        serves them.
        """
        if path in FORWARDING:
            return NotSupported(f"{method} {path} is not offered. Use POST {path}.")
        if path == "/metrics":
            return NotSupported(
                f"Metrics are on a listener of their own: http://{self.metrics_address}/metrics"
            )
        if not _is_plain(method, path):
            return NotSupported(f"{method} {_shown(path)} is not offered. {_hint(path)}")
        return None


def _id_headers(request_id: UUID, shape: ErrorShape) -> Headers:
    """Return the headers with a request's id; Anthropic's clients read one of another name."""
    text = str(request_id).encode()
    names = (b"x-request-id", b"request-id") if shape is ANTHROPIC else (b"x-request-id",)
    return [(name, text) for name in names]


def _with_id(send: Send, request_id: UUID, shape: ErrorShape) -> Send:
    """Return an ASGI `send` that adds the request's id to an answer made outside of forwarding."""
    added = _id_headers(request_id, shape)

    async def send_with_id(message: Message) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [*message["headers"], *added]
        await send(message)

    return send_with_id


async def refuse(error: RequestError, send: Send, shape: ErrorShape, request_id: UUID) -> None:
    """Send an error as the complete answer to a request outside of forwarding (ASGI); the
    connection closes after it.
    """
    status, headers, body = _closing_answer(error, shape, request_id)
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def _closing_answer(
    error: RequestError, shape: ErrorShape, request_id: UUID
) -> tuple[int, Headers, bytes]:
    """Return the status, headers and body of an error answer after which the connection closes."""
    status, headers, body = error_answer(error, shape, request_id=str(request_id))
    return (
        status,
        [*headers, (b"content-length", b"%d" % len(body)), (b"connection", b"close")],
        body,
    )


@lru_cache(maxsize=64)  # a gateway has few names
def _host_name(host: bytes) -> str | None:
    """Return the name of a Host header in lower case without its port; None if it is no name."""
    match = _HOST.fullmatch(host)
    return match[1].decode().lower() if match else None


def _is_plain(method: str, path: str) -> bool:
    """Return True if FastAPI serves this method and path."""
    pattern = _PLAIN_PATHS.get(method)
    return pattern is not None and pattern.fullmatch(path) is not None


def _hint(path: str) -> str:
    """Return the sentence that helps a caller of a path that is not offered: the usual errors
    first, then the endpoint to use instead, else the list of all.
    """
    return _base_url_hint(path) or instead_of(path) or f"Offered: {OFFERED}."


def _base_url_hint(path: str) -> str:
    """Return a hint for the usual errors in a client's settings: a base URL without /v1, with two,
    with a whole endpoint, or with the part that Anthropic's clients add. Empty if there is none.
    """
    if path.find(_MESSAGES, 1) > 0:
        return (
            f"Anthropic's clients add {_MESSAGES} themselves: your base_url should be this "
            "gateway's address alone."
        )
    if path.startswith("/v1/v1/"):
        return f"Your base_url ends in /v1 twice; {_shown(path.removeprefix('/v1'))} is meant."
    for endpoint in ("", *FORWARDING):
        versioned = f"/v1{path.removeprefix(endpoint)}"
        if path.startswith(endpoint) and _is_offered(versioned):
            return f"Your base_url should end in /v1, so that {_shown(versioned)} is asked for."
    return ""


def _is_offered(path: str) -> bool:
    """Return True if any method of this path is offered."""
    return path in FORWARDING or any(_is_plain(method, path) for method in _PLAIN_PATHS)


def _shown(path: str) -> str:
    """Return the printable beginning of a path, for an error message."""
    return "".join(letter for letter in path[:100] if letter.isprintable())
