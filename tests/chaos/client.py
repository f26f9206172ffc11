"""A caller that records everything: one connection a request, checked framing, and planned early
departures.

Our own and small, because it must know whether an answer ended properly (last chunk, `[DONE]`,
error event), and must leave after an exact byte or instant, by FIN or by RST.
"""

from __future__ import annotations

import asyncio
import json
import socket
import struct
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from httptools import HttpParserError, HttpResponseParser

from tests.fake_upstream.faults import Kind

NO_HEADERS: Mapping[str, str] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Leave:
    """When a caller goes: so many seconds after it asked, or once it has so many bytes of the
    body.
    """

    after_s: float | None = None
    after_bytes: int | None = None
    reset: bool = False


@dataclass(slots=True, kw_only=True)
class Call:
    """One request as its caller saw it.

    `ending`: `complete` (whole answer of status 200), `error_event` (a stream with its error),
    `truncated` (a clean end without either: SDKs take it for success), `error` (another status),
    `broken` (the connection died under it), `left` (the caller itself left), `no_answer` (nothing
    within the limit), `refused` (no replica accepted it).
    """

    index: int
    team: str
    route: str
    is_stream: bool
    port: int = 0
    refused: int = 0
    sent_s: float = 0.0
    first_s: float = 0.0
    ended_s: float = 0.0
    request_id: str = ""
    status: int = 0
    ending: str = "open"
    code: str = ""
    message: str = ""
    retry_after_s: float | None = None
    kind: str = "chat"
    counted: int | None = None  # the answer of `count_tokens`
    is_estimated: bool = False
    usage: dict[str, Any] | None = None
    body: bytearray = field(default_factory=bytearray, repr=False)

    @property
    def took_s(self) -> float:
        """Seconds from asking to the end."""
        return self.ended_s - self.sent_s


class _Exchange(asyncio.Protocol):
    """One connection with one request on it."""

    def __init__(self, call: Call, request: bytes, leave: Leave | None) -> None:
        self.call, self.request, self.leave = call, request, leave
        self.parser = HttpResponseParser(self)
        self.is_whole = False
        self.over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.transport: asyncio.Transport | None = None

    # ---- asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's is one in all but its class
        self.transport.write(self.request)
        if self.leave is not None and self.leave.after_s is not None:
            asyncio.get_running_loop().call_later(self.leave.after_s, self._go)

    def data_received(self, data: bytes) -> None:
        try:
            self.parser.feed_data(data)
        except HttpParserError:
            self._end("broken")

    def connection_lost(self, exc: Exception | None) -> None:
        self._end("broken")

    # ---- httptools

    def on_header(self, name: bytes, value: bytes) -> None:
        if name.lower() == b"x-request-id":
            self.call.request_id = value.decode()
        elif name.lower() == b"retry-after-ms":
            self.call.retry_after_s = int(value) / 1000
        elif name.lower() == b"x-tollgate-estimated":
            self.call.is_estimated = value == b"true"

    def on_headers_complete(self) -> None:
        self.call.status = self.parser.get_status_code()
        self.call.first_s = time.time()
        self._go_if_enough()

    def on_body(self, body: bytes) -> None:
        self.call.body += body
        self._go_if_enough()

    def on_message_complete(self) -> None:
        self.is_whole = True
        self._end("whole")

    # ---- endings

    def _go_if_enough(self) -> None:
        enough = self.leave.after_bytes if self.leave is not None else None
        if enough is not None and len(self.call.body) >= enough:
            self._go()

    def _go(self) -> None:
        if self.over.done():
            return
        assert self.transport is not None
        if self.leave is not None and self.leave.reset:
            linger = struct.pack("ii", 1, 0)
            self.transport.get_extra_info("socket").setsockopt(
                socket.SOL_SOCKET, socket.SO_LINGER, linger
            )
        self._end("left")

    def _end(self, ending: str) -> None:
        if not self.over.done():
            self.call.ending = ending
            self.over.set_result(None)
            if self.transport is not None:
                self.transport.abort()  # closes at once; RST only if lingering was set so


async def ask(
    call: Call,
    body: bytes,
    *,
    key: str,
    ports: list[int],
    limit_s: float,
    leave: Leave | None = None,
    path: str = "/v1/chat/completions",
    headers: Mapping[str, str] = NO_HEADERS,
) -> Call:
    """Ask the replicas in the order given until one takes the request, and see it to its end."""
    more = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    head = (
        f"POST {path} HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {key}\r\n{more}"
        "content-type: application/json\r\nconnection: close\r\ncontent-length: "
        f"{len(body)}\r\n\r\n"
    )
    loop = asyncio.get_running_loop()
    deadline_s = loop.time() + limit_s
    call.sent_s = time.time()
    while True:
        call.port = ports[call.refused % len(ports)]
        try:
            _, exchange = await loop.create_connection(
                lambda: _Exchange(call, head.encode() + body, leave), "127.0.0.1", call.port
            )
            break
        except (
            ConnectionError
        ):  # refused, or killed with us in its backlog: nothing was read of this request
            call.refused += 1
            if loop.time() > deadline_s:
                call.ending = "refused"
                call.ended_s = time.time()
                return call
            await asyncio.sleep(0.02)
    try:
        async with asyncio.timeout_at(deadline_s):
            await exchange.over
    except TimeoutError:
        exchange._end("no_answer")
    call.ended_s = time.time()
    _judge(call)
    return call


def _judge(call: Call) -> None:
    """Classify a complete answer, and extract its token figures."""
    if call.is_stream and call.status == 200:
        _read_stream(call)
    elif call.ending == "whole":
        _read_plain(call)


def _read_plain(call: Call) -> None:
    try:
        answer = json.loads(call.body)
    except ValueError:
        call.ending = "truncated"
        return
    if call.status != 200 or answer.get("error"):  # a plain response has the member, null
        error = answer.get("error") or {}
        call.ending, call.code, call.message = (
            "error",
            str(error.get("code")),
            str(error.get("message")),
        )
        return
    if call.kind == Kind.COUNT:
        call.counted = answer.get("input_tokens")
    call.ending, call.usage = "complete", _whole_prompt(answer.get("usage"))


def _whole_prompt(usage: dict[str, Any] | None) -> dict[str, Any] | None:
    """Return a usage whose input is the whole prompt; that of messages leaves out what was
    cached.
    """
    names = ("cache_read_input_tokens", "cache_creation_input_tokens")
    if usage is None or "input_tokens" not in usage or not any(name in usage for name in names):
        return usage
    cached = sum(usage.get(name) or 0 for name in names)
    return {**usage, "input_tokens": usage["input_tokens"] + cached}


def _read_stream(call: Call) -> None:
    """Read whole events only: bytes after the last empty line were never finished."""
    events = bytes(call.body).split(b"\n\n")[:-1]
    is_done, error = False, None
    for event in events:
        data = event.rpartition(b"data: ")[2]
        if data == b"[DONE]":
            is_done = True
            continue
        try:
            chunk = json.loads(data)
        except ValueError:
            continue
        kind = chunk.get("type", "")  # of `/v1/responses`, which has no `[DONE]`
        is_done = is_done or kind in (
            "response.completed",
            "response.incomplete",
            "response.failed",
            "message_stop",
        )
        error = chunk.get("error") or (chunk if kind == "error" else error)
        usage = chunk.get("usage") or (chunk.get("response") or {}).get("usage")
        call.usage = _whole_prompt(usage) or call.usage
    if call.ending == "whole" or (call.ending in ("broken", "left") and is_done):
        if error is not None:
            call.ending, call.code = "error_event", str(error.get("code"))
        else:
            call.ending = "complete" if is_done else "truncated"
