"""A model against the journal: for any order of events, nothing is lost and nothing is booked
twice.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from gateway.domain.ledger.usage_event import Key
from gateway.storage.journal import AdoptedJournal, NoJournalRoom, Position, SettlementReader
from gateway.storage.journal.frames import Frame
from gateway.storage.journal.layout import segment_numbers, segment_path
from gateway.storage.journal.reader import Segments
from tests.journal.factories import NEVER, a_journal, adopted, after_kill, key, settlements

SEGMENT_BYTES, SEGMENTS = 8 * 1024, 6
LONGEST = SEGMENT_BYTES // 64


@dataclass
class Attempt:
    """The model's state of one attempt in the living journal."""

    intent: bytes
    intent_end: Position
    acknowledged: asyncio.Future[None]
    settlement: bytes | None = None
    settlement_end: Position | None = None


class JournalMachine(RuleBasedStateMachine):
    """Workers come and go; `postgres` has each attempt's booking, once and for all."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="journal-machine-"))
        self.loop = asyncio.new_event_loop()
        self.postgres: dict[Key, bytes] = {}
        self.made = 0
        self.workers = 0
        self.begin_worker()

    def begin_worker(self) -> None:
        self.workers += 1
        self.root = self.folder / f"worker-{self.workers}"
        self.journal = a_journal(
            self.root, segment_bytes=SEGMENT_BYTES, max_bytes=SEGMENTS * SEGMENT_BYTES
        )
        self.reader = SettlementReader(Segments(self.journal.directory))
        self.attempts: dict[Key, Attempt] = {}
        self.progress: bytes | None = None

    def unsettled_attempts(self) -> list[Key]:
        return [found for found, attempt in self.attempts.items() if attempt.settlement is None]

    @rule(size=st.integers(0, LONGEST), count=st.integers(1, 30), waits=st.booleans())
    def intend(self, size: int, count: int, waits: bool) -> None:
        self.loop.run_until_complete(self._intend(size, count, waits=waits))

    async def _intend(self, size: int, count: int, *, waits: bool) -> None:
        for _ in range(count):
            self.made += 1
            payload = (b"%d " % self.made * 64)[:size]
            try:
                acknowledged = self.journal.intend(key(self.made), payload)
            except NoJournalRoom:
                stats = self.journal.stats()
                assert stats.used_bytes + stats.reserved_bytes > (SEGMENTS - 2) * SEGMENT_BYTES
                return
            self.attempts[key(self.made)] = Attempt(payload, self.journal.tail, acknowledged)
            if waits:
                await acknowledged

    # Positions, not keys: the set of open attempts depends on the thread's pace, and Hypothesis's
    # draws must not.
    @rule(
        places=st.lists(st.floats(0, 1, exclude_max=True), min_size=1, max_size=30),
        size=st.integers(0, LONGEST),
    )
    def settle(self, places: list[float], size: int) -> None:
        for place in places:
            found = self.unsettled_attempts()
            if found:
                settled = found[int(place * len(found))]
                payload = (b"paid %d " % settled[0].int * 64)[:size]
                self.journal.settle(settled, payload)  # never refused, full or not
                self.attempts[settled].settlement = payload
                self.attempts[settled].settlement_end = self.journal.tail

    @rule(size=st.integers(0, 300))
    def note_progress(self, size: int) -> None:
        self.progress = b"p" * size
        self.journal.note_progress(self.progress)

    @rule(max_records=st.integers(1, 40), fails=st.booleans())
    def write(self, max_records: int, fails: bool) -> None:
        """Run the writer's turn; if the transaction fails nothing is booked and the batch comes
        again.
        """
        batch = self.reader.read(upto=self.journal.end, max_records=max_records, max_bytes=NEVER)
        if not fails:
            for found, payload in batch.documents:
                assert found not in self.postgres
                assert self.attempts[found].settlement == payload
                self.postgres[found] = payload
            self.reader.position = batch.position

    @rule(waits=st.booleans())
    def delete_before(self, waits: bool) -> None:
        self.journal.delete_before(self.reader.position)
        if waits:
            self.loop.run_until_complete(self._flush())

    @rule()
    def flush(self) -> None:
        self.loop.run_until_complete(self._flush())

    async def _flush(self) -> None:
        await self.journal.flush()

    @rule(cut=st.none() | st.floats(0, 1), twice=st.booleans())
    def crash(self, cut: float | None, twice: bool) -> None:
        """Kill (no cut), or cut the power and lose a random part of the unsynced bytes; then
        start again.
        """
        acknowledged = {
            name for name, attempt in self.attempts.items() if attempt.acknowledged.done()
        }
        copied = after_kill(self.journal, self.root / "crashed")
        # Read after the copy: anything that the thread removed from it relied on less.
        durable = self.journal.end
        lost_from, is_torn = self._cut(copied, durable, cut)
        self.loop.run_until_complete(self._flush())
        self.journal.close(is_drained=False)
        found = adopted(copied.parent)
        if twice:  # the next start crashes as well
            found.release()
            found = adopted(copied.parent)
        self._check(found, lost_from, acknowledged, is_torn=is_torn)
        found.finish()
        assert {path.name for path in copied.parent.iterdir()} <= {".lock", "quarantine"}
        self.begin_worker()

    def _cut(self, copied: Path, durable: Position, cut: float | None) -> tuple[Position, bool]:
        """Put zeros from some byte behind `durable` on; return that place and whether it is within
        a record.
        """
        if cut is None:
            return Position(NEVER, 0), False
        ends = {Position(number, 0) for number in segment_numbers(copied)} | {durable}
        segments = Segments(copied)
        for number in segments.numbers():
            ends |= {Position(number, 40)}
            ends |= {
                Position(number, item.end)
                for item in segments.records(number)
                if isinstance(item, Frame)
            }
        last = max(ends)
        at = durable
        if last.segment == durable.segment:
            at = Position(
                durable.segment, durable.offset + round(cut * (last.offset - durable.offset))
            )
        for number in segments.numbers():
            if number >= at.segment:
                data = segment_path(copied, number).read_bytes()
                kept = at.offset if number == at.segment else 0
                segment_path(copied, number).write_bytes(data[:kept] + bytes(len(data) - kept))
        return at, at not in ends

    def _check(
        self, found: AdoptedJournal, lost_from: Position, acknowledged: set[Key], *, is_torn: bool
    ) -> None:
        recovered, delivered = found.recovered, dict(settlements(found.settlements, max_records=7))
        assert recovered.damage.torn_tails == is_torn
        assert recovered.damage.quarantined_records == 0
        assert recovered.progress == self.progress
        assert not recovered.open_intents.keys() & delivered.keys()
        # Or it would be booked again as unknown.
        assert not recovered.open_intents.keys() & self.postgres.keys()
        for name, payload in delivered.items():
            assert self.attempts[name].settlement == payload
            assert self.postgres.setdefault(name, payload) == payload
        for name, payload in recovered.open_intents.items():
            assert self.attempts[name].intent == payload
            self.postgres[name] = b"unknown"
        for name, attempt in self.attempts.items():
            was_settled = attempt.settlement_end is not None and attempt.settlement_end <= lost_from
            is_certain = attempt.intent_end <= lost_from or name in acknowledged
            assert name in self.postgres or not is_certain
            assert not was_settled or self.postgres[name] == attempt.settlement

    @invariant()
    def is_bounded(self) -> None:
        sizes = 0
        for path in self.journal.directory.glob("*.segment"):
            try:
                sizes += path.stat().st_size
            except FileNotFoundError:  # the thread was faster
                pass
        assert sizes <= SEGMENTS * SEGMENT_BYTES
        assert set(self.journal.unsettled_attempts()) == set(self.unsettled_attempts())

    def teardown(self) -> None:
        if self.journal.is_closed:
            return  # a check failed
        for name in self.unsettled_attempts():
            self.journal.settle(name, b"paid at last")
        self.loop.run_until_complete(self._flush())
        for name, payload in settlements(self.reader):
            assert name not in self.postgres
            self.postgres[name] = payload
        assert self.attempts.keys() <= self.postgres.keys()
        self.journal.close(is_drained=True)
        self.loop.close()
        shutil.rmtree(self.folder)


JournalMachine.TestCase.settings = settings(stateful_step_count=40)  # the rest is the profile's
TestJournalMachine = JournalMachine.TestCase
