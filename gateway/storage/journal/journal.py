"""Appends one worker's intents and settlements to its own disk before they go anywhere else, and
reports when they are durable.

It owns durability, space and order. It handles bytes and keys and does not know events.
`docs/reference/journal.md` documents the format, `docs/decisions/0008-local-journal.md` the
reasons.
"""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
import threading
import time
from collections import deque
from collections.abc import Callable, Collection
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from uuid import UUID, uuid4

from msgspec import Struct

from gateway.domain.ledger.usage_event import Key
from gateway.errors import BadUsage
from gateway.storage.journal import layout
from gateway.storage.journal.frames import FRAME_BYTES, FrameKind, encode
from gateway.storage.journal.group_commit import STOP_LIMIT_S, GroupCommit
from gateway.storage.journal.reader import Position, read_between
from gateway.storage.journal.running_usage import RunningUsageFile
from gateway.storage.journal.segments import SEGMENT_BYTES, Disk, Segment, Spare
from gateway.storage.journal.sizes import Sizes

# Named here because each attempt writes both, and finding an enum's member takes ten times as long.
_INTENT, _SETTLEMENT = FrameKind.INTENT, FrameKind.SETTLEMENT
SETTLEMENT_EXTRA_BYTES = 4096  # how much longer a settlement may be than its intent
LEAST_SEGMENTS = 2
# Seconds between tries to grow on a full disk; without it every request would try.
GROW_AGAIN_S = 1.0
LOOK_AGAIN_S = 1.0  # between checks that its folder still exists


class NoJournalRoom(Exception):
    """There is no room for an intent and its settlement: admit nothing until Postgres has taken
    the backlog.
    """


class RecordTooLarge(Exception):
    """A payload exceeds the longest record, or its reservation plus the spare bytes: shorten it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalStats:
    """The state of a journal. `room_bytes` is the room left within its limit and on its disk.

    `sync_p50_s` and `sync_p99_s` cover the last 256 group commits; they are None before the first.
    """

    segments: int
    used_bytes: int
    max_bytes: int
    room_bytes: int
    reserved_bytes: int
    open_intents: int
    oldest_intent_age_s: float | None
    progress_misses: int
    sync_p50_s: float | None
    sync_p99_s: float | None


class NoRoom(BadUsage):
    """The disk has no space for a new journal."""


class _OpenIntent(Struct, gc=False):
    payload: bytes
    reserved_bytes: int
    segment: int
    since_s: float


class Journal:
    """A journal that appends records and reports when they are durable.

    Used only from the event loop's thread, except for `end`.

    The space promised by the disk (the last segment's rest and the spares) always covers each open
    intent's settlement and a copy of the intent. The copy lets its segment be deleted while the
    intent is open. Only intents are refused.
    """

    @classmethod
    def create(
        cls,
        root: Path,
        *,
        max_bytes: int,
        on_failed_sync: Callable[[OSError], None],
        syncs: bool = True,
        on_synced: Callable[[float], None] | None = None,
        segment_bytes: int = SEGMENT_BYTES,
        disk: Disk | None = None,
    ) -> Journal:
        """Create and lock a new journal below `root`.

        `max_bytes` bounds its segments and spares together.

        `on_failed_sync(error)` is called, perhaps in another thread, when the disk fails; it must
        end the process. `on_synced(seconds)` is called after each group commit, in another thread.
        Raises `BadUsage` if `max_bytes` is less than two segments or the directory cannot be
        written.
        """
        sizes = Sizes(segment_bytes, max_bytes // segment_bytes)
        if sizes.max_segments < LEAST_SEGMENTS:
            raise BadUsage(
                f"A journal needs at least {LEAST_SEGMENTS * segment_bytes:,} bytes, not "
                f"{max_bytes:,}."
            )
        directory = root / str(uuid4())
        try:
            root.mkdir(mode=0o700, parents=True, exist_ok=True)
            with layout.root_locked(root):
                directory.mkdir(mode=0o700)
                lock = layout.take_lock(directory)
            assert lock is not None
            return cls(
                directory,
                lock,
                sizes,
                Disk() if disk is None else disk,
                syncs=syncs,
                on_failed_sync=on_failed_sync,
                on_synced=on_synced,
            )
        except OSError as error:
            shutil.rmtree(directory, ignore_errors=True)
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise NoRoom(
                    f"The journal {directory} cannot be made: {error.strerror}. Enlarge the disk "
                    f"of {root}, or move other files away from it. Delete nothing below {root}: "
                    "Postgres does not have that usage yet."
                ) from error
            remedy = (
                "Mount its file system for writing, or name another folder in TOLLGATE_JOURNAL_DIR."
                if error.errno == errno.EROFS
                else f"Give this user the right to write below {root}."
            )
            raise BadUsage(
                f"The journal {directory} cannot be made: {error.strerror}. {remedy}"
            ) from error

    def __init__(
        self,
        directory: Path,
        lock: layout.Lock,
        sizes: Sizes,
        disk: Disk,
        *,
        syncs: bool,
        on_failed_sync: Callable[[OSError], None],
        on_synced: Callable[[float], None] | None,
    ) -> None:
        """Take a new, locked folder, create the journal's first segments, and start the commit
        thread. Raises `OSError` on a full disk.
        """
        self.directory = directory
        self.journal_id = UUID(directory.name)
        self.is_closed = False
        self._lock = lock
        self._sizes = sizes
        self._disk = disk
        self._syncs = syncs
        self._open: dict[Key, _OpenIntent] = {}
        self._reserved_bytes = 0  # for settlements and for copies of the intents
        self._copies_bytes = 0  # for the copies alone
        self._spares: deque[Spare] = deque()  # the thread appends, the loop removes from the left
        self._spare_numbers = count(1)
        self._growth = threading.Lock()
        self._is_growing = False
        self._grow_again_s = 0.0
        self._is_gone = False
        self._look_again_s = 0.0
        # Replaced, never changed in place: the thread reads it while the loop begins a segment.
        # Records are appended to the last one.
        self._segments: tuple[Segment, ...] = ()
        # An open file keeps its space after deletion: the next try would find none.
        with ExitStack() as undo:
            undo.callback(lock.release)
            for _ in range(LEAST_SEGMENTS):
                self._spares.append(self._new_spare())
                undo.callback(os.close, self._spares[-1].file)
            self._progress = RunningUsageFile(directory, self.journal_id)
            undo.callback(self._progress.close)
            self._begin_segment()
            for made in (directory, directory.parent, directory.parent.parent):
                layout.sync_directory(made)
            undo.pop_all()
        self._synced = self.tail
        self._commits = GroupCommit(
            self._sync if syncs else lambda: None,
            on_failure=on_failed_sync,
            on_idle=self._look_for_folder,
            on_synced=on_synced,
        )

    def intend(self, key: Key, payload: bytes) -> asyncio.Future[None]:
        """Append an attempt's intent and reserve space for its settlement; the future resolves when
        the intent is durable.

        From now on space for its settlement is reserved.

        Raises `NoJournalRoom` or `RecordTooLarge`. Raises `OSError` if the disk failed;
        `on_failed_sync` was then called.
        """
        if len(payload) > self._sizes.max_payload_bytes:
            raise RecordTooLarge(
                f"an intent of {len(payload):,} bytes: at most {self._sizes.max_payload_bytes:,}"
            )
        frame_bytes = FRAME_BYTES + len(payload)
        reserved_bytes = self._reservation(len(payload))
        free_bytes = self._make_room(frame_bytes + reserved_bytes)
        segment = self._append(_INTENT, key, payload)
        intent = _OpenIntent(payload, reserved_bytes, segment, time.monotonic())
        assert self._open.setdefault(key, intent) is intent, "intended once"
        self._reserved_bytes += reserved_bytes
        self._copies_bytes += frame_bytes
        if free_bytes < self._sizes.segment_bytes:
            self._grow_ahead()
        return self.flush()

    def settle(self, key: Key, payload: bytes) -> None:
        """Append the settlement of an open intent to the journal.

        It is in the page cache when this returns, and durable soon after.

        A payload of at most its intent's length + `SETTLEMENT_EXTRA_BYTES` always has room. Raises
        `RecordTooLarge`, and writes nothing, if a longer one has no room.
        """
        intent = self._open.get(key)
        assert intent is not None, "settled once, and intended before"
        excess_bytes = FRAME_BYTES + len(payload) - intent.reserved_bytes
        if (
            len(payload) > self._sizes.max_payload_bytes
            or 0 < excess_bytes > self._unreserved_bytes()
        ):
            raise RecordTooLarge(
                f"a settlement of {len(payload):,} bytes: its intent reserved "
                f"{intent.reserved_bytes:,}"
            )
        self._append(_SETTLEMENT, key, payload)
        del self._open[key]
        self._reserved_bytes -= intent.reserved_bytes
        self._copies_bytes -= FRAME_BYTES + len(intent.payload)
        if self._syncs:
            self._commits.request_commit()

    def note_progress(self, payload: bytes) -> None:
        """Replace the last running usage of all live streams in the progress files. Survives a
        kill, not a power cut.
        """
        self._progress.replace(payload)

    def flush(self) -> asyncio.Future[None]:
        """Return a future that resolves when everything appended so far is durable."""
        if self._syncs:
            return self._commits.wait()
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        done.set_result(None)
        return done

    @property
    def end(self) -> Position:
        """Return the position up to which a reader may read: the end of the durable records. For
        any thread.

        A settlement must be durable here before it is in Postgres. Otherwise a power cut could
        leave only its intent, and the attempt would be booked again as unknown.
        """
        return self._synced if self._syncs else self.tail

    @property
    def tail(self) -> Position:
        """Return the position of the next record, unless it begins a segment. For any thread."""
        # One object, so the number and the tail belong to the same segment.
        last = self._segments[-1]
        return Position(last.number, last.tail)

    @property
    def is_full(self) -> bool:
        """Return True if a request of the largest size would be refused now."""
        needed_bytes = 3 * self._sizes.max_frame_bytes  # intent, its copy, settlement
        return (
            self._commits.has_failed
            or self.is_gone
            or (self._free_bytes() < needed_bytes and not self._may_add_spare())
        )

    @property
    def used_bytes(self) -> int:
        """Return the bytes of the segments in use: whole segments, and the written part of the last
        one.
        """
        return (len(self._live_segments()) - 1) * self._sizes.segment_bytes + self._segments[
            -1
        ].tail

    @property
    def max_bytes(self) -> int:
        """Return the limit of the journal's segments and spares together, in bytes."""
        return self._sizes.max_bytes

    @property
    def max_payload_bytes(self) -> int:
        """Return the longest payload of one record, in bytes."""
        return self._sizes.max_payload_bytes

    @property
    def is_gone(self) -> bool:
        """Return True if the journal's folder was removed or moved away: an intent would not
        outlive this process. It was looked at within the last second or so, also without traffic.
        """
        return self._is_gone

    def segment_numbers(self) -> list[int]:
        """Return the numbers of the segments that hold records, oldest first. For any thread."""
        return [segment.number for segment in self._segments if not segment.is_gone]

    def read_segment(self, number: int, start: int, end: int | None) -> bytes:
        """Return a segment's bytes between two offsets, read through the open file even if it was
        renamed or deleted.

        Raises `OSError` if bytes are missing.

        For the writer's thread: a segment is deleted only after it was read to its end.
        """
        segment = next(segment for segment in self._segments if segment.number == number)
        until = segment.tail if end is None else min(end, segment.tail)
        data = read_between(segment.file, start, until)
        if len(data) < until - start:
            raise OSError(errno.EIO, "the segment is shorter than what was written", segment.name)
        return data

    def unsettled_attempts(self) -> Collection[Key]:
        """Return the attempts that have an intent and no settlement, oldest first."""
        return self._open.keys()

    def stats(self) -> JournalStats:
        """Return the journal's state: its size, its room, its open intents and the durations of its
        syncs.
        """
        oldest = next(iter(self._open.values()), None)
        times_s = self._commits.times_s()
        return JournalStats(
            segments=len(self._live_segments()),
            used_bytes=self.used_bytes,
            max_bytes=self.max_bytes,
            room_bytes=self._room_bytes(),
            reserved_bytes=self._reserved_bytes,
            open_intents=len(self._open),
            oldest_intent_age_s=None if oldest is None else time.monotonic() - oldest.since_s,
            progress_misses=self._progress.misses,
            sync_p50_s=times_s[len(times_s) // 2] if times_s else None,
            sync_p99_s=times_s[len(times_s) * 99 // 100] if times_s else None,
        )

    def delete_before(self, upto: Position) -> None:
        """Delete the segments before a position, once Postgres has all their settlements; their
        open intents are kept.

        Their open intents are first written again at the end and made durable. The thread deletes
        the files one by one. If there is no room for the open intents yet, a later call deletes the
        rest.
        """
        assert upto <= self.end
        for segment in self._live_segments():
            if segment.number < upto.segment and not segment.is_deleted:
                if not self._carry_forward(segment):
                    return
                segment.is_deleted = True
                self._commits.after_commit(segment.delete)

    def close(self, *, is_drained: bool, limit_s: float = STOP_LIMIT_S) -> None:
        """Sync the journal once more and release its lock.

        A drained journal is removed; any other stays for adoption.

        `is_drained`: every attempt is settled and every settlement is in Postgres.
        """
        assert not (is_drained and self._open)
        if not self._commits.stop(limit_s):
            # The disk hangs: its thread still uses the files, and the lock ends with the process.
            return
        self._look_for_folder()
        self._progress.close()
        for spare in self._spares:
            spare.delete()
        for segment in self._live_segments():
            os.close(segment.file)
        if is_drained and not self._is_gone:
            layout.remove(self.directory)
        self._lock.release()
        self.is_closed = True

    def _carry_forward(self, segment: Segment) -> bool:
        """Copy a segment's open intents to the end of the journal, so that the segment can be
        deleted.

        Returns False, and writes none, if there is no room.
        """
        carried = [
            (key, intent) for key, intent in self._open.items() if intent.segment == segment.number
        ]
        size = sum(FRAME_BYTES + len(intent.payload) for _, intent in carried)
        # The reservations of settlements stay untouched; those of copies are free again after the
        # segment is deleted.
        if size > self._unreserved_bytes() + self._copies_bytes:
            return False
        for key, intent in carried:
            intent.segment = self._append(_INTENT, key, intent.payload)
        return True

    def _reservation(self, intent_bytes: int) -> int:
        """Return the bytes for the settlement and for the copy of the intent that lets its
        segment be deleted.
        """
        longest = min(intent_bytes + SETTLEMENT_EXTRA_BYTES, self._sizes.max_payload_bytes)
        return FRAME_BYTES + longest + FRAME_BYTES + intent_bytes

    def _unreserved_bytes(self) -> int:
        """Return the bytes on disk that no open intent has reserved; negative until segments with
        copied intents are deleted.
        """
        sizes = self._sizes
        room = sizes.room_behind(self._segments[-1].tail) + len(self._spares) * sizes.room_bytes
        return room - self._reserved_bytes

    def _room_bytes(self) -> int:
        """Return the promised bytes plus those that the journal could still gain by growing on
        its disk.
        """
        growth = (self._sizes.max_segments - self._file_count()) * self._sizes.segment_bytes
        disk = os.fstatvfs(self._lock.folder)  # by the open folder: its name may be gone
        return max(self._unreserved_bytes(), 0) + max(min(growth, disk.f_bavail * disk.f_frsize), 0)

    def _free_bytes(self) -> int:
        """Return the bytes of the journal that are free for new intents."""
        return self._unreserved_bytes() - self._sizes.ballast_bytes

    def _live_segments(self) -> tuple[Segment, ...]:
        """Return the segments whose files still exist."""
        if self._segments[0].is_gone:
            self._segments = tuple(segment for segment in self._segments if not segment.is_gone)
        return self._segments

    def _make_room(self, needed_bytes: int) -> int:
        """Add spare segments until the needed bytes are free; return the free bytes beyond them.
        Raises `NoJournalRoom`.
        """
        if self._commits.has_failed:
            raise NoJournalRoom("the disk of the journal failed")
        if self.is_gone:
            raise NoJournalRoom("its folder was removed or moved away")
        while (free_bytes := self._free_bytes()) < needed_bytes:
            # Checked twice: the thread may have made the last possible spare in between.
            if not self._add_spare() and self._free_bytes() < needed_bytes:
                raise NoJournalRoom(
                    f"{self.used_bytes:,} of {self.max_bytes:,} bytes are used, the rest is "
                    "reserved"
                )
        return free_bytes - needed_bytes

    def _grow_ahead(self) -> None:
        """Have the commit thread make the next spare segment before it is needed, if the limit
        allows one.
        """
        if not self._is_growing and self._may_add_spare():
            self._is_growing = True
            self._commits.after_commit(self._add_spare_in_thread)

    def _add_spare_in_thread(self) -> None:
        """Make one more spare segment; runs in the commit thread."""
        self._add_spare()
        self._is_growing = False

    def _add_spare(self) -> bool:
        """Make one more spare segment for the journal, in either thread.

        Returns False if no more are allowed, or if the disk has no space.
        """
        with self._growth:  # held for one allocation, never for a sync
            if not self._may_add_spare():
                return False
            try:
                self._spares.append(self._new_spare())
            except OSError:
                self._grow_again_s = time.monotonic() + GROW_AGAIN_S
                return False
            return True

    def _may_add_spare(self) -> bool:
        """Return True if the limit allows one more segment and no failure is recent."""
        return (
            self._file_count() < self._sizes.max_segments and time.monotonic() >= self._grow_again_s
        )

    def _file_count(self) -> int:
        """Return the number of segment files, spares included."""
        return sum(not segment.is_gone for segment in self._segments) + len(self._spares)

    def _new_spare(self) -> Spare:
        """Create the next spare segment file. Raises `OSError` if the disk has no space."""
        return Spare(
            self._lock.folder,
            layout.spare_name(next(self._spare_numbers)),
            self._sizes.segment_bytes,
            self._disk,
        )

    def _append(self, kind: FrameKind, key: Key, payload: bytes) -> int:
        """Write a record at the end and return the number of its segment."""
        segment = self._segments[-1]
        try:
            if segment.tail + FRAME_BYTES + len(payload) > self._sizes.segment_bytes:
                segment = self._begin_segment()
            segment.append(encode(kind, key, payload, seed=segment.seed))
        except OSError as error:
            self._commits.fail(error)
            raise
        return segment.number

    def _begin_segment(self) -> Segment:
        """Turn the oldest spare into the segment to which the next records are appended, and return
        it.
        """
        assert self._spares, "what is appended has its room reserved"
        number = self._segments[-1].number + 1 if self._segments else 1
        segment = Segment(self._spares[0], self.journal_id, number)
        self._segments = (*self._segments, segment)
        self._look_for_folder()
        # Removed last: the thread counts both, and may see one file too many but never one too few.
        self._spares.popleft()
        return segment

    def _sync(self) -> None:
        """Make the records durable that were appended before this began. Runs in the thread."""
        segments = self._segments
        upto = Position(segments[-1].number, segments[-1].tail)
        begun_at = self._synced.segment
        for segment in segments:
            if segment.number >= begun_at:
                self._disk.sync(segment.file)
        if upto.segment > begun_at:
            os.fsync(self._lock.folder)
        if time.monotonic() >= self._look_again_s:
            self._look_for_folder()
        self._synced = upto

    def _look_for_folder(self) -> None:
        """Record whether the journal's folder is gone: its last segment must still have its name.
        In either thread; two system calls.
        """
        segment = self._segments[-1]
        try:
            named, opened = (
                os.stat(layout.segment_path(self.directory, segment.number)),
                os.fstat(segment.file),
            )
            self._is_gone = (named.st_dev, named.st_ino) != (opened.st_dev, opened.st_ino)
        # The name is missing or cannot be looked up: a file in its place, permissions, a dead
        # mount.
        except OSError:
            self._is_gone = True
        self._look_again_s = time.monotonic() + LOOK_AGAIN_S
