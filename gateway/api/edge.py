"""The outermost layer: Host check, drain, dispatch, and an error in the caller's dialect for anything else."""

from __future__ import annotations

import asyncio
import re
import time
from dataclasses import dataclass, field
from functools import lru_cache

from gateway.api.errors import error_answer
from gateway.api.forward import Forwarder, Message, Receive, Scope, Send
from gateway.api.routes import ENDPOINTS, FORWARDING, OFFERED, Endpoint
from gateway.errors import InvalidRequest, NotSupported, Overloaded, RequestError, Unavailable

_HOST = re.compile(rb"(\[[0-9a-fA-F:.]+\]|[A-Za-z0-9._-]+)(:[0-9]{1,5})?")
_PLAIN_PATHS = re.compile(
    "|".join(
        re.sub(r"\{[a-z_]+\}", "[^/]+", endpoint.path)
        for endpoint in ENDPOINTS
        if endpoint.method == "GET" and not endpoint.is_metered
    )
    + "|/openapi.json"
)
_PLAIN_POSTS = frozenset(
    endpoint.path for endpoint in ENDPOINTS if endpoint.method == "POST" and not endpoint.is_metered
)


@dataclass(slots=True)
class Drain:
    """Whether new requests are still taken, and which are in flight."""

    is_draining: bool = False
    is_over: bool = False  # those still in flight get no more time
    asked_s: float | None = None  # when the stop was asked for, by the monotonic clock
    in_flight: set[asyncio.Task[object]] = field(default_factory=set)
    is_asked: asyncio.Event = field(default_factory=asyncio.Event)

    def ask(self) -> None:
        """Take nothing new from now on. Safe in a signal handler."""
        self.is_draining = True
        self.asked_s = self.asked_s or time.monotonic()

    async def run(self, drain_s: float) -> None:
        """Cut off what is still in flight `drain_s` after the stop was asked for; until cancelled."""
        await self.is_asked.wait()
        assert self.asked_s is not None
        await asyncio.sleep(self.asked_s + drain_s - time.monotonic())
        self.end()
        await asyncio.Event().wait()

    def end(self) -> None:
        """Cut off what is in flight: each stream ends with an error event, each attempt is settled."""
        self.is_over = True
        for task in self.in_flight:
            task.cancel()


@dataclass(frozen=True, slots=True, kw_only=True)
class Edge:
    """The ASGI application that the server runs. `plain` is FastAPI with everything but forwarding."""

    forward: Forwarder
    plain: object
    allowed_hosts: frozenset[str]
    max_in_flight: int
    metrics_address: str
    drain: Drain = field(default_factory=Drain)
    loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.get_running_loop)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Dispatch by the path as it was sent; nothing is decided from a reconstructed URL."""
        if scope["type"] != "http":
            await self.plain(scope, receive, send)  # type: ignore[operator]  # lifespan: FastAPI is an ASGI app
            return
        endpoint = FORWARDING.get(scope["path"])
        refusal = self._refusal(scope, endpoint)
        if refusal is not None:
            await _refuse(refusal, self._with_id(send))
            return
        if endpoint is None:
            await self.plain(scope, receive, self._with_id(send))  # type: ignore[operator]  # as above
            return
        task = asyncio.current_task(self.loop)  # to look for the loop is a system call before Python 3.12
        assert task is not None, "a server calls an application in a task"
        self.drain.in_flight.add(task)
        try:
            await self.forward(endpoint, scope, receive, send, task=task)
        finally:
            self.drain.in_flight.discard(task)

    def _with_id(self, send: Send) -> Send:
        """Every answer has an `x-request-id`, also those that no forwarding made."""
        header = (b"x-request-id", str(self.forward.new_id()).encode())

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], header]
            await send(message)

        return send_with_id

    def _refusal(self, scope: Scope, endpoint: Endpoint | None) -> RequestError | None:
        host = None
        for name, value in scope["headers"]:
            if name == b"host":
                host = _host_name(value)
                break
        if host is None or (self.allowed_hosts and host not in self.allowed_hosts):
            return InvalidRequest(
                "The Host header names a host this gateway does not answer to (TOLLGATE_ALLOWED_HOSTS)."
            )
        path, method = scope["path"], scope["method"]
        if endpoint is not None:
            if method != "POST":
                return NotSupported(f"{method} {path} is not offered; use POST. Offered: {OFFERED}.")
            if self.drain.is_draining:
                return Unavailable("This replica is shutting down. Try again; another one answers.", retry_after_s=1)
            if len(self.drain.in_flight) >= self.max_in_flight:
                return Overloaded("Too many requests are in flight here. Try again.", retry_after_s=1)
            return None
        if path == "/metrics":
            return NotSupported(f"Metrics are on a listener of their own: http://{self.metrics_address}/metrics")
        is_read = method in ("GET", "HEAD") and _PLAIN_PATHS.fullmatch(path)
        if not is_read and not (method == "POST" and path in _PLAIN_POSTS):
            return NotSupported(f"{method} {_shown(path)} is not offered. Offered: {OFFERED}.")
        return None


async def _refuse(error: RequestError, send: Send) -> None:
    status, headers, body = error_answer(error)
    headers += [(b"content-length", str(len(body)).encode()), (b"connection", b"close")]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


@lru_cache(maxsize=64)  # the few names that a gateway is called by
def _host_name(host: bytes) -> str | None:
    """The name in a Host header, without its port and in lower case; None where it is no name."""
    match = _HOST.fullmatch(host)
    return match[1].decode().lower() if match else None


def _shown(path: str) -> str:
    return "".join(letter for letter in path[:100] if letter.isprintable())
