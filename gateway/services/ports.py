"""What services need from the outside, as protocols.

Adapters in `providers` and `storage` satisfy them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Mapping, Sequence
from datetime import datetime
from math import inf
from typing import Any, Protocol
from uuid import UUID

from gateway.domain.budgets.budgets import SliceAsk, SliceGranted
from gateway.domain.ledger.intent import Intent
from gateway.domain.ledger.usage_event import Key, UsageEvent
from gateway.domain.ledger.written import Written
from gateway.domain.policy.policy import Deployment
from gateway.domain.pricing.settlement import Counted
from gateway.domain.pricing.tokens import TokenUsage
from gateway.domain.request.request import Request, RequestBody
from gateway.domain.residency.rules import Permit
from gateway.errors import RequestError
from gateway.wire.openai.answer import AnswerStream, CostText
from gateway.wire.openai.assemble import Assembler
from gateway.wire.openai.observed import Observed
from gateway.wire.upstream_request import UpstreamRequest


class Upstream(Protocol):
    """One exchange with an upstream, from the moment its request was handed to the socket.

    Cancelling a waiter loses nothing: what it waited for can be awaited again, by whoever takes the
    exchange over.
    """

    async def head(self) -> tuple[int, Mapping[str, str]]:
        """Status and headers, names in lower case. Raises `UpstreamError` or `UpstreamTimeout`."""

    async def chunk(self) -> bytes:
        """The next piece of the body, empty at its end.

        Raises `UpstreamError` if cut, `UpstreamTimeout` if stalled.
        """

    async def read(self, limit_bytes: int) -> bytes:
        """The whole body.

        Raises `UpstreamError` over the limit or when it is cut, `UpstreamTimeout`.
        """

    def arrived_bytes(self) -> int:
        """How many bytes the kernel has received that `chunk` did not return yet, encrypted ones as
        they are.
        """

    def heard_token(self) -> None:
        """The first content has come: from here on only silence and the whole time are bounded."""

    def close(self) -> None:
        """Drop the connection at once, unless the body was read to its end: then it is used again.

        No await.
        """


class Transport(Protocol):
    """The only way out for content."""

    async def send(
        self, permit: Permit, call: UpstreamRequest, *, within_s: float = inf
    ) -> Upstream:
        """Connect and write one request, whose answer must be whole `within_s`.

        Raises `ResidencyDenied` or `UpstreamUnreachable`; then nothing was sent.
        """


class Provider(Protocol):
    """One dialect: where to call, how to ask, where usage is, how errors map.

    `bills_errors`: an answer that holds nothing but an error may be billed.
    """

    bills_errors: bool

    def call(
        self, deployment: Deployment, request: Request, *, output_cap_tokens: int | None = None
    ) -> UpstreamRequest:
        """Return the call that carries this request; a cap bounds the answer of a caller who set no
        maximum.

        Raises `UpstreamAuth` if the credential is missing.
        """

    def stream(
        self, read: RequestBody, *, cost: CostText, asked_running_usage: bool
    ) -> AnswerStream:
        """Return the rewriter of a streamed answer."""

    def assembler(self, read: RequestBody, *, limit_bytes: int) -> Assembler:
        """Return what makes a plain answer of the stream that was asked for in its place."""

    def rewrite(
        self, read: RequestBody, body: bytes, observed: Observed, *, cost: CostText
    ) -> bytes:
        """Return a whole answer for the caller and note in `observed` what it says of itself."""

    def usage_in(self, body: bytes) -> TokenUsage | None:
        """Return the usage that a whole answer or an error reports, None where it reports none."""

    def error(
        self, deployment: Deployment, status: int, headers: Mapping[str, str], *, body: bytes
    ) -> RequestError:
        """Return the caller's error for an upstream's error answer, by status and type."""

    def probe(self, deployment: Deployment, probe_id: UUID) -> UpstreamRequest:
        """Return a call of fixed content, answered with one token at most."""

    def error_event(self, read: RequestBody, error: RequestError) -> bytes:
        """Return the event that ends a stream which has already begun."""


class TokenCounter(Protocol):
    """Counts what was sent and seen of an answer whose upstream never said.

    Off the event loop, in memory only.
    """

    async def count(self, model: str, read: RequestBody, observed: Observed) -> Counted:
        """Return a count, an estimate where there is no better.

        Never raises, and is bounded in time.
        """


class EventJournal(Protocol):
    """The durable record on this machine: written before anything is sent, and again when it has
    ended.
    """

    def intend(self, intent: Intent) -> Awaitable[None]:
        """Append now; what is returned resolves when it is durable.

        Raises `Overloaded` where there is no room.
        """

    def settle(self, event: UsageEvent) -> bytes:
        """Append the settled event and return its document.

        Never waits, never fails: its room is reserved.
        """

    def event_of(self, document: bytes) -> UsageEvent:
        """The event of a document that `settle` returned."""

    def note_progress(self, running: Mapping[Key, TokenUsage]) -> None:
        """Note the last running usage of all live attempts."""


class SettledBatch(Protocol):
    """Documents of settled events as they stand in a journal; `position` is where the next batch
    begins.
    """

    @property
    def keys(self) -> Sequence[Key]:
        """Which attempts."""

    @property
    def documents(self) -> Sequence[bytes]:
        """Their events."""

    @property
    def position(self) -> Any:
        """Where the next batch begins."""


class SettledEvents(Protocol):
    """A journal's settled events, in order.

    `read` is called in a thread, all else on the event loop.
    """

    journal_id: UUID

    def end(self) -> Any:
        """How far there is something to read now."""

    def read(self, upto: Any, *, max_events: int) -> SettledBatch:
        """Read on from what was let go last."""

    def let_go(self, batch: Any) -> None:
        """The batch is in Postgres."""


class LeftEvents(SettledEvents, Protocol):
    """The journal of a process that is gone."""

    def finish(self) -> None:
        """All of it was read and is in Postgres: remove it from this machine."""

    def release(self) -> None:
        """Leave it as it is to who looks for it next."""


class OwnEvents(SettledEvents, Protocol):
    """The journal that this process writes."""

    @property
    def is_drained(self) -> bool:
        """All attempts are settled, and all of it is in Postgres."""


class JournalNotes(Protocol):
    """What Postgres knows of the journals.

    Called in a thread; each raises `DatabaseUnavailable`.
    """

    def register(self, journal_id: UUID, *, replica: str) -> None:
        """A worker holds this journal, now."""

    def drained(self, journal_id: UUID) -> None:
        """All of it is in the ledger and nobody holds it any more."""


class EventLedger(Protocol):
    """The ledger in Postgres."""

    def write_documents(self, documents: Sequence[bytes], *, journal_id: UUID | None) -> Written:
        """Write events exactly once.

        Raises `DatabaseUnavailable`; then nothing of the batch is in.
        """


class BudgetLeaseStore(Protocol):
    """What workers have leased of budgets, in Postgres. Called in a thread."""

    def exchange(self, journal_id: UUID, asks: Sequence[SliceAsk]) -> Sequence[SliceGranted]:
        """Give back and take slices, each turn once.

        Raises `DatabaseUnavailable`, `LeasesLost`, `AsksRefused`.
        """


class Clock(Protocol):
    """Time as an argument."""

    def now(self) -> datetime:
        """UTC."""

    def monotonic(self) -> float:
        """Seconds that never go back."""
