"""Deterministic stand-ins for what the gateway meets outside: time, a sink, an upstream, a listening port."""

from __future__ import annotations

import socket
import threading
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from gateway.domain.residency import Permit, verify
from gateway.domain.routing import origin_of
from gateway.domain.usage_event import UsageEvent
from gateway.errors import DatabaseUnavailable, RequestError
from gateway.wire.upstream_call import UpstreamCall
from tests.factories import NOW


class FakeClock:
    """Time that moves when a test says so; every look at `monotonic` may cost `step_s`."""

    def __init__(self, *, step_s: float = 0.0) -> None:
        self._now = NOW
        self._s = 1000.0
        self._step_s = step_s

    def now(self) -> datetime:
        return self._now

    def monotonic(self) -> float:
        self._s += self._step_s
        return self._s

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        self._now += timedelta(seconds=seconds)
        self._s += seconds


@dataclass
class FakeSink:
    """Keeps the events it is given."""

    events: list[UsageEvent] = field(default_factory=list)

    def take(self, event: UsageEvent) -> None:
        self.events.append(event)


@dataclass
class FakeLedger:
    """An event ledger that can be away; like the real one it takes each (request, attempt) once."""

    rows: dict[tuple[str, int], UsageEvent] = field(default_factory=dict)
    is_away: bool = False
    batches: list[int] = field(default_factory=list)

    def write(self, events: Sequence[UsageEvent]) -> int:
        if self.is_away:
            raise DatabaseUnavailable("Postgres is away.")
        before = len(self.rows)
        for event in events:
            self.rows.setdefault((str(event.request_id), event.attempt), event)
        self.batches.append(len(events))
        return len(self.rows) - before


@dataclass
class FakeUpstreamAnswer:
    """An upstream's answer from memory. `then` is raised after the last piece; `waits` is awaited instead."""

    pieces: Sequence[bytes] = ()
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=lambda: {"content-type": "application/json"})
    then: BaseException | None = None
    closed: int = 0

    async def read(self, limit_bytes: int) -> bytes:
        return b"".join([piece async for piece in self.chunks()])

    async def chunks(self) -> AsyncGenerator[bytes, None]:
        for piece in self.pieces:
            yield piece
        if self.then is not None:
            raise self.then

    def close(self) -> None:
        self.closed += 1


@dataclass
class FakeTransport:
    """Answers from a list, in turn; checks every permit as the real one does."""

    answers: list[FakeUpstreamAnswer | RequestError]
    sent: list[tuple[Permit, UpstreamCall]] = field(default_factory=list)

    async def send(self, permit: Permit, call: UpstreamCall) -> FakeUpstreamAnswer:
        verify(permit, origin=origin_of(call.url))
        self.sent.append((permit, call))
        answer = self.answers.pop(0)
        if isinstance(answer, RequestError):
            raise answer
        return answer


class CountingListener:
    """A port that counts who connects and answers nobody: for places no request may ever go to."""

    def __init__(self) -> None:
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._socket.getsockname()[1]
        self.connections = 0
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            self.connections += 1
            connection.close()

    def close(self) -> None:
        """Stop listening."""
        # Closing alone does not wake a thread that waits in accept().
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self._thread.join(5)
