"""The server: requests in, attempts out, and the ways to read its ledger."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from tests.fake_upstream.dialects.asked import read_request
from tests.fake_upstream.exchange import Exchange, play_transcript
from tests.fake_upstream.faults import Behaviour, Fault
from tests.fake_upstream.ledger import CLIENT_GONE, Entry, Ledger
from tests.fake_upstream.line import Line, whole
from tests.fake_upstream.openai import CREATED
from tests.fake_upstream.plans import index_of

JSON = "content-type: application/json\r\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One request as it arrived; header names are in lower case."""

    method: str
    path: str
    headers: list[list[str]]
    body: bytes

    def header(self, name: str) -> str:
        """Return a header's value, empty if there is none."""
        return next((value for key, value in self.headers if key == name), "")


Choose = Callable[[Request, dict[str, Any]], Behaviour]


@dataclass(slots=True)
class Upstream:
    """The server. `busy` counts attempts in progress, `open_sockets` connections."""

    choose: Choose
    ledger: Ledger
    busy: int = 0
    open_sockets: int = 0
    arrived: int = 0
    followed: int = 0  # redirects

    async def serve(self, line: Line) -> None:
        """Serve one connection."""
        self.open_sockets += 1
        try:
            while await self._one(line):
                pass
        finally:
            self.open_sockets -= 1

    async def _one(self, line: Line) -> bool:
        """Serve one request; return False if the connection is over."""
        request = await _read(line)
        if request.method == "GET":
            status, value = self._page(request.path)
            await line.write(whole(status, json.dumps(value).encode(), extra=JSON))
            return request.header("connection").lower() != "close"
        self.busy += 1
        self.arrived += 1
        try:
            asked = read_request(request.path, json.loads(request.body))
            return await self._attempt(request, asked, line)
        finally:
            self.busy -= 1

    def _page(self, path: str) -> tuple[int, dict[str, Any]]:
        if path == "/ledger":
            entries = [entry.members() for entry in self.ledger.entries]
            return 200, {"entries": entries, "followed": self.followed}
        if path == "/stats":
            names = {"busy": self.busy, "arrived": self.arrived}
            return 200, {**names, "open_sockets": self.open_sockets - 1}
        if path == "/elsewhere":
            self.followed += 1
            return 200, {"you": "followed a redirect"}
        if path == "/v1/models":
            model = {"id": "fake", "object": "model", "created": CREATED}
            return 200, {"object": "list", "data": [model]}
        return 404, {"error": {"message": "the fake has no such page"}}

    async def _attempt(self, request: Request, asked: dict[str, Any], line: Line) -> bool:
        if request.path == "/elsewhere":
            self.followed += 1
        behaviour = self.choose(request, asked)
        entry = self._entry(request, asked, behaviour)
        if entry.model.startswith("golden-"):
            entry.index = index_of(asked)
            entry.fault = Fault.CUT if entry.model.endswith(":cut") else Fault.NONE
        await self.ledger.begin(entry)
        exchange = Exchange(asked, behaviour, entry, line)
        try:
            if entry.model.startswith("golden-"):
                return await play_transcript(entry, line, exchange.wording.stream_type)
            return await exchange.run()
        finally:
            entry.ended_s = time.time()
            if entry.ending == CLIENT_GONE and behaviour.goes_on:
                exchange.generate_rest()
            self.ledger.end(entry)

    def _entry(self, request: Request, asked: dict[str, Any], behaviour: Behaviour) -> Entry:
        work, keeps = behaviour.work, self.ledger.keeps_requests
        return Entry(
            number=self.arrived,
            request_id=request.header("x-request-id"),
            arrived_s=time.time(),
            path=request.path,
            headers=request.headers if keeps else [],
            body=request.body.decode("utf-8", "replace") if keeps else "",
            index=behaviour.index,
            kind=work.kind.value,
            model=str(asked.get("model", "")),
            fault=behaviour.fault.value,
            is_stream=bool(asked.get("stream")),
            prompts=work.prompts,
            input_tokens=work.input_tokens,
            cached_tokens=work.cached_tokens,
            cache_write_tokens=work.cache_write_tokens,
            parts=work.parts.booked(),
        )


async def _read(line: Line) -> Request:
    """Read the next request. Raises `IncompleteReadError` if the other side leaves instead."""
    head = (await line.reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    opening, *lines = head.split("\r\n")
    method, path, _ = opening.split(" ", 2)
    headers = []
    for text in lines:
        name, found, value = text.partition(":")
        if found:
            headers.append([name.lower(), value.strip()])
    length = next((int(value) for name, value in headers if name == "content-length"), 0)
    body = await line.reader.readexactly(length)
    return Request(method=method, path=path, headers=headers, body=body)


@asynccontextmanager
async def serving(upstream: Upstream, port: int = 0) -> AsyncIterator[str]:
    """Serve on the running loop until the block ends; yield the address."""
    loop = asyncio.get_running_loop()
    server = await loop.create_server(
        lambda: Line(upstream.serve), "127.0.0.1", port, backlog=4096, reuse_address=True
    )
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
