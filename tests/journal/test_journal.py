"""The living journal: the moments of durability, the refusals when it is full, and the releases."""

from __future__ import annotations

import asyncio
import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from gateway.errors import BadUsage
from gateway.storage.journal import (
    SETTLEMENT_EXTRA_BYTES,
    Journal,
    NoJournalRoom,
    NoRoom,
    Position,
    RecordTooLarge,
    Segments,
    SettlementReader,
    adopt_free,
    capacity_requests,
    journals_on,
)
from gateway.storage.journal.layout import segment_path
from gateway.storage.journal.segments import Disk
from tests.journal.conftest import MakeJournal
from tests.journal.factories import (
    NEVER,
    SMALL,
    FailingSync,
    GatedSync,
    SmallDisk,
    a_journal,
    admit_until_full,
    adopted,
    after_kill,
    file_limit,
    key,
    last_segment,
    names,
    settlements,
)
from tests.waiting import eventually, soon


async def attempt(journal: Journal, number: int, payload: bytes = b"intent") -> None:
    """One attempt from intent to settlement, both durable."""
    await journal.intend(key(number), payload)
    journal.settle(key(number), b"paid %d" % number)
    await journal.flush()


async def fill_segments(journal: Journal, more: int, *, first: int = 1000) -> int:
    """Settle attempts until `more` segments were begun; return how many."""
    goal = journal.end.segment + more
    number = first
    while journal.end.segment < goal:
        await attempt(journal, number, b"x" * 200)
        number += 1
    return number - first


async def test_an_intent_is_acknowledged_by_a_sync_that_began_after_it(
    make_journal: MakeJournal,
) -> None:
    """A sync under way may have passed by the new bytes already: an intent must wait for the next
    one.
    """
    sync = GatedSync()
    journal = make_journal(disk=Disk(sync=sync))
    early = journal.intend(key(1), b"early")
    await asyncio.to_thread(eventually, lambda: sync.begun == 1, "the first sync")
    late = journal.intend(key(2), b"late")
    await asyncio.sleep(0)  # handed to the thread
    sync.let_one_end()
    await early
    await asyncio.to_thread(eventually, lambda: sync.begun == 2, "the second sync")
    await asyncio.sleep(0)
    assert not late.done()
    sync.turn(is_open=True)
    await late


async def test_one_sync_serves_all_that_came_in_one_turn(make_journal: MakeJournal) -> None:
    """64 requests at once must not cost 64 syncs, nor two."""
    sync = GatedSync(is_open=True)
    journal = make_journal(disk=Disk(sync=sync), segment_bytes=64 * SMALL, max_bytes=256 * SMALL)
    await asyncio.gather(*(journal.intend(key(number), b"intent") for number in range(64)))
    assert sync.begun == 1


async def test_an_acknowledgement_covers_the_segment_before(make_journal: MakeJournal) -> None:
    """A turn of the loop may end one segment and begin the next: both must be on the disk."""
    synced: set[int] = set()

    def sync(file: int) -> None:
        os.fdatasync(file)
        synced.add(os.fstat(file).st_ino)

    journal = make_journal(disk=Disk(sync=sync))
    await asyncio.gather(*(journal.intend(key(number), b"i" * 200) for number in range(200)))
    begun = [
        segment_path(journal.directory, number) for number in range(1, journal.tail.segment + 1)
    ]
    assert len(begun) > 2
    assert {path.stat().st_ino for path in begun} == synced


async def test_a_cancelled_wait_does_not_disturb_its_group(make_journal: MakeJournal) -> None:
    """A cancelled wait must not take the others of its group with it."""
    journal = make_journal()
    gone, staying = journal.intend(key(1), b"a"), journal.intend(key(2), b"b")
    gone.cancel()
    await staying
    assert gone.cancelled()


async def test_without_syncs_an_intent_is_acknowledged_at_once(make_journal: MakeJournal) -> None:
    """The setting for those who accept losing the last moments in a power cut; a kill still loses
    nothing.
    """
    sync = FailingSync()
    journal = make_journal(syncs=False, disk=Disk(sync=sync))
    assert journal.intend(key(1), b"intent").done()
    journal.settle(key(1), b"paid")
    assert settlements(SettlementReader(Segments(journal.directory))) == [(key(1), b"paid")]
    assert journal.end > Position(1, 40)
    assert sync.calls == 0


async def test_a_settlement_is_durable_soon_without_anybody_waiting(
    make_journal: MakeJournal,
) -> None:
    """A settlement has no waiter, and perhaps no request ever comes again to take it along."""
    journal = make_journal()
    await journal.intend(key(1), b"intent")
    before = journal.end
    journal.settle(key(1), b"paid")
    await asyncio.to_thread(eventually, lambda: journal.end > before, "the sync of a settlement")
    quiet = journal.end
    await asyncio.to_thread(eventually, lambda: journal._commits._is_asleep, "the thread's rest")
    await journal.intend(key(2), b"intent")
    journal.settle(key(2), b"paid")
    await asyncio.to_thread(
        eventually, lambda: journal.end > quiet and not journal._commits._is_noted, "the next"
    )


async def test_a_settlement_made_during_a_sync_has_one_of_its_own(
    make_journal: MakeJournal,
) -> None:
    """The sync under way may have passed by it; forgotten, it would wait for the next request, if
    one comes.
    """
    sync = GatedSync()
    journal = make_journal(disk=Disk(sync=sync))
    acknowledged = journal.intend(key(1), b"intent")
    await asyncio.to_thread(eventually, lambda: sync.begun == 1, "the first sync")
    journal.settle(key(1), b"paid")
    sync.turn(is_open=True)
    await acknowledged
    await asyncio.to_thread(
        eventually, lambda: journal.end == journal.tail, "the sync of the settlement"
    )


async def test_a_settlement_is_handed_out_only_once_it_is_durable(
    make_journal: MakeJournal,
) -> None:
    """In Postgres but lost here by a power cut, it would be booked again as unknown from its
    intent.
    """
    sync = GatedSync()
    journal = make_journal(disk=Disk(sync=sync))
    reader = SettlementReader(Segments(journal.directory))
    intended = journal.intend(key(1), b"intent")
    sync.let_one_end()
    await intended
    journal.settle(key(1), b"paid")
    await asyncio.to_thread(eventually, lambda: sync.begun == 2, "the settlement's sync")
    assert reader.read(upto=journal.end, max_records=9, max_bytes=NEVER).documents == []
    sync.turn(is_open=True)
    await journal.flush()
    assert reader.read(upto=journal.end, max_records=9, max_bytes=NEVER).documents == [
        (key(1), b"paid")
    ]


async def test_a_batch_comes_again_until_it_is_taken(make_journal: MakeJournal) -> None:
    """The writer's transaction may fail: the reader stands still until the batch is released."""
    journal = make_journal()
    for number in range(5):
        await attempt(journal, number)
    reader = SettlementReader(Segments(journal.directory))
    first = reader.read(upto=journal.end, max_records=2, max_bytes=NEVER)
    assert first == reader.read(upto=journal.end, max_records=2, max_bytes=NEVER)
    assert [found for found, _ in first.documents] == [key(0), key(1)]
    reader.position = first.position
    second = reader.read(upto=journal.end, max_records=NEVER, max_bytes=1)
    assert [found for found, _ in second.documents] == [key(2)]
    reader.position = second.position
    assert len(settlements(reader)) == 2
    assert reader.position == journal.end
    assert reader.damage.quarantined_records == 0


async def test_settlements_are_read_across_segments(make_journal: MakeJournal) -> None:
    """Batches do not end with files."""
    journal = make_journal()
    count = await fill_segments(journal, 3)
    reader = SettlementReader(Segments(journal.directory))
    batch = reader.read(upto=journal.end, max_records=NEVER, max_bytes=NEVER)
    assert [found for found, _ in batch.documents] == [
        key(1000 + number) for number in range(count)
    ]
    assert batch.position == journal.end


async def test_an_attempt_settles_once_and_only_after_its_intent(make_journal: MakeJournal) -> None:
    """A settlement twice or from nowhere is a defect of ours."""
    journal = make_journal()
    with pytest.raises(AssertionError):
        journal.settle(key(1), b"paid")
    await attempt(journal, 1)
    with pytest.raises(AssertionError):
        journal.settle(key(1), b"paid again")
    await journal.intend(key(2), b"intent")
    with pytest.raises(AssertionError):
        journal.intend(key(2), b"intent")
    assert list(journal.unsettled_attempts()) == [key(2)]


async def test_a_full_journal_refuses_intents_and_settles_admitted_ones(
    make_journal: MakeJournal,
) -> None:
    """A request in flight must be booked in any state of the disk; a new one can come later."""
    journal = make_journal(max_bytes=8 * SMALL)
    longest = b"s" * journal.max_payload_bytes
    admitted = admit_until_full(journal, b"i" * 100)
    assert journal.is_full
    for number in range(admitted):
        journal.settle(key(number), longest)
    await journal.flush()
    assert (
        sum(path.stat().st_size for path in journal.directory.glob("*.segment"))
        <= journal.max_bytes
    )
    assert len(settlements(SettlementReader(Segments(journal.directory)))) == admitted > 100


async def test_a_full_journal_takes_requests_again_once_postgres_has_caught_up(
    make_journal: MakeJournal,
) -> None:
    """Full, emptied, full again, with attempts that stay open all the while: no space leaks
    away.
    """
    journal = make_journal(max_bytes=4 * SMALL)
    reader = SettlementReader(Segments(journal.directory))
    staying = [key(number) for number in range(10)]
    for long in staying:
        await journal.intend(long, b"long" * 50)
    held: list[int] = []
    for turn in range(1, 6):
        held.append(
            admit_until_full(journal, b"short" * 40, settlement=b"paid" * 50, first=turn * 10_000)
        )
        await journal.flush()
        reader.position = reader.read(upto=journal.end, max_records=NEVER, max_bytes=NEVER).position
        journal.delete_before(reader.position)
        await journal.flush()
        await journal.flush()  # files go after the first
        assert not journal.is_full
    assert min(held) >= held[0] - 2 * SMALL // 400  # the space of the copies and the last segment
    assert list(journal.unsettled_attempts()) == staying


async def test_a_settlement_longer_than_its_reservation_uses_spare_space(root: Path) -> None:
    """Bounded: without spare space the caller shortens it, and the reserved length always fits."""
    # Segments whose records may be longer than an intent and SETTLEMENT_EXTRA_BYTES together.
    segment_bytes = 64 * 16 * 1024
    journal = a_journal(root, max_bytes=2 * segment_bytes, segment_bytes=segment_bytes)
    longest = b"s" * journal.max_payload_bytes
    assert len(longest) == 16 * 1024
    admitted = admit_until_full(journal, b"intent")
    too_long = 0
    for number in range(admitted):
        try:
            journal.settle(key(number), longest)
        except RecordTooLarge:
            too_long += 1
            journal.settle(key(number), longest[: len(b"intent") + SETTLEMENT_EXTRA_BYTES])
    assert 0 < too_long < admitted
    assert len(settlements(SettlementReader(Segments(journal.directory)))) == admitted
    journal.close(is_drained=True)


async def test_no_record_is_longer_than_its_bound(make_journal: MakeJournal) -> None:
    """The space at the end of each segment is computed from it."""
    journal = make_journal()
    with pytest.raises(RecordTooLarge):
        journal.intend(key(1), b"i" * (journal.max_payload_bytes + 1))
    await journal.intend(key(1), b"i" * journal.max_payload_bytes)
    with pytest.raises(RecordTooLarge):
        journal.settle(key(1), b"s" * (journal.max_payload_bytes + 1))
    journal.settle(key(1), b"s" * journal.max_payload_bytes)


async def test_space_is_allocated_ahead_and_at_once_in_a_burst(
    make_journal: MakeJournal,
) -> None:
    """A thousand requests in one turn of the loop leave the thread no time; the bound holds all the
    same.
    """
    journal = make_journal(max_bytes=64 * SMALL)
    waiting = [journal.intend(key(number), b"i" * 200) for number in range(500)]
    await asyncio.gather(*waiting)
    assert journal.stats().reserved_bytes > 15 * SMALL
    assert (
        sum(path.stat().st_size for path in journal.directory.glob("*.segment"))
        <= journal.max_bytes
    )


async def test_reserved_space_is_already_written(make_journal: MakeJournal) -> None:
    """Not only promised by the file system: a sync would have to note with each write that a block
    has become data.
    """
    journal = make_journal()
    files = [*journal.directory.glob("*.segment")]
    assert len(files) == 2
    for path in files:
        with path.open("rb") as file:
            assert os.lseek(file.fileno(), 0, os.SEEK_HOLE) == path.stat().st_size == SMALL


async def test_a_disk_without_space_refuses_intents_until_it_has_some(
    make_journal: MakeJournal,
) -> None:
    """ENOSPC while reserving ahead loses nothing: admitted requests have their space already."""
    disk = SmallDisk(3)
    journal = make_journal(disk=Disk(allocate=disk))
    admitted = admit_until_full(journal, b"i" * 200)
    assert journal.is_full
    for number in range(admitted):
        journal.settle(key(number), b"s" * journal.max_payload_bytes)
    assert len(settlements(SettlementReader(Segments(journal.directory)))) == admitted
    disk.left = NEVER
    await asyncio.to_thread(eventually, lambda: not journal.is_full, "room")
    await journal.intend(key(NEVER), b"again")


async def test_a_thread_that_finds_no_space_ahead_is_no_failure(make_journal: MakeJournal) -> None:
    """The next spare is wanted long before it is needed."""
    journal = make_journal(disk=Disk(allocate=SmallDisk(2)))
    count = 0
    while journal.stats().used_bytes < SMALL * 3 // 4:
        await attempt(journal, count, b"x" * 200)
        count += 1
    assert not list(journal.directory.glob("spare-3*"))


async def test_open_intents_are_carried_forward_before_their_segment_goes(
    make_journal: MakeJournal, root: Path
) -> None:
    """A stream may last longer than its segment; a kill after the let-go must still find its
    intent.
    """
    journal = make_journal()
    await journal.intend(key(1), b"long lasting")
    await fill_segments(journal, 2)
    journal.delete_before(journal.end)
    await journal.flush()
    # The files go one by one, behind the sync that made the copies durable.
    await asyncio.to_thread(
        eventually, lambda: journal.stats().segments == 1, "the old segments' end"
    )
    left = adopted(after_kill(journal, root / "killed").parent)
    assert left.recovered.open_intents == {key(1): b"long lasting"}
    left.release()
    journal.settle(key(1), b"paid")
    await journal.flush()
    left = adopted(after_kill(journal, root / "later").parent)
    assert left.recovered.open_intents == {}
    left.release()


async def test_a_segment_goes_only_after_the_copies_of_its_intents_are_durable(
    make_journal: MakeJournal,
) -> None:
    """Order: write and sync the copy, then unlink; a power cut between them finds one or both,
    never none.
    """
    sync = GatedSync(is_open=True)
    journal = make_journal(disk=Disk(sync=sync))
    await journal.intend(key(1), b"long lasting")
    await fill_segments(journal, 2)
    sync.turn(is_open=False)
    begun = sync.begun
    journal.delete_before(journal.end)
    await asyncio.to_thread(eventually, lambda: sync.begun > begun, "the sync of the copies")
    assert (journal.directory / "00000001.segment").exists()
    sync.turn(is_open=True)
    await journal.flush()
    await journal.flush()
    assert not (journal.directory / "00000001.segment").exists()
    assert not (journal.directory / "00000002.segment").exists()


async def test_a_commit_finds_out_that_the_folder_was_moved(make_journal: MakeJournal) -> None:
    """An intent in it would not outlive the process, so it must be refused."""
    journal = make_journal(disk=Disk(sync=lambda _: None))
    journal.directory.rename(journal.directory.with_name("away"))

    def is_found_out() -> bool:
        journal.flush()
        return journal.is_gone

    await soon(is_found_out, "a commit that looks for the folder")
    with pytest.raises(NoJournalRoom, match="removed or moved away"):
        journal.intend(key(1), b"intent")


async def test_segments_go_in_order_each_for_good(make_journal: MakeJournal) -> None:
    """A settlement's segment gone and its intent's still there would book the attempt again as
    unknown.
    """
    journal = make_journal()
    await fill_segments(journal, 3)
    middle = Position(2, 500)
    journal.delete_before(middle)
    journal.delete_before(middle)
    await journal.flush()
    await journal.flush()
    assert [path.name for path in sorted(journal.directory.glob("0*.segment"))] == [
        "00000002.segment",
        "00000003.segment",
        "00000004.segment",
    ]


async def test_copies_wait_if_they_would_take_a_settlements_space(root: Path) -> None:
    """Letting go needs space itself; it must never be that of an attempt in flight."""
    journal = a_journal(root, max_bytes=8 * SMALL, disk=Disk(allocate=SmallDisk(8)))
    admitted = admit_until_full(journal, b"i" * 250)
    await journal.flush()
    # No file grows any more, so at some point the copies of a segment have no room left.
    for _ in range(6):
        journal.delete_before(journal.end)
        await journal.flush()
        await journal.flush()
    assert journal.stats().segments > 1
    for number in range(admitted):
        journal.settle(key(number), b"s" * journal.max_payload_bytes)
    await journal.flush()
    assert (
        len({found for found, _ in settlements(SettlementReader(Segments(journal.directory)))})
        == admitted
    )
    journal.close(is_drained=True)


async def test_a_failed_sync_ends_everything_and_is_never_tried_again(root: Path) -> None:
    """After a failed fdatasync the kernel may forget the lost pages: a second one would lie."""
    errors: list[OSError] = []
    sync = FailingSync()
    journal = a_journal(root, disk=Disk(sync=sync), on_failed_sync=errors.append)
    waiting = journal.intend(key(1), b"intent")
    await asyncio.to_thread(eventually, lambda: errors, "the failure")
    journal.settle(key(1), b"paid")
    with pytest.raises(NoJournalRoom):
        journal.intend(key(2), b"intent")
    assert journal.is_full
    journal.close(is_drained=False)
    await asyncio.sleep(0)
    assert not waiting.done()
    assert sync.calls == 1
    assert [error.errno for error in errors] == [errno.EIO]
    assert journal.directory.exists()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
async def test_a_defect_in_the_thread_ends_everything_too(root: Path) -> None:
    """Who waits for a thread that is gone would wait for ever."""
    errors: list[OSError] = []

    def wrong(seconds: float) -> None:
        raise ValueError(seconds)

    journal = a_journal(root, on_synced=wrong, on_failed_sync=errors.append)
    journal.intend(key(1), b"intent")
    await asyncio.to_thread(eventually, lambda: errors, "the failure")
    journal.close(is_drained=False)
    assert "ValueError" in str(errors[0])


@pytest.mark.parametrize("room", [10, 0])
async def test_a_write_that_fails_ends_everything(root: Path, room: int) -> None:
    """Space was reserved, so a short write means that the disk is broken."""
    errors: list[OSError] = []
    journal = a_journal(root, on_failed_sync=errors.append)
    await journal.intend(key(1), b"intent")
    waiting = journal.flush()
    with (
        file_limit(journal.tail.offset + room),
        pytest.raises(OSError, match=r"bytes were written|File too large"),
    ):
        journal.settle(key(1), b"paid" * 60)
    with (
        file_limit(journal.tail.offset + room),
        pytest.raises(OSError, match=r"bytes were written|File too large"),
    ):
        journal.settle(key(1), b"paid" * 60)
    assert len(errors) == 1
    # Its written part is overwritten.
    journal.settle(key(1), b"paid")
    journal.close(is_drained=False)
    assert settlements(adopted(root).settlements) == [(key(1), b"paid")]
    assert not waiting.done() or waiting.cancelled()


async def test_a_journal_reports_its_state(make_journal: MakeJournal) -> None:
    """Health and alerts are made of it."""
    took: list[float] = []
    journal = make_journal(on_synced=took.append)
    fresh = journal.stats()
    assert (fresh.segments, fresh.open_intents, fresh.oldest_intent_age_s) == (1, 0, None)
    assert (fresh.sync_p50_s, fresh.sync_p99_s, fresh.reserved_bytes) == (None, None, 0)
    assert (fresh.used_bytes, fresh.max_bytes) == (40, 64 * SMALL)
    await journal.intend(key(1), b"intent")
    busy = journal.stats()
    assert busy.open_intents == 1
    assert busy.oldest_intent_age_s is not None
    assert busy.oldest_intent_age_s >= 0
    assert busy.sync_p50_s is not None
    assert busy.sync_p99_s is not None
    assert 0 < busy.sync_p50_s <= busy.sync_p99_s
    assert busy.reserved_bytes == (29 + 256) + (
        29 + 6
    )  # the longest settlement, and a copy of the intent
    assert busy.used_bytes == 40 + 29 + 6
    assert len(took) == 1
    journal.settle(key(1), b"paid")
    assert journal.stats().reserved_bytes == 0


def test_how_many_requests_a_journal_holds(root: Path) -> None:
    """Printed at start: minutes = capacity / 60 / requests a second."""
    assert capacity_requests(256 * 2**20, 3500) == 74_192
    assert capacity_requests(2**20, 3500) == 0


async def test_the_stated_capacity_is_a_true_bound(make_journal: MakeJournal) -> None:
    """An operator plans an outage with it."""
    journal = make_journal(max_bytes=16 * SMALL)
    stated = capacity_requests(16 * SMALL, 300, segment_bytes=SMALL)
    held = admit_until_full(journal, b"i" * 200, settlement=b"s" * 100)
    # The one that is refused needs more than its own bytes for a moment.
    assert stated <= held + 2 < stated * 1.05


async def test_a_drained_journal_leaves_nothing(make_journal: MakeJournal, root: Path) -> None:
    """A clean stop needs no adoption."""
    journal = make_journal()
    await attempt(journal, 1)
    journal.note_progress(b"progress")
    journal.close(is_drained=True)
    assert names(root) == {".lock"}


async def test_a_journal_with_open_attempts_is_never_called_drained(
    make_journal: MakeJournal,
) -> None:
    """That would throw their intents away."""
    journal = make_journal()
    await journal.intend(key(1), b"intent")
    with pytest.raises(AssertionError):
        journal.close(is_drained=True)


async def test_a_journal_left_behind_takes_no_more_space_than_its_records(
    make_journal: MakeJournal,
) -> None:
    """Workers that come and go while Postgres is away must not fill the disk with spares."""
    journal = make_journal()
    await attempt(journal, 1)
    journal.close(is_drained=False)
    assert sorted(path.name for path in journal.directory.glob("*.segment")) == ["00000001.segment"]


async def test_closing_waits_for_a_hanging_disk_no_longer_than_its_limit(root: Path) -> None:
    """The lock then goes with the process, never before the thread."""
    sync = GatedSync()
    journal = a_journal(root, disk=Disk(sync=sync))
    journal.intend(key(1), b"intent")
    journal.close(is_drained=False, limit_s=0.0)
    assert not journal.is_closed
    assert adopt_free(root) == []
    sync.turn(is_open=True)
    journal.close(is_drained=False)
    assert journal.is_closed


def test_a_journal_that_cannot_be_created_gives_the_next_step(root: Path) -> None:
    """Start-up prints it."""
    with pytest.raises(BadUsage, match="at least 32,768 bytes"):
        a_journal(root, max_bytes=SMALL)
    open_before = set(os.listdir("/proc/self/fd"))
    with pytest.raises(NoRoom, match=r"No space left on device.*Delete nothing below"):
        a_journal(root, disk=Disk(allocate=SmallDisk(1)))
    assert names(root) == {".lock"}
    assert set(os.listdir("/proc/self/fd")) == open_before, (
        "an open file keeps its space though it is deleted"
    )
    (root / "a file").touch()
    with pytest.raises(BadUsage, match="cannot be made"):
        a_journal(root / "a file")


def test_a_journal_is_held_by_its_worker_alone(make_journal: MakeJournal, root: Path) -> None:
    """A child inherits no lock, even one that keeps every descriptor: it may outlive the worker."""
    journal = make_journal()
    child = subprocess.Popen(
        [sys.executable, "-c", "input()"],
        stdin=subprocess.PIPE,
        close_fds=False,
        stdout=subprocess.DEVNULL,
    )
    try:
        assert [(found.journal_id, found.is_held) for found in journals_on(root)] == [
            (journal.journal_id, True)
        ]
        assert adopt_free(root) == []
        journal.close(is_drained=False)
        assert [found.is_held for found in journals_on(root)] == [False]
        adopted(root).finish()
    finally:
        child.communicate(b"\n")


async def test_a_loop_that_is_gone_is_no_failure(root: Path) -> None:
    """At shutdown the loop may be closed before the last sync ends, without any waiter left."""
    sync = GatedSync()
    journal = a_journal(root, disk=Disk(sync=sync))

    def leave() -> None:
        loop = asyncio.new_event_loop()
        loop.call_soon(lambda: journal.intend(key(1), b"intent"))
        loop.call_soon(lambda: loop.call_soon(loop.stop))
        loop.run_forever()
        loop.close()

    await asyncio.to_thread(leave)
    await asyncio.to_thread(eventually, lambda: sync.begun == 1, "the sync")
    sync.turn(is_open=True)
    await journal.intend(key(2), b"intent")
    journal.close(is_drained=False)


def test_files_are_the_owner_s_alone(make_journal: MakeJournal, root: Path) -> None:
    """They record each request's caller, model and time."""
    journal = make_journal()
    journal.note_progress(b"progress")
    modes = {path.stat().st_mode & 0o777 for path in [root, *root.rglob("*")] if path.is_dir()}
    assert modes == {0o700}
    assert {path.stat().st_mode & 0o777 for path in root.rglob("*") if path.is_file()} == {0o600}
    assert last_segment(journal.directory).stat().st_size == SMALL
