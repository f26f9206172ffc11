"""Copies generated events into the ledger with COPY, from several processes at once.

A slice is one transaction, so it is there as a whole or not at all. Each row equals the row that
`ledger.Ledger` writes for the same event, its digest included. Budgets are not charged: an event
with holds is refused.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing, contextmanager
from datetime import UTC, date, datetime
from decimal import Decimal
from functools import partial
from hashlib import sha256
from operator import attrgetter
from typing import Any, TypeVar

import psycopg
from msgspec import to_builtins
from msgspec.json import Encoder
from msgspec.structs import asdict
from msgspec.structs import replace as with_members

from gateway.domain.ids import text_of
from gateway.domain.ledger.records import CopiedSlice
from gateway.domain.ledger.usage_event import UsageEvent
from gateway.domain.pricing.pricing import Line
from gateway.errors import OperatorError
from gateway.storage.ledger.documents import encode_event
from gateway.storage.ledger.ledger import COMPUTED, MEMBERS, USAGE
from gateway.storage.postgres.database import Database
from gateway.storage.postgres.sessions import Sessions

LIMIT_S = 120.0  # of one slice, if Postgres neither answers nor breaks the connection
MOST_PROCESSES = 2  # each has a backend of Postgres beside it
MOST_KEPT = 100_000  # texts that many events share
HOUR_MS = 3_600_000
BLOCK = 500  # lines in one message to Postgres

# The columns of a line of COPY: of the event itself, of its origin, and of its settlement. The rare
# ones are empty in nearly every event.
OWN = (
    *("request_id", "attempt", "occurred_at", "posted_period", "started_at", "end_user", "tags"),
    *("outcome", "http_status", "streamed", "ttft_s", "tpot_s", "duration_s", "overhead_s"),
    "digest",
)
ORIGIN = (
    *("team", "project", "cost_centre", "key_id", "route", "deployment", "provider", "model"),
    *("region", "is_self_hosted", "data_class", "policy_version", "operation", "is_demo"),
    *("features", "decision"),
)
SETTLEMENT = (
    *USAGE,
    *("usage_detail", "lines", "usage_source", "price_id", "cost_nusd", "held_nusd"),
    *("is_suspect", "finish_reason", "reported_usage"),
)
RARE = (
    *("client_request_id", "upstream_request_id", "service_tier", "is_stand_in_price"),
    *("queue_s", "max_gap_s", "engine_queue_s", "degraded"),
)
COLUMNS = (*OWN, *ORIGIN, *SETTLEMENT, *RARE, "holds")
assert set(COLUMNS) == {*MEMBERS, *COMPUTED, "posted_period"}
_RARE = attrgetter(*RARE, "reported", "usage_detail")
_NOTHING_RARE: tuple[object, ...] = (None, None, None, False, None, None, None, None, None, {})
NULL = "\\N"  # of COPY's text format
_ESCAPES = str.maketrans({"\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t"})
_COPY = f"COPY tollgate.usage_events ({', '.join(COLUMNS)}) FROM STDIN"
# The commit does not wait for the disk: after a power cut a repeat adds what is missing. The next
# commit that waits, as those of the sums, flushes all before it.
_WITHOUT_WAITING = "SET LOCAL synchronous_commit = off"
_IS_THERE = """
SELECT EXISTS (SELECT FROM tollgate.usage_events
               WHERE request_id = %s AND attempt = %s AND occurred_at = %s)
"""
_POSTED = "SELECT own, posted FROM tollgate.posting_months(%s::date[])"
_NOTE_HOURS = "INSERT INTO tollgate.dirty_hours (hour) SELECT unnest(%s::timestamptz[])"

S = TypeVar("S")  # the description of a slice, small enough to be sent to another process
R = TypeVar("R")  # the caller's result of a slice beside its events
Make = Callable[[S], tuple[Sequence[UsageEvent], R]]


class BulkLedger:
    """A writer of whole slices of generated events, each of them once."""

    def __init__(self, url: str, *, role_if_member: str) -> None:
        """Take the database's address and the role; each process opens a connection of its own."""
        self._url, self._role = url, role_if_member

    def copy(
        self, slices: Sequence[S], make: Make[S, R], *, processes: int | None = None
    ) -> Iterator[CopiedSlice[R]]:
        """Make and copy each slice, and yield it in its order when it is committed.

        `make` must give the same events for the same slice, and be importable in another process.
        A slice whose first event is there is not written again. Raises `DatabaseUnavailable`, or
        `OperatorError` if a process was killed; yielded slices stay.
        """
        if processes is None:
            processes = min(MOST_PROCESSES, len(os.sched_getaffinity(0)))
        if processes == 1 or len(slices) < 2:
            with closing(_Copier(self._url, self._role)) as copier:
                for one in slices:
                    yield copier.copy(one, make)
            return
        # A new interpreter for each: a fork would share the threads and sockets of this process.
        pool = ProcessPoolExecutor(
            processes,
            mp_context=multiprocessing.get_context("spawn"),
            initializer=_start_process,
            initargs=(self._url, self._role, make),
        )
        try:
            with _safe_path():
                copied = pool.map(_copy_slice, slices)  # starts all processes
            yield from copied
        except BrokenProcessPool:
            raise OperatorError(
                "A process that writes events was killed, perhaps because memory ran out. Each "
                "slice is there as a whole or not at all: repeat the command to go on."
            ) from None
        finally:
            pool.shutdown(cancel_futures=True)


@contextmanager
def _safe_path() -> Iterator[None]:
    """Let processes that start here look for their first modules not in the current folder, and
    none that starts later.
    """
    name = "PYTHONSAFEPATH"
    before = os.environ.get(name)
    os.environ[name] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before


class _Copier:
    """A connection that copies slices."""

    def __init__(self, url: str, role: str) -> None:
        self._database = Database(url, role_if_member=role)
        self._sessions = Sessions(self._database, limit_s=LIMIT_S)
        self._rows = _Rows()

    def copy(self, one: S, make: Make[S, R]) -> CopiedSlice[R]:
        """Make a slice's events and copy them in one transaction, unless they are there."""
        events, kept = make(one)
        if not events:
            return CopiedSlice(events=0, new=0, kept=kept)
        hours = _hours_of(events)
        # The row of a new month is committed first. In the slice's transaction it would be locked
        # until the slice is there, and the other process waits for a lock only seconds.
        self._sessions.transact(partial(_posted, months=_months_of(hours)))
        return CopiedSlice(events=len(events), new=self._added(events, hours), kept=kept)

    def close(self) -> None:
        """Close the connections."""
        self._sessions.close()
        self._database.close()

    def _added(self, events: Sequence[UsageEvent], hours: Sequence[datetime]) -> int:
        """Copy events in one transaction, unless they are there; return the number of new ones.

        Of two that write the same slice, the second one waits at the key of the first event, and is
        refused once that is committed.
        """
        insert = partial(self._insert, events=events, hours=hours)
        try:
            return self._sessions.transact(insert)
        except psycopg.errors.UniqueViolation:
            return self._sessions.transact(insert)  # finds the first event, or raises again

    def _insert(
        self,
        connection: psycopg.Connection[Any],
        *,
        events: Sequence[UsageEvent],
        hours: Sequence[datetime],
    ) -> int:
        """Copy events in the present transaction; return 0 if the first of them is there."""
        first = events[0]
        cursor = connection.cursor()
        cursor.execute(_WITHOUT_WAITING)
        cursor.execute(_IS_THERE, (first.request_id, first.attempt, first.occurred_at))
        if cursor.fetchone() == (True,):
            return 0
        posted = _posted(connection, months=_months_of(hours))
        with cursor.copy(_COPY.encode()) as copy:
            for begin in range(0, len(events), BLOCK):
                block = events[begin : begin + BLOCK]
                copy.write("".join([self._rows.of(event, posted) for event in block]))
        cursor.execute(_NOTE_HOURS, (hours,))
        return len(events)


def _hours_of(events: Sequence[UsageEvent]) -> list[datetime]:
    """Return the hours of events, each once and in their order."""
    seconds = sorted({(event.request_id.int >> 80) // HOUR_MS * 3600 for event in events})
    return [datetime.fromtimestamp(each, UTC) for each in seconds]


def _months_of(hours: Sequence[datetime]) -> list[date]:
    """Return the first day of each month of some hours."""
    return sorted({hour.date().replace(day=1) for hour in hours})


def _posted(connection: psycopg.Connection[Any], *, months: Sequence[date]) -> Mapping[date, date]:
    """Return the month that each month's events count in; its state is kept until the commit."""
    return dict(connection.execute(_POSTED, (months,)).fetchall())


class _Rows:
    """Turns events into lines of COPY's text format, each of three parts: the columns of its
    request's origin, those of its settlement, and its own.

    Generated events share their origins and settlements. So the text of these is kept: to format
    them for each event took half of the time.
    """

    def __init__(self) -> None:
        """Keep nothing yet."""
        self._origins: dict[tuple[object, ...], str] = {}
        self._settlements: dict[tuple[object, ...], tuple[object, str]] = {}
        self._json: dict[int, tuple[object, str]] = {}
        self._names: dict[str, str] = {}
        self._hours: dict[int, tuple[str, str]] = {}

    def of(self, event: UsageEvent, posted: Mapping[date, date]) -> str:
        """Return an event's line; `posted` has the month that each month's events count in."""
        assert not event.holds, "generated events charge no budget"
        hour, ms = divmod(event.request_id.int >> 80, HOUR_MS)
        begins, month = self._hours.get(hour) or self._add_hour(hour, posted)
        minute, ms = divmod(ms, 60_000)
        second, ms = divmod(ms, 1000)
        end_user, status = event.end_user, event.http_status
        ttft_s, tpot_s, overhead_s = event.ttft_s, event.tpot_s, event.overhead_s
        return (
            f"{text_of(event.request_id)}\t{event.attempt}\t"
            f"{begins}:{minute:02}:{second:02}.{ms:03}+00\t{month}\t"
            f"{to_builtins(event.started_at)}\t"
            f"{NULL if end_user is None else self._kept_name(end_user)}\t"
            f"{self._kept_json(event.tags)}\t{event.outcome.value}\t"
            f"{NULL if status is None else status}\t{event.streamed}\t"
            f"{NULL if ttft_s is None else ttft_s}\t{NULL if tpot_s is None else tpot_s}\t"
            f"{event.duration_s}\t{NULL if overhead_s is None else overhead_s}\t"
            f"\\\\x{sha256(encode_event(event)).hexdigest()}\t"
            f"{self._origin(event)}\t{self._settlement(event)}\n"
        )

    def _origin(self, event: UsageEvent) -> str:
        """Return the columns of `ORIGIN`."""
        key = (
            event.team,
            event.project,
            event.cost_centre,
            event.key_id,
            event.route,
            event.deployment,
            event.provider,
            event.model,
            event.region,
            event.is_self_hosted,
            event.data_class,
            event.policy_version,
            event.operation,
            event.is_demo,
        )
        found = self._origins.get(key)
        if found is None:
            found = self._origins[_bounded(self._origins, key)] = _line(key)
        return f"{found}\t{self._kept_json(event.features)}\t{self._kept_json(event.decision)}"

    def _settlement(self, event: UsageEvent) -> str:
        """Return the columns of `SETTLEMENT` and the rare ones."""
        key = (
            id(event.usage),
            id(event.lines),
            event.usage_source,
            event.price_id,
            event.cost_nusd,
            event.held_nusd,
            event.is_suspect,
            event.finish_reason,
        )
        rare = _RARE(event)
        is_plain = rare == _NOTHING_RARE
        kept = self._settlements.get(key) if is_plain else None
        if kept is None:
            usage = event.usage
            text = _line(
                (
                    *(getattr(usage, name) for name in USAGE),
                    _detail_json(event),
                    _lines_json(event.lines),
                    event.usage_source.value,
                    event.price_id,
                    event.cost_nusd,
                    event.held_nusd,
                    event.is_suspect,
                    event.finish_reason,
                    None if event.reported is None else _text(event.reported),
                    *rare[:-2],
                    "[]",
                )
            )
            # The members are kept too: a freed one could give its identity to another.
            kept = ((event.usage, event.lines), text)
            if is_plain:
                self._settlements[_bounded(self._settlements, key)] = kept
        return kept[1]

    def _kept_json(self, member: Mapping[str, Any]) -> str:
        """Return a member as JSON in COPY's text, made once for events that share the object."""
        found = self._json.get(id(member))
        if found is None:
            found = (member, _escaped(_text(member)))
            self._json[_bounded(self._json, id(member))] = found
        return found[1]

    def _kept_name(self, name: str) -> str:
        """Return a name as a column: to escape it for each event takes longer than to find it."""
        found = self._names.get(name)
        if found is None:
            found = self._names[_bounded(self._names, name)] = _escaped(name)
        return found

    def _add_hour(self, hour: int, posted: Mapping[date, date]) -> tuple[str, str]:
        """Return the text of an hour since 1970 and of the month that it counts in."""
        begins = datetime.fromtimestamp(hour * 3600, UTC)
        month = posted[begins.date().replace(day=1)]
        self._hours[hour] = (f"{begins:%Y-%m-%d %H}", str(month))
        return self._hours[hour]


K = TypeVar("K")


def _bounded(kept: dict[K, Any], key: K) -> K:
    """Return the key for a new entry, after emptying a dictionary that is full."""
    if len(kept) >= MOST_KEPT:
        kept.clear()
    return key


def _line(values: Iterable[object]) -> str:
    """Return values as columns of COPY's text format."""
    return "\t".join(NULL if value is None else _escaped(str(value)) for value in values)


def _escaped(text: str) -> str:
    """Return text with the characters escaped that separate columns and lines."""
    return text.translate(_ESCAPES)


def _lines_json(lines: Sequence[Line]) -> str:
    """Return priced lines as JSON, with rates without an exponent: people misread `1E+1`."""
    plain = [with_members(line, usd_per_mtok=Decimal(f"{line.usd_per_mtok:f}")) for line in lines]
    return _text(plain)


def _detail_json(event: UsageEvent) -> str | None:
    """Return the counts without a column and the upstream's other figures as JSON, None if there
    are none.
    """
    rare = {
        name: count
        for name, count in asdict(event.usage).items()
        if name not in USAGE and count is not None
    }
    found = rare | dict(event.usage_detail)
    return _text(found) if found else None


def _text(value: object) -> str:
    """Return a value as JSON text."""
    return _JSON.encode(value).decode()


_JSON = Encoder()


# One of each in a process of the pool.
_process: dict[str, Any] = {}


def _start_process(url: str, role: str, make: Make[Any, Any]) -> None:
    """Open this process' connection. Ctrl-C is the parent's: a slice ends with its transaction."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    gc.disable()  # events and rows hold no circles; looking for them took a fifth of the time
    _process["copier"], _process["make"] = _Copier(url, role), make


def _copy_slice(one: Any) -> CopiedSlice[Any]:
    """Copy a slice in a process of the pool."""
    copier: _Copier = _process["copier"]
    return copier.copy(one, _process["make"])
