"""Configures the logs of a serving process, and makes one canonical JSON line per request; never
prompts or keys.

Every line goes to standard error, by a `LogWriter`.
"""

from __future__ import annotations

import asyncio
import json
import logging
import select
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any, TextIO, cast
from uuid import UUID

import msgspec
import structlog
from msgspec import UNSET, Struct, UnsetType

from gateway.domain.ledger.usage_event import Outcome, UsageEvent
from gateway.domain.money import plain_usd
from gateway.domain.pricing.tokens import UsageSource
from gateway.domain.words import host_and_port
from gateway.telemetry.log_writer import LogStream, LogWriter

LEVELS = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
}
GATHERED_S = 0.02
STRANGERS_EVERY_S = 1.0
MOST_BYTES = select.PIPE_BUF


@contextmanager
def configured(level: str) -> Iterator[LogWriter]:
    """Configure structlog for the process, with a level, and yield the writer of all lines, which
    is closed at the end of the block.
    """
    writer = LogWriter(line_about=line_about_dropped)
    stream = LogStream(writer)
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            structlog.processors.JSONRenderer(serializer=_json),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(LEVELS[level]),
        logger_factory=structlog.WriteLoggerFactory(file=cast("TextIO", stream)),
        cache_logger_on_first_use=True,
    )
    logging.basicConfig(level=logging.WARNING, stream=stream, format="%(message)s")
    logging.captureWarnings(True)
    try:
        yield writer
    finally:
        writer.close()


def line_about_dropped(lines: int) -> bytes:
    """Return the line that states how many lines were dropped before it."""
    line = {"event": "log_lines_dropped", "lines": lines, "level": "warning"}
    return _json_bytes(line | {"timestamp": datetime.now(UTC)}) + b"\n"


def say_serving(listening_on: Sequence[Any], *, metrics_at: str, problem: str | None) -> None:
    """Log a gateway's first line: its addresses, and its missing parts."""
    address = f"http://{host_and_port(listening_on[0], listening_on[1])}/v1"
    structlog.get_logger().info(
        "serving", address=address, metrics=f"http://{metrics_at}/metrics", problem=problem
    )


class RequestLine(Struct, kw_only=True, gc=False):
    """The fields of a request's canonical line.

    An unset field is not written; None is written as null.
    """

    endpoint: str
    status: int
    request_id: UUID
    team: str | UnsetType = UNSET
    key_id: str | UnsetType = UNSET
    route: str | UnsetType = UNSET
    deployment: str | UnsetType = UNSET
    attempts: int | UnsetType = UNSET
    outcome: Outcome | UnsetType = UNSET
    upstream_status: int | UnsetType | None = UNSET
    input_tokens: int | UnsetType | None = UNSET
    cached_input_tokens: int | UnsetType | None = UNSET
    output_tokens: int | UnsetType | None = UNSET
    reasoning_tokens: int | UnsetType | None = UNSET
    usage_source: UsageSource | UnsetType = UNSET
    cost_usd: str | UnsetType | None = UNSET
    ttft_s: float | UnsetType | None = UNSET
    tpot_s: float | UnsetType | None = UNSET
    duration_s: float | UnsetType = UNSET
    overhead_s: float | UnsetType | None = UNSET
    degraded: str | UnsetType = UNSET
    error: str | UnsetType = UNSET
    event: str = "request"
    level: str = "info"
    timestamp: datetime


class RefusedStrangers(Struct, kw_only=True, gc=False):
    """The line about all requests of a second that were refused alike before a key was known.

    `last_request_id` finds one of them in a caller's report.
    """

    endpoint: str
    status: int
    error: str | None
    requests: int
    last_request_id: UUID
    event: str = "refused_without_key"
    level: str = "info"
    timestamp: datetime


class RequestLog:
    """Writes the canonical lines of requests, in a quarter of the general logger's time.

    Lines within `GATHERED_S` are written together. At the end `close` writes the rest, and later
    lines are written at once. A write has whole lines and at most as many bytes as a pipe takes in
    one piece, so that the lines of several workers on one pipe stay whole.

    Requests without a known key are counted, and logged as one line a second for each kind: a
    stranger would otherwise write a megabyte a second.
    """

    def __init__(self, level: str, write: Callable[[bytes], object]) -> None:
        """Make the log at a level; `write` takes whole lines as bytes."""
        self._write, self.is_on = write, LEVELS[level] <= logging.INFO
        self._lines: list[bytes] = []
        self._strangers: Counter[tuple[str, int, str | None]] = Counter()
        self._last_of: dict[tuple[str, int, str | None], UUID] = {}
        self._is_closed = False

    def say(self, line: RequestLine) -> None:
        """Write one request's line soon, if the log level allows it."""
        if not self.is_on:
            return
        self._lines.append(_json_bytes(line) + b"\n")
        if self._is_closed:
            self._flush()
        elif len(self._lines) == 1:
            asyncio.get_running_loop().call_later(GATHERED_S, self._flush)

    def count_stranger(
        self, endpoint: str, status: int, *, error: str | None, request_id: UUID
    ) -> None:
        """Count a request that was refused before its key was known. Endpoints, statuses and codes
        are few, and a caller chooses none of their names.
        """
        if not self.is_on:
            return
        kind = (endpoint, status, error)
        self._strangers[kind] += 1
        self._last_of[kind] = request_id
        if self._is_closed:
            self._say_strangers()
        elif self._strangers.total() == 1:
            asyncio.get_running_loop().call_later(STRANGERS_EVERY_S, self._say_strangers)

    def close(self) -> None:
        """Write the gathered lines and counts now; later lines are written at once."""
        self._is_closed = True
        self._say_strangers()
        self._flush()

    def _say_strangers(self) -> None:
        """Write one line for each kind of refusal since the last second."""
        counts, self._strangers = self._strangers, Counter()
        last_of, self._last_of = self._last_of, {}
        for kind, requests in counts.items():
            endpoint, status, error = kind
            line = RefusedStrangers(
                endpoint=endpoint,
                status=status,
                error=error,
                requests=requests,
                last_request_id=last_of[kind],
                timestamp=datetime.now(UTC),
            )
            self._lines.append(_json_bytes(line) + b"\n")
        self._flush()

    def _flush(self) -> None:
        """Write the gathered lines in pieces of whole lines that a pipe takes at once."""
        lines, self._lines = self._lines, []
        piece: list[bytes] = []
        size = 0
        for line in lines:
            if piece and size + len(line) > MOST_BYTES:
                self._write(b"".join(piece))
                piece, size = [], 0
            piece.append(line)
            size += len(line)
        if piece:
            self._write(b"".join(piece))


def line_of(event: UsageEvent, endpoint: str, status: int) -> RequestLine:
    """Return a request's canonical line from the event of its last attempt, for requests that
    reached an upstream.
    """
    usage = event.usage
    return RequestLine(
        endpoint=endpoint,
        status=status,
        request_id=event.request_id,
        team=event.team,
        key_id=event.key_id,
        route=event.route,
        deployment=event.deployment,
        attempts=event.attempt,
        outcome=event.outcome,
        upstream_status=event.http_status,
        input_tokens=usage.input_tokens,
        cached_input_tokens=usage.cached_input_tokens,
        output_tokens=usage.output_tokens,
        reasoning_tokens=usage.reasoning_tokens,
        usage_source=event.usage_source,
        cost_usd=None if event.cost_nusd is None else plain_usd(event.cost_nusd),
        ttft_s=_rounded(event.ttft_s),
        tpot_s=_rounded(event.tpot_s),
        duration_s=round(event.duration_s, 6),
        overhead_s=_rounded(event.overhead_s),
        degraded=UNSET if event.degraded is None else event.degraded,
        timestamp=datetime.now(UTC),
    )


def _json(fields: Any, **_: object) -> str:
    """Return a log line's fields as JSON text; structlog's other arguments are ignored."""
    return _json_bytes(fields).decode("utf-8", "replace")


def _json_bytes(fields: Any) -> bytes:
    """Return a log line's fields as JSON bytes, also if a text has half a surrogate pair."""
    try:
        return _encode(fields)  # a fifth of the standard library's time
    except UnicodeEncodeError:  # half a surrogate pair, which only the standard library writes
        if isinstance(fields, RequestLine):
            fields = {
                name: value
                for name, value in msgspec.structs.asdict(fields).items()
                if value is not UNSET
            }
        return json.dumps(fields, default=_as_text).encode()


def _as_text(value: object) -> str:
    """Return the text of a value that JSON cannot hold, for a log line."""
    return str(value) if isinstance(value, UUID | datetime) else repr(value)


_encode = msgspec.json.Encoder(enc_hook=repr).encode


def _rounded(seconds: float | None) -> float | None:
    """Return seconds rounded to the microsecond for a log line; None stays None."""
    return None if seconds is None else round(seconds, 6)
