"""Sends one streaming chat request over HTTP/1.1 and measures the answer.

It is light on the CPU, which it may share with the engine: no HTTP library, one JSON parse a chunk.
"""

import asyncio
import json
import ssl
import time
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from engine.arguments.printable import printable
from engine.errors import UsageError
from engine.load.event_stream import (
    AnswerHead,
    StreamEvent,
    StreamSplitter,
    body_pieces,
    read_head,
)
from engine.load.measured import MeasuredRequest

CHAT_PATH = "/v1/chat/completions"
DONE = b"[DONE]"
CONNECT_LIMIT_S = 10.0
REST_LIMIT_S = 1.0
"""The wait for the end of a body after its last event; then the connection is dropped."""
MOST_ERROR_BYTES = 2_000
EVENTS_PER_TOKEN, SPARE_EVENTS = 16, 256
"""The most events of an answer: some for each token that it may have, and a few more. Without a
bound, a stream without end would hold its request, and so the run, for ever.
"""
BROKEN = (OSError, EOFError, ValueError, LookupError, TypeError, AttributeError, RecursionError)
"""Errors of a connection that ends early, of an answer that is no HTTP, and of JSON of another
shape. `TimeoutError` is an `OSError`, `IncompleteReadError` an `EOFError`.
"""
KEEP_S = 2.0
"""The longest idle time of a kept connection; uvicorn closes one after 5 s. A request is sent once:
a second try would hide a failure.
"""
Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class RequestFailedError(Exception):
    """An answer that counts as failed, with the reason."""


@dataclass(slots=True, kw_only=True)
class _Observed:
    """The parts of one answer of at most `most_tokens` that were seen so far."""

    most_tokens: int
    events: int = 0
    token_times: list[float] = field(default_factory=list)
    finished: float | None = None
    finish_reason: str | None = None
    usage: "_Usage | None" = None
    metrics: Mapping[str, Any] | None = None

    def take(self, event: StreamEvent, moment: float) -> None:
        """Record one event. Raises `RequestFailedError` at an error event, at usage that cannot be,
        and at more events than the answer can have.
        """
        self.events += 1
        if self.events > EVENTS_PER_TOKEN * self.most_tokens + SPARE_EVENTS:
            raise RequestFailedError(
                f"the stream has more than {self.events - 1} events for {self.most_tokens} tokens"
            )
        if event.data == DONE:
            return
        chunk = json.loads(event.data)
        if event.name == "error" or "error" in chunk:
            raise RequestFailedError(f"error event: {_message(chunk)}")
        if chunk.get("usage"):
            self.usage = _Usage.from_wire(chunk["usage"])
        if chunk.get("metrics"):
            self.metrics = chunk["metrics"]
        for choice in chunk.get("choices") or ():
            if holds_token(choice):
                self.token_times.append(moment)
            if choice.get("finish_reason") is not None:
                self.finish_reason, self.finished = choice["finish_reason"], moment

    @property
    def problem(self) -> str | None:
        """Return the reason for which the answer failed: it has no end, or more tokens by its usage
        than it can have. None if it is whole.
        """
        if self.finished is None:
            return "the stream ended without finish_reason"
        stated, most = self.output_tokens, max(self.most_tokens, len(self.token_times))
        if stated > most:
            return f"the usage states {stated} completion tokens, but the answer has at most {most}"
        return None

    @property
    def output_tokens(self) -> int:
        """Return the tokens of the answer."""
        if self.usage is not None and self.usage.output_tokens is not None:
            return self.usage.output_tokens
        is_full = self.finish_reason == "length" and self.token_times
        return self.most_tokens if is_full else len(self.token_times)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Usage:
    """The token counts of an answer's usage; None for one that it lacks."""

    prompt_tokens: int | None
    cached_tokens: int | None
    output_tokens: int | None

    @classmethod
    def from_wire(cls, usage: Any) -> "_Usage":
        """Return the counts in a `usage` member. Raises `RequestFailedError` for counts that cannot
        be: a wrong figure here would be a wrong price in a calibration.
        """
        counts = _object(usage)
        prompt, cached, output = (
            _count(counts, "prompt_tokens"),
            _count(_object(counts.get("prompt_tokens_details")), "cached_tokens"),
            _count(counts, "completion_tokens"),
        )
        if prompt is not None and cached is not None and cached > prompt:
            raise RequestFailedError(
                f"the usage states {cached} cached tokens of {prompt} prompt tokens"
            )
        return cls(prompt_tokens=prompt, cached_tokens=cached, output_tokens=output)


def _object(found: Any) -> Mapping[str, Any]:
    """Return a part of the usage; empty if it is absent or null. Raises `RequestFailedError` unless
    it is an object.
    """
    if found is not None and not isinstance(found, dict):
        raise RequestFailedError(f"the usage has {str(found)[:40]!r} in place of an object")
    return found or {}


def _count(found: Mapping[str, Any], name: str) -> int | None:
    """Return a count of tokens; None if it is absent or null. Raises `RequestFailedError` unless it
    is a whole number from 0.
    """
    value = found.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise RequestFailedError(f"the usage states {name}: {str(value)[:40]}")
    return value


def holds_token(choice: Mapping[str, Any]) -> bool:
    """Return True if a chunk's choice holds a token.

    A chunk with a role alone holds none: many servers send it before the prefill. vLLM sends a
    token whose text is withheld (a part of a character, a mark) as empty content.
    """
    delta = choice.get("delta") or {}
    texts = [delta.get(name) for name in ("content", "reasoning", "reasoning_content")]
    if any(texts) or delta.get("tool_calls"):
        return True
    return "" in texts and "role" not in delta and choice.get("finish_reason") is None


@dataclass(slots=True, kw_only=True)
class LoadClient:
    """A client of one server; it keeps connections open between requests.

    `silence_s` is the longest wait for the next bytes of an answer.
    """

    url: str
    """The address, without `/v1`."""
    key: str | None = None
    silence_s: float = 120.0
    clock: Callable[[], float] = time.perf_counter
    _idle: list[tuple[Connection, float]] = field(default_factory=list)

    async def measure(
        self, body: Mapping[str, Any], *, began: float, scheduled_s: float | None
    ) -> MeasuredRequest:
        """Send a chat request with streaming and return its measurement; it never raises for a
        failed answer.

        `began` is the clock's time at the run's begin. Without `scheduled_s` latencies count from
        now.
        """
        sent_s = self.clock() - began
        seen, failure = _Observed(most_tokens=int(body.get("max_tokens") or 0)), None
        try:
            async with asyncio.timeout(self.silence_s) as limit:
                await self._observe(json.dumps(body).encode(), seen, limit)
        except RequestFailedError as error:
            failure = str(error)
        except TimeoutError:
            if seen.finished is None:
                failure = f"no byte within {self.silence_s:g} s"
        except BROKEN as error:
            if seen.finished is None:  # a cut after finish_reason has cost no token
                failure = f"{type(error).__name__}: {error}".rstrip(": ")
        failure = failure or seen.problem
        ended, usage = seen.finished if failure is None else None, seen.usage
        return MeasuredRequest(
            scheduled_s=sent_s if scheduled_s is None else scheduled_s,
            sent_s=sent_s,
            token_times_s=[moment - began for moment in seen.token_times],
            ended_s=(self.clock() if ended is None else ended) - began,
            prompt_tokens=None if usage is None else usage.prompt_tokens,
            cached_tokens=None if usage is None else usage.cached_tokens,
            output_tokens=seen.output_tokens,
            engine_metrics=seen.metrics,
            failure=None if failure is None else printable(failure),
        )

    async def _observe(self, body: bytes, seen: _Observed, limit: asyncio.Timeout) -> None:
        """Send a request and record the events of its answer. Raises `RequestFailedError` and
        `BROKEN`.
        """
        now = asyncio.get_running_loop().time
        async with aclosing(self._events(CHAT_PATH, body)) as events:
            async for event in events:
                limit_s = REST_LIMIT_S if event.data == DONE else self.silence_s
                limit.reschedule(now() + limit_s)
                seen.take(event, self.clock())

    async def _events(self, path: str, body: bytes) -> AsyncGenerator[StreamEvent]:
        """Send a request and yield the events of its answer. Raises `RequestFailedError` unless the
        status is 200.
        """
        (reader, writer), head = await self._answered(path, body)
        is_whole = False
        try:
            if head.status != 200:
                raise RequestFailedError(f"HTTP {head.status}: {await _error_text(reader, head)}")
            splitter = StreamSplitter()
            async with aclosing(body_pieces(reader, head)) as pieces:
                async for piece in pieces:
                    for event in splitter.feed(piece):
                        yield event
            is_whole = head.may_stay_open
        finally:
            if is_whole:
                self._idle.append(((reader, writer), self.clock()))
            else:
                writer.close()

    async def _answered(self, path: str, body: bytes) -> tuple[Connection, AnswerHead]:
        """Send a request and return its connection with the head of the answer. Raises `BROKEN`."""
        connection = self._kept() or await self._connect()
        reader, writer = connection
        try:
            writer.write(self._head(path, len(body)) + body)
            return connection, await read_head(reader)
        except BaseException:
            writer.close()
            raise

    def _kept(self) -> Connection | None:
        """Return a kept connection that is still open, or None; close those idle for too long, and
        those with bytes that answer no request: the next one would take them for its answer.
        """
        while self._idle:
            (reader, writer), since = self._idle.pop()
            is_open = not (reader.at_eof() or writer.is_closing())
            if is_open and self.clock() - since < KEEP_S and _is_silent(reader):
                return reader, writer
            writer.close()
        return None

    async def _connect(self) -> Connection:
        """Open a connection. Raises `OSError`."""
        parts = urlsplit(self.url)
        is_tls = parts.scheme == "https"
        async with asyncio.timeout(CONNECT_LIMIT_S):
            return await asyncio.open_connection(
                parts.hostname,
                parts.port or (443 if is_tls else 80),
                ssl=ssl.create_default_context() if is_tls else None,
                limit=2**20,
            )

    def _head(self, path: str, length_bytes: int) -> bytes:
        """Return the head of a POST."""
        parts = urlsplit(self.url)
        lines = [
            f"POST {parts.path}{path} HTTP/1.1",
            f"host: {parts.netloc}",
            "content-type: application/json",
            "accept: text/event-stream",
            f"content-length: {length_bytes}",
        ]
        if self.key:
            lines.append(f"authorization: Bearer {self.key}")
        return ("\r\n".join(lines) + "\r\n\r\n").encode()

    def close(self) -> None:
        """Close the kept connections."""
        while self._idle:
            (_, writer), _ = self._idle.pop()
            writer.close()


def _is_silent(reader: asyncio.StreamReader) -> bool:
    """Return True if a connection has received nothing that was not read.

    Asked of the reader's own buffer, because a read that waits for nothing costs a turn of the loop
    in each measured request.
    """
    return not getattr(reader, "_buffer", b"")


def server_url(given: str) -> str:
    """Return a server's address without `/v1`. Raises `UsageError` if it is no HTTP address."""
    url = given.rstrip("/").removesuffix("/v1").rstrip("/")
    try:
        parts = urlsplit(url)
        is_http = parts.scheme in ("http", "https") and bool(parts.hostname)
        _ = parts.port
    except ValueError:
        is_http = False
    if not is_http:
        raise UsageError(
            f"{given!r} is no HTTP address. Write for example: --url http://127.0.0.1:8001"
        )
    return url


def _message(chunk: Mapping[str, Any]) -> str:
    """Return the message of an error event."""
    error = chunk.get("error", chunk)
    return str(error.get("message", error) if isinstance(error, dict) else error)[:300]


async def _error_text(reader: asyncio.StreamReader, head: AnswerHead) -> str:
    """Return the begin of an error's body as one line."""
    text = b""
    with suppress(*BROKEN):
        async with aclosing(body_pieces(reader, head)) as pieces:
            async for piece in pieces:
                text += piece
                if len(text) > MOST_ERROR_BYTES:
                    break
    return " ".join(text.decode("utf-8", "replace").split())[:300]
