"""Deterministic stand-ins for the outside of the gateway: time, journal, ledger, upstream, a
listening port.
"""

from __future__ import annotations

import asyncio
import math
import socket
import threading
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from uuid import UUID, uuid4

from gateway.domain.budgets.budgets import Hold, LeasesLost, SliceAsk, SliceGranted
from gateway.domain.deployments.engine_counters import Tokens
from gateway.domain.ledger.records import Intent, Written
from gateway.domain.ledger.usage_event import Key, UsageEvent
from gateway.domain.pricing.settlement import Counted
from gateway.domain.pricing.tokens import TokenUsage
from gateway.domain.request.request import RequestBody
from gateway.domain.residency.rules import Permit, verify
from gateway.domain.residency.stated_place import Contradiction
from gateway.domain.routing.decide import origin_of
from gateway.domain.routing.refusal_count_key import RefusalCountKey
from gateway.errors import DatabaseUnavailable, RequestError, UpstreamError, UpstreamTimeout
from gateway.storage.ledger.documents import decode_event, encode_event
from gateway.wire.dialect import UpstreamRequest
from gateway.wire.observed import Observed
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
class FakeJournal:
    """An event journal in memory.

    `admission` holds intents back until it is set; `refuses` is raised for them.
    """

    intents: list[Intent] = field(default_factory=list)
    events: list[UsageEvent] = field(default_factory=list)
    progress: list[dict[Key, TokenUsage]] = field(default_factory=list)
    refuses: Exception | None = None
    admission: asyncio.Event | None = None

    async def _durable(self) -> None:
        if self.admission is not None:
            await self.admission.wait()

    def intend(self, intent: Intent) -> Awaitable[None]:
        if self.refuses is not None:
            raise self.refuses
        self.intents.append(intent)
        return self._durable()

    def settle(self, event: UsageEvent) -> bytes:
        assert event.key in {intent.event.key for intent in self.intents}, (
            "only what was intended is settled"
        )
        assert event.key not in {settled.key for settled in self.events}, "settled once"
        self.events.append(event)
        return encode_event(event)

    def event_of(self, document: bytes) -> UsageEvent:
        return decode_event(document)

    def note_progress(self, running: Mapping[Key, TokenUsage]) -> None:
        self.progress.append(dict(running))


@dataclass(frozen=True)
class FakeBatch:
    """Some documents of a `FakeSettled`."""

    keys: Sequence[Key]
    documents: Sequence[bytes]
    position: int


@dataclass
class FakeSettled:
    """A journal's settled events in memory."""

    documents: list[tuple[Key, bytes]] = field(default_factory=list)
    position: int = 0
    is_finished: bool = False
    is_released: bool = False
    problem: OSError | None = None  # the error of each read
    journal_id: UUID = field(default_factory=uuid4)
    reads: int = 0

    @property
    def is_drained(self) -> bool:
        return self.position == len(self.documents)

    def end(self) -> int:
        return len(self.documents)

    def read(self, upto: int, *, max_events: int) -> FakeBatch:
        self.reads += 1
        if self.problem is not None:
            raise self.problem
        chosen = self.documents[self.position : min(upto, self.position + max_events)]
        return FakeBatch(
            [key for key, _ in chosen], [one for _, one in chosen], self.position + len(chosen)
        )

    def acknowledge(self, batch: FakeBatch) -> None:
        assert batch.position >= self.position, "only forward"
        self.position = batch.position

    def finish(self) -> None:
        assert self.position == len(self.documents), "all of it is in Postgres"
        self.is_finished = True

    def release(self) -> None:
        self.is_released = True


@dataclass
class FakeNotes:
    """Postgres's register of journals."""

    is_away: bool = False
    registered: list[UUID] = field(default_factory=list)
    gone: list[UUID] = field(default_factory=list)

    def register(self, journal_id: UUID, *, replica: str) -> None:
        if self.is_away:
            raise DatabaseUnavailable("away")
        self.registered.append(journal_id)

    def drained(self, journal_id: UUID) -> None:
        self.gone.append(journal_id)


@dataclass
class FakeLedger:
    """A ledger that can be away; like the real one it takes each document once."""

    rows: dict[bytes, UUID | None] = field(default_factory=dict)
    is_away: bool = False
    loses_next_reply: bool = False
    batches: list[int] = field(default_factory=list)

    def write_documents(self, documents: Sequence[bytes], *, journal_id: UUID | None) -> Written:
        if self.is_away:
            raise DatabaseUnavailable("Postgres is away.")
        before = len(self.rows)
        for document in documents:
            self.rows.setdefault(document, journal_id)
        self.batches.append(len(documents))
        if self.loses_next_reply:
            self.loses_next_reply = False
            raise DatabaseUnavailable("committed, but the answer was lost")
        new = len(self.rows) - before
        return Written(inserted=new, known=len(documents) - new)


@dataclass
class FakeLeases:
    """Budgets in memory with books of their own: a limit for each account, spent and leased by
    (account, start).

    It can be away, lose an answer after it was committed, take `takes_s` seconds for an answer, and
    hang until `admission` is set. Each exchange and each write is one transaction: workers ask in
    threads of their own.
    """

    limits: dict[str, int] = field(default_factory=dict)
    spent: dict[tuple[str, int], int] = field(default_factory=dict)
    outstanding: dict[tuple[UUID, str, int], int] = field(default_factory=dict)
    asked: list[Sequence[SliceAsk]] = field(default_factory=list)
    is_away: bool = False
    is_lost: bool = False
    loses_next_reply: bool = False
    takes_s: float = 0.0
    admission: threading.Event | None = None
    last_stated: datetime | None = None  # its clock, if it states one
    _turns: dict[tuple[UUID, str, int], tuple[int, int]] = field(default_factory=dict)
    _transaction: threading.Lock = field(default_factory=threading.Lock)

    def exchange(self, journal_id: UUID, asks: Sequence[SliceAsk]) -> Sequence[SliceGranted]:
        if not asks:
            return []  # only a connection was opened
        if self.admission is not None and not self.admission.wait(5):
            raise DatabaseUnavailable("interrupted")
        time.sleep(self.takes_s)
        if self.is_away:
            raise DatabaseUnavailable("away")
        if self.is_lost:
            raise LeasesLost
        self.asked.append(asks)
        with self._transaction:
            granted = [self._exchange(journal_id, facts) for facts in asks]
        if self.loses_next_reply:
            self.loses_next_reply = False
            raise DatabaseUnavailable("committed, but the answer was lost")
        return granted

    def leased(self, account_id: str) -> int:
        """Return all workers' leases of an account, in all its periods."""
        return sum(
            nusd for (_, account, _), nusd in self.outstanding.items() if account == account_id
        )

    def write(self, journal_id: UUID, hold: Hold, cost_nusd: int) -> None:
        """Apply an event as the ledger's transaction does."""
        key = (journal_id, hold.account_id, hold.starts_s)
        place = (hold.account_id, hold.starts_s)
        with self._transaction:
            self.outstanding[key] -= min(cost_nusd, hold.held_nusd, self.outstanding[key])
            self.spent[place] = self.spent.get(place, 0) + cost_nusd

    def _exchange(self, journal_id: UUID, facts: SliceAsk) -> SliceGranted:
        key = (journal_id, facts.account_id, int(facts.starts_at.timestamp()))
        turn, granted = self._turns.get(key, (0, 0))
        if turn != facts.turn:
            assert 0 <= facts.returned_nusd <= self.outstanding.get(key, 0), (
                "nothing is given back that was not taken"
            )
            self.outstanding[key] = self.outstanding.get(key, 0) - facts.returned_nusd
            room = self._room(key)
            granted = min(room, facts.most_nusd, max(facts.needed_nusd, room // 8))
            granted = granted if 0 < facts.least_nusd <= room else 0
            self.outstanding[key] += granted
            self._turns[key] = (facts.turn, granted)
        assert self._room(key) >= 0 or not granted, "never more than the limit"
        return SliceGranted(
            account_id=key[1],
            starts_s=key[2],
            granted_nusd=granted,
            limit_nusd=self.limit_of(key[1:]),
            spent_nusd=self.spent.get(key[1:], 0),
            leased_nusd=self._leased(key),
            outstanding_nusd=self.outstanding[key],
        )

    def _leased(self, key: tuple[UUID, str, int]) -> int:
        return sum(
            nusd for (_, *place), nusd in self.outstanding.items() if tuple(place) == key[1:]
        )

    def limit_of(self, place: tuple[str, int]) -> int:
        """The limit of one account's period."""
        return self.limits[place[0]]

    def _room(self, key: tuple[UUID, str, int]) -> int:
        return self.limit_of(key[1:]) - self.spent.get(key[1:], 0) - self._leased(key)


@dataclass
class FakeUpstreamAnswer:
    """An upstream's answer from memory.

    `fails` is raised instead of a head, `then` after the last piece; `waits_for[n]` is awaited
    before piece n, and cancelling that wait loses nothing.
    """

    pieces: Sequence[bytes] = ()
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=lambda: {"content-type": "application/json"})
    fails: RequestError | None = None
    then: BaseException | None = None
    waits_for: Mapping[int, Callable[[], Awaitable[object]]] = field(default_factory=dict)
    closed: int = 0
    has_token: bool = False
    arrived: int = 0  # how many pieces the kernel has when somebody looks
    given_up: bool = False
    _held_task: asyncio.Task[object] | None = None
    _next: int = 0
    _taken: bytes = b""  # read, but not returned because the rest failed

    async def head(self) -> tuple[int, Mapping[str, str]]:
        if self.fails is not None:
            raise self.fails
        return self.status, self.headers

    async def chunk(self) -> bytes:
        assert not self.closed, "nobody reads on after closing"
        if self._taken:
            taken, self._taken = self._taken, b""
            return taken
        if self._next in self.waits_for:
            await self._held(self.waits_for[self._next])
        if self._next < len(self.pieces):
            self._next += 1
            return self.pieces[self._next - 1]
        if self.then is not None:
            raise self.then
        return b""

    async def read(self, limit_bytes: int) -> bytes:
        parts = []
        try:
            while part := await self.chunk():
                parts.append(part)
            if sum(map(len, parts)) > limit_bytes:
                raise UpstreamError("it is too large")
        except RequestError:  # the arrived part can still be taken
            self._taken = b"".join(parts)
            raise
        return b"".join(parts)

    def has_stated_end(self) -> bool:
        return self.then is None

    def arrived_bytes(self) -> int:
        return sum(map(len, self.pieces[self._next : self._next + self.arrived]))

    async def _held(self, wait: Callable[[], Awaitable[object]]) -> None:
        """Wait, without a pause of its own; raise as soon as the answer is given up, and from then
        on, as an exchange that has failed does.
        """
        if self.given_up:
            raise UpstreamTimeout("it stands still")
        self._held_task = task = asyncio.current_task()
        try:
            await wait()
        except asyncio.CancelledError:
            if not self.given_up:
                raise
            assert task is not None
            task.uncancel()
            raise UpstreamTimeout("it stands still") from None
        finally:
            self._held_task = None

    def give_up(self) -> None:
        self.given_up = True
        if self._held_task is not None:
            self._held_task.cancel()

    def note_first_token(self) -> None:
        self.has_token = True

    def close(self) -> None:
        self.closed += 1


@dataclass
class FakeTransport:
    """Answers from a list, in turn; checks every permit as the real one does.

    An error there ends the sending.
    """

    answers: list[FakeUpstreamAnswer | RequestError]
    sent: list[tuple[Permit, UpstreamRequest]] = field(default_factory=list)
    given_s: list[float] = field(default_factory=list)

    async def send(
        self, permit: Permit, call: UpstreamRequest, *, within_s: float = math.inf
    ) -> FakeUpstreamAnswer:
        verify(permit, origin=origin_of(call.url))
        self.given_s.append(within_s)
        self.sent.append((permit, call))
        answer = self.answers.pop(0)
        if isinstance(answer, RequestError):
            raise answer
        return answer


@dataclass
class FakeCounter:
    """A token counter with set results."""

    counted: Counted = field(
        default_factory=lambda: Counted(
            usage=TokenUsage(input_tokens=10, output_tokens=1), is_exact=False
        )
    )
    asked: int = 0

    async def count(self, model: str, read: RequestBody, observed: Observed) -> Counted:
        self.asked += 1
        return self.counted


class CountingListener:
    """A port that counts connections without answering: for places that no request may ever
    reach.
    """

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


@dataclass
class FakeEjections:
    """The receiver of ejections; it can be away."""

    ejected: list[tuple[Contradiction, UUID, int]] = field(default_factory=list)
    is_away: bool = False

    def eject(self, found: Contradiction, *, request_id: UUID, attempt: int) -> None:
        if self.is_away:
            raise DatabaseUnavailable("away")
        self.ejected.append((found, request_id, attempt))


@dataclass
class FakeProbeNotes:
    """The records of probes; it can be away."""

    tokens: dict[UUID, Tokens | None] = field(default_factory=dict)
    is_away: bool = False

    def sent(self, probe_id: UUID, deployment: str, *, at: datetime) -> None:
        self.ended(probe_id, None, at=at)

    def ended(self, probe_id: UUID, made: Tokens | None, *, at: datetime) -> None:
        if self.is_away:
            raise DatabaseUnavailable("away")
        self.tokens[probe_id] = made


@dataclass
class FakeRefusals:
    """The counts of refusals; it can be away."""

    counts: dict[tuple[UUID, RefusalCountKey], int] = field(default_factory=dict)
    is_away: bool = False
    kept: dict[UUID, Mapping[RefusalCountKey, int]] = field(default_factory=dict)

    def write(self, journal_id: UUID, counts: Mapping[RefusalCountKey, int]) -> None:
        if self.is_away:
            raise DatabaseUnavailable("away")
        self.counts |= {(journal_id, refused): times for refused, times in counts.items()}

    def keep(self, journal_id: UUID, counts: Mapping[RefusalCountKey, int]) -> None:
        self.kept[journal_id] = dict(counts)

    def forget(self, journal_id: UUID) -> None:
        self.kept.pop(journal_id, None)

    def left(self) -> Iterable[tuple[UUID, Mapping[RefusalCountKey, int]]]:
        yield from list(self.kept.items())
