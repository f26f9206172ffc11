"""Handles one socket of a caller: parses its requests, answers them in order with back-pressure,
and ends those that miss a deadline.
"""

from __future__ import annotations

import asyncio
from collections import deque
from math import inf
from typing import Any, Protocol, cast
from urllib.parse import unquote

import httptools
from uvicorn.protocols.http.flow_control import FlowControl

from gateway.api.errors import error_answer
from gateway.api.http.app_exchange import AppExchange
from gateway.api.http.caller_exchange import STATUS_LINES, CallerExchange
from gateway.api.http.caller_socket import CallerSocket
from gateway.api.http.connection_table import ConnectionTable
from gateway.api.http.deadlines import NEVER
from gateway.api.http.limits import HttpLimits
from gateway.api.http.parser import Fault, RequestHead, RequestParser
from gateway.api.routes import FORWARDING
from gateway.errors import InvalidRequest, RequestError, RequestTimeout

MOST_PIPELINED = 16  # requests that wait for earlier answers; current clients do not pipeline
RATE_OVER_S = (
    # seconds over which a body's rate is measured, so that one lost packet does not count as a
    # stall
    4.0
)
# seconds for a caller to read a refusal before its unread request resets the connection
LINGER_S = 2.0
_ENDPOINTS = {path.encode(): endpoint for path, endpoint in FORWARDING.items()}


class App(Protocol):
    """The application behind the HTTP server: the edge."""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answer a request to any path except the forwarding ones, as ASGI."""

    async def forward_one(self, exchange: CallerExchange) -> None:
        """Answer a request to a forwarding endpoint."""

    def new_request_id(self) -> bytes:
        """Return an `x-request-id` for an answer that the connection itself makes."""


class Connection(asyncio.Protocol):
    """One socket of a caller: it reads requests, answers them in order, and ends those that take
    too long.

    `_reading` is the request whose body arrives, `_answering` the one under way. They differ if a
    caller sends its next request before it has the answer, or if an answer came before the complete
    request.
    """

    __slots__ = (
        "_answering",
        "_app",
        "_body_from_s",
        "_closes_by_s",
        "_head_from_s",
        "_idle_from_s",
        "_limits",
        "_parser",
        "_paused_from_s",
        "_rate_bytes",
        "_rate_from_s",
        "_reading",
        "_refusal",
        "_socket",
        "_table",
        "_waiting",
        "flow",
        "loop",
        "slot",
        "transport",
    )

    def __init__(self, app: App, table: ConnectionTable) -> None:
        """Make a connection without a socket yet, with a parser of its own."""
        self._app, self._table = app, table
        self._limits: HttpLimits = table.limits
        self.loop = asyncio.get_running_loop()
        self.slot = NEVER
        self._parser: RequestParser | None = RequestParser(self, table.limits)
        self._reading: CallerExchange | AppExchange | None = None
        self._answering: CallerExchange | AppExchange | None = None
        self._waiting: deque[CallerExchange | AppExchange] = deque()
        self._refusal: RequestError | None = None
        # Times of the event loop; infinity if the state does not apply.
        self._head_from_s = self._idle_from_s = self._body_from_s = self._paused_from_s = inf
        self._closes_by_s = inf
        self._rate_from_s, self._rate_bytes = 0.0, 0
        self.transport: asyncio.Transport
        self.flow: FlowControl
        self._socket: CallerSocket

    # ---- called by the event loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take an accepted socket: start the deadline of its first head, and add it to the
        connection table.
        """
        self.transport = cast(asyncio.Transport, transport)
        self.flow = FlowControl(self.transport)
        self._socket = CallerSocket(
            transport=self.transport,
            flow=self.flow,
            server=_address(transport.get_extra_info("sockname")),
            client=_address(transport.get_extra_info("peername")),
        )
        self._head_from_s = self.loop.time()
        self._table.deadlines.watch(self, self._head_from_s + self._limits.head_s)
        self._table.admit(self)

    def data_received(self, data: bytes) -> None:
        """Parse received bytes into requests; answer malformed ones with an error and read no
        further.
        """
        parser = self._parser
        if parser is None:
            return  # bytes behind the last request are dropped
        try:
            parser.feed(data)
        except Fault as fault:
            self._stop_reading(fault.error)
            return
        if self._reading is not None:
            if self._body_from_s == inf:
                self._time_body()
        elif parser.has_begun_head and self._head_from_s == inf:
            self._head_from_s = self.loop.time()
            self._table.deadlines.watch(self, self._head_from_s + self._limits.head_s)

    def eof_received(self) -> None:
        """Close the socket at the caller's end of file: one that only stopped sending looks like
        one that left.
        """
        self._close_by(self.loop.time() + self._limits.write_s)

    def connection_lost(self, broken: Exception | None) -> None:
        """Notify every unanswered request of this closed socket that its caller left, and drop the
        connection from the table.
        """
        self._table.forget(self)
        self._close_parser()
        under_way = [*([] if self._answering is None else [self._answering]), *self._waiting]
        self._answering = self._reading = None
        self._waiting.clear()
        self.flow.resume_writing()
        for one in under_way:
            one.note_caller_left()

    def pause_writing(self) -> None:
        """Make answers wait while the socket's write buffer is full, and start the deadline for a
        caller that does not read.
        """
        self.flow.pause_writing()
        self._paused_from_s = self.loop.time()
        self._table.deadlines.watch(self, self._paused_from_s + self._limits.write_s)

    def resume_writing(self) -> None:
        """Let answers be written again after the socket's buffer has emptied; the deadline for the
        caller to read ends.
        """
        self._paused_from_s = inf
        self.flow.resume_writing()

    # ---- called by the parser

    def on_head(self, head: RequestHead) -> bool:
        """Begin the request of a parsed head, or queue it behind earlier ones; return False if too
        many are queued.
        """
        if len(self._waiting) >= MOST_PIPELINED:
            self._waiting[-1].keeps_alive = False
            return False
        self._table.note_served(self)
        self._head_from_s = self._idle_from_s = inf
        self._reading = one = self._new_exchange(head)
        if self._table.is_crowded:
            one.keeps_alive = False
        if self._answering is None:
            self._start_answering(one)
        else:
            self.flow.pause_reading()
            self._waiting.append(one)
        return True

    def on_body(self, piece: bytes) -> None:
        """Pass a part of a request body to the request that is being received."""
        assert self._reading is not None, "a body follows a head"
        self._reading.add_to_body(piece)

    def on_end(self) -> None:
        """Mark the request that is being received as complete."""
        one, self._reading = self._reading, None
        assert one is not None, "an end follows a head"
        one.end_body()
        self._body_from_s = inf
        if one.is_answered and self._answering is None:
            self._await_next_request()

    # ---- for exchanges

    def resume_reading(self) -> None:
        """Read from the socket again after a pause, unless requests are queued that must be
        answered first.
        """
        if self.flow.read_paused and not self._waiting:
            self.flow.resume_reading()
            self._time_body()

    def answered(self, one: CallerExchange | AppExchange) -> None:
        """Begin the next queued request, or wait for one, or close, after a complete answer."""
        self._answering = None
        if not one.keeps_alive or (self._refusal is not None and not self._waiting):
            self._close(refusal=self._refusal if one.keeps_alive else None)
        elif self._waiting:
            self._start_answering(self._waiting.popleft())
        else:
            if one.is_whole:
                self._await_next_request()
            self.resume_reading()

    def cut(self) -> None:
        """Close the connection after the written part of an incomplete answer."""
        if self._answering is not None:
            self._answering = None
            self._close_parser()
            self.transport.close()
            self._close_by(self.loop.time() + self._limits.write_s)

    def shutdown(self) -> None:
        """Stop the connection after its requests under way. The name is uvicorn's."""
        if self._answering is None:
            self.transport.close()
            self._close_by(self.loop.time() + LINGER_S)
        else:
            (self._waiting[-1] if self._waiting else self._answering).keeps_alive = False

    # ---- deadlines

    def check(self, now_s: float) -> float:
        """End a late head, body, answer or idle wait, and return the time of the next check."""
        limits = self._limits
        if now_s >= self._closes_by_s:
            self.abort()  # it was closed, and the caller still does not take the rest
            return inf
        again_s = self._closes_by_s
        if self._paused_from_s < inf:
            if now_s >= self._paused_from_s + limits.write_s:
                self._table.count_closed("write_late")
                self.abort()
                return inf
            again_s = min(again_s, self._paused_from_s + limits.write_s)
        if self.flow.read_paused or (self._answering is not None and self._reading is None):
            # Reading is paused, so the caller is not late; or no bytes are expected yet.
            if self._head_from_s < inf:
                self._head_from_s = now_s
                again_s = min(again_s, now_s + limits.head_s)
            self._time_body()
            return min(again_s, self._body_from_s + limits.body_grace_s)
        if self._head_from_s < inf:
            return self._check_head(now_s, again_s)
        if self._reading is not None:
            return self._check_body(now_s, again_s)
        if now_s >= self._idle_from_s + limits.keep_alive_s:
            self.abort()
            return inf
        return min(again_s, self._idle_from_s + limits.keep_alive_s)

    def _check_head(self, now_s: float, again_s: float) -> float:
        """End a request whose head is late; return the loop time of the next check, `again_s` at
        the latest.
        """
        by_s = self._head_from_s + self._limits.head_s
        if now_s < by_s:
            return min(again_s, by_s)
        self._table.count_closed("head_late")
        if self._parser is None or not self._parser.has_begun_head:
            self.abort()  # no request was sent, so there is no answer to send
            return inf
        self._stop_reading(
            RequestTimeout(
                f"The request's headers did not come within {self._limits.head_s:g} s, so the "
                "connection ends. Send the request again in one piece."
            )
        )
        return min(again_s, self._closes_by_s)

    def _check_body(self, now_s: float, again_s: float) -> float:
        """End a request whose body is late or too slow; return the loop time of the next check."""
        limits, one = self._limits, self._reading
        assert one is not None, "a body is read"
        whole_by_s = self._body_from_s + limits.body_s
        rated_from_s = self._body_from_s + limits.body_grace_s
        is_late = now_s >= whole_by_s
        if now_s < rated_from_s:
            rated_at_s = rated_from_s
        else:
            if self._rate_from_s < rated_from_s:  # the first check after the grace period
                self._rate_from_s, self._rate_bytes = now_s, one.received_bytes
            if now_s >= self._rate_from_s + RATE_OVER_S:
                came = one.received_bytes - self._rate_bytes
                is_late = is_late or came < limits.body_bytes_per_s * (now_s - self._rate_from_s)
                self._rate_from_s, self._rate_bytes = now_s, one.received_bytes
            rated_at_s = self._rate_from_s + RATE_OVER_S
        if not is_late:
            return min(again_s, rated_at_s, whole_by_s)
        self._table.count_closed("body_late")
        self._stop_reading(
            RequestTimeout(
                f"The request's body came slower than {limits.body_bytes_per_s:,} bytes per second "
                f"or was not whole within {limits.body_s:g} s. Send it again on a better "
                "connection, or send less."
            )
        )
        return min(again_s, self._closes_by_s)

    def _time_body(self) -> None:
        """Restart the deadlines of the request body that is being received, for example after a
        pause of reading.
        """
        if self._reading is not None:
            self._body_from_s = self.loop.time()
            self._rate_from_s = 0.0
            self._table.deadlines.watch(self, self._body_from_s + self._limits.body_grace_s)

    # ---- ends

    def abort(self) -> None:
        """Close the socket at once. The request under way learns that its caller left."""
        self.transport.abort()
        self.connection_lost(None)  # the loop calls it later, and no write may happen before

    def _stop_reading(self, error: RequestError | None) -> None:
        """Read no further request from this connection.

        The caller gets `error` after the answers that are still to come.
        """
        self._close_parser()
        one, self._reading = self._reading, None
        self._head_from_s = self._body_from_s = inf
        if error is None:
            return
        if one is None:
            if self._answering is None:
                self._close(refusal=error)
            else:
                self._refusal = error
            return
        if one.is_answered:  # the caller has its answer, and never sent the rest of its request
            self.abort()
            return
        one.keeps_alive = False
        if one.fail_body(error) or one.has_begun:
            return
        if one is not self._answering:  # it is queued: drop it; its refusal takes its place
            self._waiting.remove(one)
            self._refusal = error
        elif isinstance(one, AppExchange):
            self._answering = None
            self._close(refusal=error)

    def _close(self, *, refusal: RequestError | None = None) -> None:
        """Close the socket after everything is sent; a caller that may still be sending gets time
        to read the answer.
        """
        is_whole = self._reading is None and refusal is None and self._parser is not None
        self._close_parser()
        self._idle_from_s = self._head_from_s = inf
        if refusal is not None:
            self._table.count_closed("refused")
            self.transport.write(self._refusal_bytes(refusal))
        if is_whole or self.transport.is_closing():
            self.transport.close()
            self._close_by(self.loop.time() + self._limits.write_s)
        else:
            self._reading = None
            self.flow.resume_reading()  # further bytes are dropped
            self.transport.write_eof()
            self._close_by(self.loop.time() + LINGER_S)

    def _close_by(self, at_s: float) -> None:
        """Give a closing socket until the loop time `at_s` to take the remaining bytes."""
        self._closes_by_s = min(self._closes_by_s, at_s)
        self._table.deadlines.watch(self, self._closes_by_s)

    def _refusal_bytes(self, error: RequestError) -> bytes:
        """Return the bytes of a complete error response that closes the connection."""
        status, headers, body = error_answer(error)
        headers += [
            (b"x-request-id", self._app.new_request_id()),
            (b"content-length", b"%d" % len(body)),
            (b"connection", b"close"),
        ]
        return b"\r\n".join([STATUS_LINES[status], *map(b": ".join, headers), b"", body])

    def _close_parser(self) -> None:
        """Drop the parser, so that no further request is read from this connection."""
        parser, self._parser = self._parser, None
        if parser is not None:
            parser.close()

    # ---- requests

    def _new_exchange(self, head: RequestHead) -> CallerExchange | AppExchange:
        """Make the exchange for a parsed request head: a forwarded one, or one for FastAPI.

        Raises `InvalidRequest`, which stops the parser, if the target is no address.
        """
        target = head.target
        endpoint = _ENDPOINTS.get(target)
        if endpoint is None:
            path, query = _path_of(head)
            endpoint = FORWARDING.get(_decoded(path))
            if endpoint is None or head.method != b"POST":
                return self._app_exchange(head, path, query)
        elif head.method != b"POST":
            return self._app_exchange(head, target, b"")
        return CallerExchange(
            endpoint,
            head,
            self._socket,
            on_answered=self.answered,
            resume_reading=self.resume_reading,
        )

    def _app_exchange(self, head: RequestHead, path: bytes, query: bytes) -> AppExchange:
        """Make the exchange for a request that is not forwarded: FastAPI or the edge answers it."""
        return AppExchange(
            self._app,
            head,
            self._socket,
            path=path,
            query=query,
            on_answered=self.answered,
            cut=self.cut,
        )

    def _start_answering(self, one: CallerExchange | AppExchange) -> None:
        """Start the task that answers this request."""
        self._answering = one
        if isinstance(one, AppExchange):
            self._table.keep(self.loop.create_task(one.run()))
        else:
            self.loop.create_task(self._forward(one))  # the edge keeps a reference

    async def _forward(self, one: CallerExchange) -> None:
        """Let the edge answer a forwarded request; cut the connection if the answer stays
        incomplete.
        """
        try:
            await self._app.forward_one(one)
        finally:
            if not one.is_answered:
                self.cut()

    def _await_next_request(self) -> None:
        """Start the wait for the connection's next request."""
        self._idle_from_s = self.loop.time()
        if self._head_from_s < inf:  # its head began before its turn
            self._head_from_s = self._idle_from_s
        self._table.deadlines.watch(self, self._idle_from_s + self._limits.keep_alive_s)


def _path_of(head: RequestHead) -> tuple[bytes, bytes]:
    """Return path and query of a request target that is not a plain path.

    Raises `InvalidRequest`.
    """
    try:
        url = httptools.parse_url(head.target)
    except httptools.HttpParserInvalidURLError:
        raise InvalidRequest(
            "The request's target is no address. Send a path, as in POST /v1/responses."
        ) from None
    if url.host is not None:  # RFC 9112 §3.2.2: it overrides Host, so the two must agree
        authority = url.host + (b":%d" % url.port if url.port else b"")
        hosts = [value.strip().lower() for name, value in head.fields if name == b"host"]
        if hosts != [authority.lower()]:
            raise InvalidRequest(
                "The request's target names another host than its Host header. Send one host."
            )
    return url.path or b"/", url.query or b""


def _decoded(path: bytes) -> str:
    """Return a request's path without percent-encoding."""
    return unquote(path.decode("ascii"))


def _address(name: Any) -> tuple[str, int] | None:
    """Return host and port of a socket's address, without IPv6's extra fields."""
    return (str(name[0]), int(name[1])) if isinstance(name, tuple) else None
