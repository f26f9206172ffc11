"""Watches all budgets during a run: one snapshot of Postgres, ten times a second, and the journals'
contents.

A separate process (`python -m tests.chaos.budget_checker`), so that a busy caller does not slow it.
It shares no code with the gateway except the layout of a record in a segment, and takes no lock:
neither a row's nor a journal's.

The reason why no alarm is false: a worker that records an intent already has its hold, from a grant
of Postgres. So an attempt that began before the snapshot and is not in the ledger was, at that
moment, held or settled and not written. It counts at its hold until its settlement is seen, and
then at its cost: never more than it counted at that moment. Journals are read after the snapshot.
Records that are written and released meanwhile are missed, which hides something and invents
nothing; most records were read before it anyway.
"""

from __future__ import annotations

import argparse
import json
import os
import select
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple
from uuid import UUID

import msgspec
import psycopg

from gateway.storage.journal import layout
from gateway.storage.journal.frames import (
    SEGMENT_HEADER_BYTES,
    Frame,
    FrameKind,
    scan,
    segment_seed,
)
from tests.chaos.checker import Finding

EVERY_S = 0.1
CHUNK_BYTES = 256 * 1024
MOST_PRINTED = 50  # findings of a kind; the rest are counted

Place = tuple[str, int]  # an account, and when its period began, in seconds since 1970
Attempt = tuple[UUID, int]


@dataclass(frozen=True, slots=True)
class Standing:
    """One period of one account. `limit_nusd` includes grants; None is not limited."""

    limit_nusd: int | None
    spent_nusd: int
    leased_nusd: int


class Unwritten(NamedTuple):
    """A journal's amount on one account for an attempt that the ledger does not have."""

    journal_id: UUID
    place: Place
    nusd: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """All that belongs together.

    `charged` has the accounts of single keys that were watched then, and only those.
    """

    began_s: float
    standings: Mapping[Place, Standing]
    leases: Mapping[tuple[UUID, Place], int]
    charged: Mapping[Place, int]
    unwritten: Sequence[Unwritten]


def mistakes(snapshot: Snapshot) -> list[Finding]:
    """Return the violations in one snapshot."""
    found: list[Finding] = []
    outstanding: Counter[Place] = Counter()
    for (_, place), nusd in snapshot.leases.items():
        outstanding[place] += nusd
    kept: Counter[tuple[UUID, Place]] = Counter()
    waiting: Counter[Place] = Counter()
    for one in snapshot.unwritten:
        kept[one.journal_id, one.place] += one.nusd
        waiting[one.place] += one.nusd
    for place, standing in snapshot.standings.items():
        spent, leased, limit = standing.spent_nusd, standing.leased_nusd, standing.limit_nusd
        if limit is not None and spent + leased > limit:
            found.append(
                Finding(
                    "over", f"{place[0]}: {spent:,} spent and {leased:,} leased of {limit:,} n$"
                )
            )
        if limit is not None and spent + waiting[place] > limit:
            held = f"{spent:,} spent and {waiting[place]:,} held or settled of {limit:,} n$"
            found.append(Finding("overrun", f"{place[0]}: {held}"))
        if outstanding[place] != leased:
            found.append(
                Finding(
                    "leases",
                    f"{place[0]}: {leased:,} leased, its leases say {outstanding[place]:,} n$",
                )
            )
        charged = snapshot.charged.get(place)
        if charged is not None and charged != spent:
            found.append(
                Finding("spent", f"{place[0]}: {spent:,} spent, its events say {charged:,} n$")
            )
    for (journal_id, place), nusd in kept.items():
        lease = snapshot.leases.get((journal_id, place), 0)
        if nusd > lease:
            found.append(
                Finding(
                    "unleased",
                    f"{place[0]}: {journal_id} holds {nusd:,} n$, and {lease:,} are leased to it",
                )
            )
    return found


# ---- the checker checked


def _with_lease(snapshot: Snapshot, change: int) -> Snapshot | None:
    """Return the snapshot with another lease amount under a journal's holds, in both of
    Postgres' sums.
    """
    for one in snapshot.unwritten:
        lease = snapshot.leases.get((one.journal_id, one.place), 0)
        standing = snapshot.standings.get(one.place)
        held = sum(
            o.nusd
            for o in snapshot.unwritten
            if (o.journal_id, o.place) == (one.journal_id, one.place)
        )
        if standing is not None and held > 0 and lease >= held:
            less = lease - held + change
            standings = {
                **snapshot.standings,
                one.place: replace(standing, leased_nusd=standing.leased_nusd - less),
            }
            return replace(
                snapshot,
                standings=standings,
                leases={**snapshot.leases, (one.journal_id, one.place): lease - less},
            )
    return None


def _with_standing(change: Callable[[Standing], Standing]) -> Callable[[Snapshot], Snapshot | None]:
    def plant(snapshot: Snapshot) -> Snapshot | None:
        for place in snapshot.charged:
            standing = snapshot.standings[place]
            if standing.limit_nusd is not None:
                return replace(snapshot, standings={**snapshot.standings, place: change(standing)})
        return None

    return plant


def _without_limit(standing: Standing) -> Standing:
    assert standing.limit_nusd is not None
    more = standing.limit_nusd - standing.spent_nusd - standing.leased_nusd + 1
    return replace(standing, leased_nusd=standing.leased_nusd + more)


PLANTS: tuple[tuple[str, str, Callable[[Snapshot], Snapshot | None]], ...] = (
    ("a nano-dollar held without a lease", "unleased", lambda snapshot: _with_lease(snapshot, 1)),
    ("a nano-dollar over the limit", "over", _with_standing(_without_limit)),
    (
        "a lease that is not counted",
        "leases",
        _with_standing(lambda one: replace(one, leased_nusd=one.leased_nusd - 1)),
    ),
    (
        "a nano-dollar charged twice",
        "spent",
        _with_standing(lambda one: replace(one, spent_nusd=one.spent_nusd + 1)),
    ),
)


def self_test(snapshot: Snapshot) -> list[str]:
    """Plant mistakes in copies of a snapshot; return the names of those that were not found, or had
    no place.
    """
    missed = []
    before = Counter(finding.kind for finding in mistakes(snapshot))
    for name, kind, plant in PLANTS:
        planted = plant(snapshot)
        if (
            planted is None
            or Counter(finding.kind for finding in mistakes(planted))[kind] <= before[kind]
        ):
            missed.append(name)
    return missed


# ---- journals


class _Event(msgspec.Struct):
    started_at: datetime
    cost_nusd: int | None = None
    held_nusd: int | None = None
    holds: list[tuple[str, int, int, bool]] = []


class _Intent(msgspec.Struct):
    event: _Event


_read_event = msgspec.json.Decoder(_Event).decode
_read_intent = msgspec.json.Decoder(_Intent).decode


@dataclass(slots=True)
class Record:
    """An attempt in a journal.

    `parts` are its amounts on each account: its holds until a settlement is seen.
    """

    journal_id: UUID
    started_s: float
    parts: tuple[tuple[Place, int], ...]


class Journals:
    """The attempts in all journals below a folder that the ledger does not have.

    Reads each byte once.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self._read: dict[tuple[UUID, int], int] = {}
        self.pending: dict[Attempt, Record] = {}

    def read_on(self) -> None:
        """Read the appended records."""
        for journal_id, directory in list(layout.journal_directories(self._root)):
            for number in layout.segment_numbers(directory):
                self._read_segment(journal_id, directory, number)

    def forget(self, written: set[Attempt]) -> None:
        """These are in the ledger."""
        for key in written:
            self.pending.pop(key, None)

    def _read_segment(self, journal_id: UUID, directory: Path, number: int) -> None:
        try:
            handle = os.open(layout.segment_path(directory, number), os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return  # all of it is written, and it is gone
        try:
            for frame in self._frames(handle, journal_id, number):
                self._take(journal_id, frame)
        finally:
            os.close(handle)

    def _frames(self, handle: int, journal_id: UUID, number: int) -> Iterator[Frame]:
        """Return the complete records behind the last read position; the last one may still be
        being written.
        """
        seed = segment_seed(journal_id, number)
        while True:
            at = self._read.get((journal_id, number), SEGMENT_HEADER_BYTES)
            found = [
                item
                for item in scan(os.pread(handle, CHUNK_BYTES, at), start=0, seed=seed, offset=at)
                if isinstance(item, Frame)
            ]
            if not found:
                return
            yield from found
            self._read[journal_id, number] = found[-1].end

    def _take(self, journal_id: UUID, frame: Frame) -> None:
        if frame.kind == FrameKind.INTENT:
            event = _read_intent(frame.payload).event
            parts = [
                ((account, starts_s), held)
                for account, starts_s, held, is_over in event.holds
                if not is_over
            ]
        else:
            event = _read_event(frame.payload)
            counted = event.cost_nusd if event.cost_nusd is not None else event.held_nusd
            parts = [
                ((account, starts_s), held if counted is None else min(counted, held))
                for account, starts_s, held, is_over in event.holds
                if not is_over
            ]
        self.pending[frame.key] = Record(journal_id, event.started_at.timestamp(), tuple(parts))


# ---- Postgres

_STANDINGS = """
SELECT account_id, extract(epoch FROM starts_at)::bigint,
       CASE rule.kind WHEN 'hard' THEN rule.limit_nusd + coalesce((
           SELECT sum(amount_nusd) FROM tollgate.budget_grants AS given
           WHERE given.account_id = period.account_id AND given.starts_at = period.starts_at),
             0)::bigint END,
       spent_nusd, leased_nusd
FROM tollgate.budget_periods AS period LEFT JOIN tollgate.budgets AS rule USING (rule_id)
"""
_LEASES = """
SELECT journal_id, account_id, extract(epoch FROM starts_at)::bigint, outstanding_nusd FROM
  tollgate.leases
"""
# Of single keys, because their events are few: those of a team are all there are.
_CHARGED = """
SELECT hold ->> 0, (hold ->> 1)::bigint, sum(coalesce(cost_nusd, held_nusd, (hold ->>
  2)::bigint))::bigint
FROM tollgate.usage_events CROSS JOIN LATERAL jsonb_array_elements(holds) AS hold
WHERE key_id = ANY(%s) AND hold ->> 0 LIKE '%%/key:%%' GROUP BY 1, 2
"""
_WRITTEN = """
SELECT event.request_id, event.attempt FROM unnest(%s::uuid[]) AS asked (request_id)
JOIN tollgate.usage_events AS event ON event.request_id = asked.request_id
    AND event.occurred_at = tollgate.uuid7_time(asked.request_id)
"""


def take(
    connection: psycopg.Connection[Any], journals: Journals, watched: Sequence[str]
) -> Snapshot:
    """Take a snapshot of both. Raises `psycopg.Error`."""
    began_s = time.time()
    with connection.transaction():
        connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
        standings = {(row[0], row[1]): Standing(*row[2:]) for row in connection.execute(_STANDINGS)}
        leases = {(row[0], (row[1], row[2])): row[3] for row in connection.execute(_LEASES)}
        charged = {
            (row[0], row[1]): row[2] for row in connection.execute(_CHARGED, [list(watched)])
        }
        journals.read_on()
        asked = [request_id for request_id, _ in journals.pending]
        written = {(row[0], row[1]) for row in connection.execute(_WRITTEN, [asked])}
    journals.forget(written)
    unwritten = [
        Unwritten(record.journal_id, place, nusd)
        for record in journals.pending.values()
        if record.started_s < began_s
        for place, nusd in record.parts
    ]
    return Snapshot(
        began_s=began_s, standings=standings, leases=leases, charged=charged, unwritten=unwritten
    )


# ---- the process


@dataclass(slots=True)
class Watch:
    """The loop. Standard input says which keys to watch, a line each; its end ends the watch."""

    connection: psycopg.Connection[Any]
    journals: Journals
    watched: tuple[str, ...] = ()
    busiest: Snapshot | None = None
    counts: Counter[str] = field(default_factory=Counter)
    printed: defaultdict[str, int] = field(default_factory=lambda: defaultdict(int))

    def run(self) -> None:
        """Watch until stopped."""
        while True:
            due_s = time.monotonic() + EVERY_S
            self._look()
            while (left_s := due_s - time.monotonic()) > 0:
                if not self._read_keys(left_s):
                    self._say(counts=self.counts, missed=self._missed())
                    return

    def _look(self) -> None:
        snapshot = take(self.connection, self.journals, self.watched)
        counts = self.counts
        counts["snapshots"] += 1
        counts["took_ms"] += round(1000 * (time.time() - snapshot.began_s))
        counts["unwritten"] += len(snapshot.unwritten)
        counts["busy"] += bool(snapshot.unwritten)
        counts["most_unwritten"] = max(counts["most_unwritten"], len(snapshot.unwritten))
        for finding in mistakes(snapshot):
            self.printed[finding.kind] += 1
            if self.printed[finding.kind] <= MOST_PRINTED or self.printed[finding.kind] % 100 == 0:
                self._say(at=snapshot.began_s, kind=finding.kind, detail=finding.detail)
        if snapshot.charged and (
            self.busiest is None or len(snapshot.unwritten) > len(self.busiest.unwritten)
        ):
            self.busiest = snapshot

    def _missed(self) -> list[str]:
        return ["nothing was seen to plant in"] if self.busiest is None else self_test(self.busiest)

    def _read_keys(self, wait_s: float) -> bool:
        readable, _, _ = select.select([sys.stdin], [], [], wait_s)
        if not readable:
            return True
        line = sys.stdin.readline()
        if line.strip():
            self.watched = tuple(json.loads(line))
            self.printed.clear()
        return bool(line)

    def _say(self, **members: object) -> None:
        print(json.dumps(members), flush=True)


def main() -> int:
    """Watch until standard input ends."""
    parser = argparse.ArgumentParser(description="Watches budgets, leases and journals.")
    parser.add_argument("--database", required=True)
    parser.add_argument("--journals", type=Path, required=True)
    chosen = parser.parse_args()
    with psycopg.connect(chosen.database, autocommit=True) as connection:
        Watch(connection, Journals(chosen.journals)).run()
    return 0


if __name__ == "__main__":
    sys.exit(main())
