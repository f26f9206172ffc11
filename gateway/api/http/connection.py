"""One socket of a caller: requests one after the other, back-pressure and deadlines."""

from __future__ import annotations

import asyncio
from collections import deque
from math import inf
from typing import Any, Protocol, cast
from urllib.parse import unquote

import httptools
from uvicorn.protocols.http.flow_control import FlowControl

from gateway.api.errors import error_answer
from gateway.api.http.deadlines import NEVER
from gateway.api.http.exchange import STATUS_LINES, CallerExchange
from gateway.api.http.limits import HttpLimits
from gateway.api.http.parser import Fault, RequestHead, RequestParser
from gateway.api.http.plain import PlainExchange
from gateway.api.http.table import ConnectionTable
from gateway.api.routes import FORWARDING
from gateway.errors import InvalidRequest, RequestError, RequestTimeout

MOST_PIPELINED = (
    16  # requests that wait for the answers before theirs; no client of today sends one early
)
RATE_OVER_S = (
    4.0  # a body's rate is looked at over so long, so that one lost packet is no stalled body
)
LINGER_S = 2.0  # for a caller to read a refusal before its unread request resets the connection
_ENDPOINTS = {path.encode(): endpoint for path, endpoint in FORWARDING.items()}


class App(Protocol):
    """What answers: the edge."""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answer a request to any path but the forwarding ones, as ASGI says."""

    async def forward_one(self, exchange: CallerExchange) -> None:
        """Answer a request to a forwarding endpoint."""

    def new_request_id(self) -> bytes:
        """An `x-request-id` for an answer that is made here."""


class Connection(asyncio.Protocol):
    """Reads requests, has them answered in their order, and ends what takes too long.

    `_reading` is the request whose body comes in, `_answering` the one under way. They differ where
    a caller sends the next request before it has its answer, and where an answer came before the
    whole request.
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
        "_table",
        "_waiting",
        "client",
        "flow",
        "loop",
        "server",
        "slot",
        "transport",
    )

    def __init__(self, app: App, table: ConnectionTable) -> None:
        self._app, self._table = app, table
        self._limits: HttpLimits = table.limits
        self.loop = asyncio.get_running_loop()
        self.slot = NEVER
        self._parser: RequestParser | None = RequestParser(self, table.limits)
        self._reading: CallerExchange | PlainExchange | None = None
        self._answering: CallerExchange | PlainExchange | None = None
        self._waiting: deque[CallerExchange | PlainExchange] = deque()
        self._refusal: RequestError | None = None
        # Moments in the loop's time; infinity where the state does not hold.
        self._head_from_s = self._idle_from_s = self._body_from_s = self._paused_from_s = inf
        self._closes_by_s = inf
        self._rate_from_s, self._rate_bytes = 0.0, 0
        self.transport: asyncio.Transport
        self.flow: FlowControl

    # ---- called by the event loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.flow = FlowControl(self.transport)
        self.server = _address(transport.get_extra_info("sockname"))
        self.client = _address(transport.get_extra_info("peername"))
        self._head_from_s = self.loop.time()
        self._table.deadlines.watch(self, self._head_from_s + self._limits.head_s)
        self._table.admit(self)

    def data_received(self, data: bytes) -> None:
        parser = self._parser
        if parser is None:
            return  # what comes behind the last request is dropped
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
        """Close: a caller that only stopped sending cannot be told from one that left."""
        self._close_by(self.loop.time() + self._limits.write_s)

    def connection_lost(self, broken: Exception | None) -> None:
        """Tell the request under way, not the last one that came: that one may not have begun."""
        self._table.forget(self)
        self._close_parser()
        under_way = [*([] if self._answering is None else [self._answering]), *self._waiting]
        self._answering = self._reading = None
        self._waiting.clear()
        self.flow.resume_writing()
        for one in under_way:
            one.leave()

    def pause_writing(self) -> None:
        self.flow.pause_writing()
        self._paused_from_s = self.loop.time()
        self._table.deadlines.watch(self, self._paused_from_s + self._limits.write_s)

    def resume_writing(self) -> None:
        self._paused_from_s = inf
        self.flow.resume_writing()

    # ---- called by the parser

    def on_head(self, head: RequestHead) -> bool:
        """Begin with a request, or let it wait for those before it."""
        if len(self._waiting) >= MOST_PIPELINED:
            self._waiting[-1].keeps_alive = False
            return False
        self._table.note_served(self)
        self._head_from_s = self._idle_from_s = inf
        self._reading = one = self._exchange(head)
        if self._answering is None:
            self._begin(one)
        else:
            self.pause_reading()
            self._waiting.append(one)
        return True

    def on_body(self, piece: bytes) -> None:
        """A part of the body of the request that is read."""
        assert self._reading is not None, "a body follows a head"
        self._reading.take(piece)

    def on_end(self) -> None:
        """The request that is read is whole."""
        one, self._reading = self._reading, None
        assert one is not None, "an end follows a head"
        one.end()
        self._body_from_s = inf
        if one.is_answered and self._answering is None:
            self._rest()

    # ---- for exchanges

    def write(self, data: bytes) -> None:
        """Hand bytes to the socket."""
        self.transport.write(data)

    def pause_reading(self) -> None:
        """Leave the socket alone: who answers is slower than the caller."""
        self.flow.pause_reading()

    def resume_reading(self) -> None:
        """Read on, unless other answers come first."""
        if self.flow.read_paused and not self._waiting:
            self.flow.resume_reading()
            self._time_body()

    def answered(self, one: CallerExchange | PlainExchange) -> None:
        """The answer is whole: go on with the next request, or wait for one."""
        self._answering = None
        if not one.keeps_alive or (self._refusal is not None and not self._waiting):
            self._close(refusal=self._refusal if one.keeps_alive else None)
        elif self._waiting:
            self._begin(self._waiting.popleft())
        else:
            if one.is_whole:
                self._rest()
            self.resume_reading()

    def cut(self) -> None:
        """The answer under way will not be whole: what is written of it goes out, and the
        connection ends.
        """
        if self._answering is not None:
            self._answering = None
            self._close_parser()
            self.transport.close()
            self._close_by(self.loop.time() + self._limits.write_s)

    def shutdown(self) -> None:
        """uvicorn's word for: the server is stopping. What is under way may end."""
        if self._answering is None:
            self.transport.close()
            self._close_by(self.loop.time() + LINGER_S)
        else:
            (self._waiting[-1] if self._waiting else self._answering).keeps_alive = False

    # ---- deadlines

    def check(self, now_s: float) -> float:
        """End what is late, and return when to look again."""
        limits = self._limits
        if now_s >= self._closes_by_s:
            self.abort()  # it was closed, and the caller still does not take what is left
            return inf
        again_s = self._closes_by_s
        if self._paused_from_s < inf:
            if now_s >= self._paused_from_s + limits.write_s:
                self._table.count_closed("write_late")
                self.abort()
                return inf
            again_s = min(again_s, self._paused_from_s + limits.write_s)
        if self.flow.read_paused or (self._answering is not None and self._reading is None):
            # We do not read: the caller is not late. Or nothing is to come yet.
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
        by_s = self._head_from_s + self._limits.head_s
        if now_s < by_s:
            return min(again_s, by_s)
        self._table.count_closed("head_late")
        if self._parser is None or not self._parser.has_begun_head:
            self.abort()  # it has asked nothing, so there is nothing to answer
            return inf
        self._stop_reading(
            RequestTimeout(
                f"The request's headers did not come within {self._limits.head_s:g} s, so the "
                "connection ends. "
                "Send the request again in one piece."
            )
        )
        return min(again_s, self._closes_by_s)

    def _check_body(self, now_s: float, again_s: float) -> float:
        limits, one = self._limits, self._reading
        assert one is not None, "a body is read"
        whole_by_s = self._body_from_s + limits.body_s
        rated_from_s = self._body_from_s + limits.body_grace_s
        is_late = now_s >= whole_by_s
        if now_s < rated_from_s:
            rated_at_s = rated_from_s
        else:
            if self._rate_from_s < rated_from_s:  # the first look after the grace
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
                f"The request's body came slower than {limits.body_bytes_per_s:,} bytes per "
                "second or was not whole "
                f"within {limits.body_s:g} s. Send it again on a better connection, or send less."
            )
        )
        return min(again_s, self._closes_by_s)

    def _time_body(self) -> None:
        """Count a body's time from now."""
        if self._reading is not None:
            self._body_from_s = self.loop.time()
            self._rate_from_s = 0.0
            self._table.deadlines.watch(self, self._body_from_s + self._limits.body_grace_s)

    # ---- ends

    def abort(self) -> None:
        """Close the socket at once. What answers the caller hears that it is gone."""
        self.transport.abort()
        self.connection_lost(None)  # the loop says so later: nothing may be written until then

    def _stop_reading(self, error: RequestError | None) -> None:
        """Read no further request.

        `error` is told the caller after the answers that are still to come.
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
        if one.is_answered:  # the caller has its answer, and never sent the rest of what it asked
            self.abort()
            return
        one.keeps_alive = False
        if one.fail(error) or one.has_begun:
            return
        if (
            one is not self._answering
        ):  # it waits for its turn: drop it, its refusal comes in its place
            self._waiting.remove(one)
            self._refusal = error
        elif isinstance(one, PlainExchange):
            self._answering = None
            self._close(refusal=error)

    def _close(self, *, refusal: RequestError | None = None) -> None:
        """Close when all is sent; a caller that may still be sending gets time to read the answer
        first.
        """
        is_whole = self._reading is None and refusal is None and self._parser is not None
        self._close_parser()
        self._idle_from_s = self._head_from_s = inf
        if refusal is not None:
            self._table.count_closed("refused")
            self.transport.write(self._refused(refusal))
        if is_whole or self.transport.is_closing():
            self.transport.close()
            self._close_by(self.loop.time() + self._limits.write_s)
        else:
            self._reading = None
            self.flow.resume_reading()  # what comes is dropped
            self.transport.write_eof()
            self._close_by(self.loop.time() + LINGER_S)

    def _close_by(self, at_s: float) -> None:
        """Give a connection that is closed so long to take what is left."""
        self._closes_by_s = min(self._closes_by_s, at_s)
        self._table.deadlines.watch(self, self._closes_by_s)

    def _refused(self, error: RequestError) -> bytes:
        status, headers, body = error_answer(error)
        headers += [
            (b"x-request-id", self._app.new_request_id()),
            (b"content-length", b"%d" % len(body)),
            (b"connection", b"close"),
        ]
        return b"\r\n".join([STATUS_LINES[status], *map(b": ".join, headers), b"", body])

    def _close_parser(self) -> None:
        parser, self._parser = self._parser, None
        if parser is not None:
            parser.close()

    # ---- requests

    def _exchange(self, head: RequestHead) -> CallerExchange | PlainExchange:
        """Raises `InvalidRequest`, which stops the parser, for a target that is no address."""
        target = head.target
        endpoint = _ENDPOINTS.get(target)
        if endpoint is None:
            path, query = _path_of(head)
            endpoint = FORWARDING.get(_decoded(path))
            if endpoint is None or head.method != b"POST":
                return PlainExchange(self, self._app, head, path=path, query=query)
        elif head.method != b"POST":
            return PlainExchange(self, self._app, head, path=target, query=b"")
        return CallerExchange(self, endpoint, head)

    def _begin(self, one: CallerExchange | PlainExchange) -> None:
        self._answering = one
        if isinstance(one, PlainExchange):
            self._table.keep(self.loop.create_task(one.run()))
        else:
            self.loop.create_task(self._forward(one))  # the edge keeps it

    async def _forward(self, one: CallerExchange) -> None:
        try:
            await self._app.forward_one(one)
        finally:
            if not one.is_answered:
                self.cut()

    def _rest(self) -> None:
        """Wait for the next request."""
        self._idle_from_s = self.loop.time()
        if self._head_from_s < inf:  # it has begun to come before its turn
            self._head_from_s = self._idle_from_s
        self._table.deadlines.watch(self, self._idle_from_s + self._limits.keep_alive_s)


def _path_of(head: RequestHead) -> tuple[bytes, bytes]:
    """Path and query of a target that is written in another way than ours.

    Raises `InvalidRequest`.
    """
    try:
        url = httptools.parse_url(head.target)
    except httptools.HttpParserInvalidURLError:
        raise InvalidRequest(
            "The request's target is no address. Send a path, as in POST /v1/responses."
        ) from None
    if url.host is not None:  # RFC 9112 §3.2.2: it wins over Host, so the two may not differ
        authority = url.host + (b":%d" % url.port if url.port else b"")
        hosts = [value.strip().lower() for name, value in head.fields if name == b"host"]
        if hosts != [authority.lower()]:
            raise InvalidRequest(
                "The request's target names another host than its Host header. Send one host."
            )
    return url.path or b"/", url.query or b""


def _decoded(path: bytes) -> str:
    return unquote(path.decode("ascii"))


def _address(name: Any) -> tuple[str, int] | None:
    """Host and port of a socket's name, without what IPv6 adds."""
    return (str(name[0]), int(name[1])) if isinstance(name, tuple) else None
