"""Declares the protocols that services require from adapters: upstreams, providers, token counts,
journals, event ledger, budget leases, list prices and clock.

`providers` and `storage` implement them. A protocol that one service alone needs is declared beside
it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Mapping, Sequence
from datetime import datetime
from math import inf
from typing import Any, Protocol, runtime_checkable
from uuid import UUID

from gateway.domain.budgets.budgets import SliceAsk, SliceGranted
from gateway.domain.ledger.records import Intent, Written
from gateway.domain.ledger.usage_event import Key, UsageEvent
from gateway.domain.places.regions import UNKNOWN
from gateway.domain.policy.policy import Deployment
from gateway.domain.pricing.pricing import Price
from gateway.domain.pricing.settlement import Counted
from gateway.domain.pricing.tokens import TokenUsage
from gateway.domain.request.request import Request, RequestBody
from gateway.domain.request.stored_response import StoredResponseAction
from gateway.domain.residency.rules import Permit
from gateway.errors import RequestError
from gateway.wire.dialect import (
    AnswerPart,
    AnswerStream,
    PlainAnswerAssembler,
    Translation,
    UpstreamRequest,
)
from gateway.wire.observed import Observed


class Upstream(Protocol):
    """One request to an upstream, from the moment it was handed to the socket.

    Cancelling a waiter loses nothing: whoever takes over the answer can await the same result
    again.
    """

    async def head(self) -> tuple[int, Mapping[str, str]]:
        """Return the answer's status and headers, names in lower case. Raises `UpstreamError` or
        `UpstreamTimeout`.
        """

    async def chunk(self) -> bytes:
        """Return the next piece of the answer's body, empty at its end.

        Raises `UpstreamError` if cut, `UpstreamTimeout` if stalled.
        """

    async def read(self, limit_bytes: int) -> bytes:
        """Return the whole body of the upstream's answer.

        Raises `UpstreamError` if it is cut or exceeds the limit, `UpstreamTimeout` if stalled.
        """

    def has_stated_end(self) -> bool:
        """Return True if the body came to the end that its length or its last chunk states: one
        that ends with its connection may be cut.
        """

    def arrived_bytes(self) -> int:
        """Return the bytes that the kernel has received and `chunk` has not returned, counted
        before decryption.
        """

    def note_first_token(self) -> None:
        """Record that the first content arrived. From now on only silence and the total time are
        limited.
        """

    def give_up(self) -> None:
        """Fail the answer with `UpstreamTimeout` now, because the upstream makes no progress; does
        nothing to one that is complete.
        """

    def close(self) -> None:
        """Drop the upstream connection at once, or keep it for reuse if the body was read to its
        end.

        Never awaits.
        """


class Transport(Protocol):
    """The only way for content to leave the gateway."""

    async def send(
        self, permit: Permit, call: UpstreamRequest, *, within_s: float = inf
    ) -> Upstream:
        """Connect and write one request to an upstream; its answer must be complete after
        `within_s` seconds.

        Raises `ResidencyDenied` or `UpstreamUnreachable`; then nothing was sent.
        """


class Provider(Protocol):
    """One upstream dialect: address, credential, request, answer, usage and errors.

    The caller's dialect may be another one: the request's operation names it. Answers are returned
    in the caller's dialect.

    `bills_errors`: the provider may bill an answer that contains only an error.
    """

    bills_errors: bool

    def translate(self, deployment: Deployment, read: RequestBody) -> Translation | None:
        """Return a request in the deployment's dialect; None if it speaks the caller's.

        Raises `Untranslatable` for a field that the dialect has no place for.
        """

    async def call(
        self,
        deployment: Deployment,
        request: Request,
        *,
        output_cap_tokens: int | None = None,
        translation: Translation | None = None,
    ) -> UpstreamRequest:
        """Return the HTTP call that carries this request, or its translation, to the deployment. A
        cap bounds the answer if the caller set no maximum.

        Waits only for a credential that expires. Raises `UpstreamAuth` if there is none.
        """

    def stream(self, read: RequestBody, call: UpstreamRequest) -> AnswerStream:
        """Return the reader of the streamed answer to this call."""

    def assembler(self, read: RequestBody, *, limit_bytes: int) -> PlainAnswerAssembler:
        """Return the assembler that makes a plain answer of a stream that was requested instead."""

    def rewrite(
        self, read: RequestBody, call: UpstreamRequest, body: bytes, observed: Observed
    ) -> AnswerPart:
        """Return a complete answer to this call for the caller; record its metadata in `observed`.

        A body that is not understood is returned unchanged. Raises `UnreadableAnswer` for one that
        cannot be an answer.
        """

    def usage_in(self, body: bytes) -> TokenUsage | None:
        """Return the usage reported by a complete answer or an error, None if it reports none."""

    def error(
        self, deployment: Deployment, status: int, headers: Mapping[str, str], *, body: bytes
    ) -> RequestError:
        """Return the caller's error for an upstream's error answer, by status and type."""

    async def probe(self, deployment: Deployment, probe_id: UUID) -> UpstreamRequest:
        """Return a call of fixed content that generates at most one token."""


@runtime_checkable
class KeepsResponses(Protocol):
    """A provider whose upstreams may keep responses and have an endpoint for them."""

    async def stored_response(
        self,
        deployment: Deployment,
        request_id: UUID,
        *,
        action: StoredResponseAction,
        response_id: str,
        query: str,
    ) -> UpstreamRequest:
        """Return the call that reads, deletes or cancels a stored response. `response_id` is safe
        in an address; `query` begins with `?` or is empty.
        """


class TokenCounter(Protocol):
    """Counts the tokens of an answer whose upstream reported no usage.

    Off the event loop, in memory only.
    """

    async def count(self, model: str, read: RequestBody, observed: Observed) -> Counted:
        """Return a count of the answer's tokens, or an estimate if nothing better is available.

        Never raises, and takes bounded time.
        """


class EventJournal(Protocol):
    """The durable record on this machine, written before an attempt is sent and after it has
    ended.
    """

    def intend(self, intent: Intent) -> Awaitable[None]:
        """Append an attempt's intent now; the awaitable resolves when the record is durable.

        Raises `Overloaded` if there is no room.
        """

    def settle(self, event: UsageEvent) -> bytes:
        """Append an attempt's settled event and return its document.

        Never waits and never fails, because its room is reserved.
        """

    def event_of(self, document: bytes) -> UsageEvent:
        """Parse the event of a document that `settle` returned."""

    def note_progress(self, running: Mapping[Key, TokenUsage]) -> None:
        """Append the last running usage of all live attempts."""


class SettledBatch(Protocol):
    """Documents of settled events as a journal has them; the next batch begins at `position`."""

    @property
    def keys(self) -> Sequence[Key]:
        """Return the keys (request id and attempt) of the batch's events."""

    @property
    def documents(self) -> Sequence[bytes]:
        """Return the documents of the batch's events."""

    @property
    def position(self) -> Any:
        """Return the journal position at which the next batch begins."""


class SettledEvents(Protocol):
    """A journal's settled events, to be read in order and released.

    `read` is called in a thread, every other method on the event loop.
    """

    journal_id: UUID

    def end(self) -> Any:
        """Return the journal position up to which there are settled events to read."""

    def read(self, upto: Any, *, max_events: int) -> SettledBatch:
        """Return the next batch of settled events after the last released one."""

    def acknowledge(self, batch: Any) -> None:
        """Release a batch whose events are in Postgres."""


class LeftEvents(SettledEvents, Protocol):
    """The settled events in the journal of an ended process."""

    def finish(self) -> None:
        """Remove the journal from this machine; Postgres has all of it."""

    def release(self) -> None:
        """Leave the journal unchanged for a later turn."""


class OwnEvents(SettledEvents, Protocol):
    """The settled events in the journal that this process writes."""

    @property
    def is_drained(self) -> bool:
        """Return True if all attempts are settled and Postgres has all events."""


class JournalNotes(Protocol):
    """Postgres's register of the workers' journals.

    Called in a thread; each raises `DatabaseUnavailable`.
    """

    def register(self, journal_id: UUID, *, replica: str) -> None:
        """Record that a worker holds this journal now, with its replica's name."""

    def drained(self, journal_id: UUID) -> None:
        """Record that the ledger has all of the journal and no worker holds it any more."""


class EventLedger(Protocol):
    """The ledger of usage events in Postgres."""

    def write_documents(self, documents: Sequence[bytes], *, journal_id: UUID | None) -> Written:
        """Write events' documents to the ledger exactly once.

        Raises `DatabaseUnavailable`; then nothing of the batch was written.
        """


class BudgetLeaseStore(Protocol):
    """The workers' budget leases in Postgres. Called in a thread."""

    @property
    def last_stated(self) -> datetime | None:
        """Return Postgres's time at the end of the last exchange; None before the first one."""

    def exchange(self, journal_id: UUID, asks: Sequence[SliceAsk]) -> Sequence[SliceGranted]:
        """Give back and take slices of budgets in Postgres for a worker's asks, each numbered turn
        once; return the granted ones.

        Raises `DatabaseUnavailable`, `LeasesLost`, `AsksRefused`.
        """


class BuiltinPrices(Protocol):
    """The bundled price list; `storage.policy.price_list.builtin_price` implements it."""

    def __call__(
        self, *, provider: str, model: str, base_url: str, region: str = UNKNOWN, at: datetime
    ) -> Price | None:
        """Return the list price of a model at a moment and place, None if it has none."""


class Clock(Protocol):
    """The source of time, as an argument."""

    def now(self) -> datetime:
        """Return the current time in UTC."""

    def monotonic(self) -> float:
        """Return seconds that never go back."""
