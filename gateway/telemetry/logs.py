"""Configures the logs of a serving process, and writes one canonical JSON line per request; never
prompts or keys.

Every line goes to standard error.
"""

from __future__ import annotations

import asyncio
import json
import logging
import select
import sys
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import msgspec
import structlog
from msgspec import UNSET, Struct, UnsetType

from gateway.domain.ledger.usage_event import Outcome, UsageEvent
from gateway.domain.money import plain_usd
from gateway.domain.pricing.tokens import UsageSource

LEVELS = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
}
GATHERED_S = 0.02
MOST_BYTES = select.PIPE_BUF


def configure(level: str) -> None:
    """Configure structlog for the process, with a level. Call it once, from `main`."""
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            structlog.processors.JSONRenderer(serializer=_json),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(LEVELS[level]),
        logger_factory=structlog.WriteLoggerFactory(file=sys.stderr),
        cache_logger_on_first_use=True,
    )
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr, format="%(message)s")


def say_serving(listening_on: Sequence[Any], *, metrics_at: str, problem: str | None) -> None:
    """Log a gateway's first line: its addresses, and its missing parts."""
    address = f"http://{listening_on[0]}:{listening_on[1]}/v1"
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


class RequestLog:
    """Writes the canonical lines of requests, in a quarter of the general logger's time.

    Lines within `GATHERED_S` are written together. At the end `close` writes the rest, and later
    lines are written at once. A write has whole lines and at most as many bytes as a pipe takes in
    one piece, so that the lines of several workers on one pipe stay whole.
    """

    def __init__(self, level: str, write: Callable[[bytes], object]) -> None:
        """Make the log at a level; `write` takes whole lines as bytes."""
        self._write, self.is_on = write, LEVELS[level] <= logging.INFO
        self._lines: list[bytes] = []
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

    def close(self) -> None:
        """Write the gathered lines now; later lines are written at once."""
        self._is_closed = True
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
