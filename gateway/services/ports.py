"""What services need from the outside, as protocols. Adapters in `providers` and `storage` satisfy them."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from datetime import datetime
from typing import Protocol

from gateway.domain.policy import Deployment
from gateway.domain.request import Request
from gateway.domain.residency import Permit
from gateway.domain.usage_event import UsageEvent
from gateway.errors import RequestError
from gateway.wire.openai_answer import AnswerStream, CostText, Seen
from gateway.wire.openai_request import ReadBody
from gateway.wire.upstream_call import UpstreamCall


class Upstream(Protocol):
    """An upstream's answer whose headers have come."""

    status: int
    headers: Mapping[str, str]

    async def read(self, limit_bytes: int) -> bytes:
        """The whole body. Raises `UpstreamError` over the limit or when it is cut."""

    def chunks(self) -> AsyncGenerator[bytes, None]:
        """The body as it comes. Raises `UpstreamError` when it is cut, `UpstreamTimeout` when it stalls."""

    def close(self) -> None:
        """Drop the connection at once unless the body was read to its end."""


class Transport(Protocol):
    """The only way out for content."""

    async def send(self, permit: Permit, call: UpstreamCall) -> Upstream:
        """Send one attempt. Raises `ResidencyDenied`, `UpstreamUnreachable` or `UpstreamTimeout`."""


class Provider(Protocol):
    """One dialect: where to call, how to ask, where usage is, how errors map."""

    def call(self, deployment: Deployment, read: ReadBody, *, request: Request) -> UpstreamCall:
        """Return the call that carries this request. Raises `UpstreamAuth` if the credential is missing."""

    def stream(self, read: ReadBody, *, cost: CostText, asked_running_usage: bool) -> AnswerStream:
        """Return the rewriter of a streamed answer."""

    def rewrite(self, read: ReadBody, body: bytes, seen: Seen, *, cost: CostText) -> bytes:
        """Return a whole answer for the caller and note in `seen` what it says of itself."""

    def error(self, deployment: Deployment, status: int, headers: Mapping[str, str], *, body: bytes) -> RequestError:
        """Return the caller's error for an upstream's error answer, by status and type."""

    def error_event(self, read: ReadBody, error: RequestError) -> bytes:
        """Return the event that ends a stream which has already begun."""


class EventSink(Protocol):
    """Where settled events go. Taking one never waits and never fails."""

    def take(self, event: UsageEvent) -> None:
        """Take one event."""


class EventLedger(Protocol):
    """The durable ledger behind the sink."""

    def write(self, events: Sequence[UsageEvent]) -> int:
        """Write events exactly once; return how many were new. Raises `DatabaseUnavailable`."""


class Clock(Protocol):
    """Time as an argument."""

    def now(self) -> datetime:
        """UTC."""

    def monotonic(self) -> float:
        """Seconds that never go back."""
