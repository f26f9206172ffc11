"""Reads journal segments: settlements in order for the writer to Postgres, every record for
recovery; copies damaged bytes aside.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple
from uuid import UUID

from gateway.domain.ledger.usage_event import Key
from gateway.storage.journal import layout
from gateway.storage.journal.frames import (
    SEGMENT_HEADER_BYTES,
    Frame,
    FrameKind,
    Gap,
    header_gap,
    scan,
    segment_seed,
)

_SETTLEMENT = int(FrameKind.SETTLEMENT)
READ_TRIES = 3
# Errors of a disk that will never return the bytes. Any other error may be gone at the next try.
_DAMAGE = frozenset({errno.EIO, errno.EISDIR, errno.EUCLEAN, errno.EBADMSG})


class Position(NamedTuple):
    """A place between two records; positions of one journal are ordered."""

    segment: int
    offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Settlements in the order in which they were made, and the position of the next batch."""

    documents: list[tuple[Key, bytes]]
    position: Position


@dataclass(frozen=True, slots=True, kw_only=True)
class Damage:
    """The bytes found that are not a record.

    `torn_tails`: 1 if the last write was cut short, else 0. `quarantined_records`: other stretches
    of bytes that are not a record, each at least one record. `quarantined_bytes` counts both;
    copies of all are kept if `is_copied`.
    """

    torn_tails: int = 0
    quarantined_records: int = 0
    quarantined_bytes: int = 0
    is_copied: bool = True


class Segments:
    """The segments of one journal, read only. The reader copies a damaged stretch aside when it
    finds it.

    `is_open`: they are being written. Then no unreadable bytes are ever skipped.
    """

    is_open = False

    def __init__(self, directory: Path) -> None:
        """Take a journal's folder, whose name is the journal's id."""
        self.directory = directory
        self.journal_id = UUID(directory.name)
        self.is_copied = True
        self._unreadable: set[int] = set()

    def numbers(self) -> list[int]:
        """Return the numbers of the journal's segments, oldest first."""
        return layout.segment_numbers(self.directory)

    def records(
        self, number: int, *, start: int = 0, end: int | None = None
    ) -> Iterator[Frame | Gap]:
        """Yield the records and gaps of a segment between two offsets; copy the bytes of each gap
        aside.

        Raises `UnknownFormat`, and `OSError` if another try may succeed.

        A segment that the disk has lost is one gap, yielded once; it cannot be copied.
        """
        if number in self._unreadable:
            return
        try:
            data = self.load(number, start, end)
        except OSError as problem:
            if self.is_open or problem.errno not in _DAMAGE:
                raise
            self.is_copied = False
            self._unreadable.add(number)
            yield Gap(start, start + 1, is_tail=False)
            return
        if start == 0:
            damaged = header_gap(data, self.journal_id, number)
            if damaged is not None:
                self._set_aside(number, damaged, data[: damaged.end])
                yield damaged
        skipped = max(0, SEGMENT_HEADER_BYTES - start)
        for item in scan(
            data, start=skipped, seed=segment_seed(self.journal_id, number), offset=start
        ):
            if isinstance(item, Gap):
                self._set_aside(number, item, data[item.start - start : item.end - start])
            yield item

    def load(self, number: int, start: int, end: int | None) -> bytes:
        """Return the bytes of a segment between two offsets; try again if the disk reports an I/O
        error.
        """
        for _ in range(READ_TRIES - 1):
            try:
                return self._load(number, start, end)
            except OSError as problem:
                if problem.errno != errno.EIO:
                    raise
        return self._load(number, start, end)

    def _load(self, number: int, start: int, end: int | None) -> bytes:
        """Read a segment's file between two offsets, to its end if `end` is None."""
        handle = os.open(layout.segment_path(self.directory, number), os.O_RDONLY | os.O_CLOEXEC)
        try:
            return read_between(handle, start, os.fstat(handle).st_size if end is None else end)
        finally:
            os.close(handle)

    def _set_aside(self, number: int, gap: Gap, found: bytes) -> None:
        """Copy the bytes of a gap into the quarantine, durably; a failure is only recorded in
        `is_copied`.
        """
        folder = self.directory / layout.QUARANTINE
        try:
            folder.mkdir(mode=0o700, exist_ok=True)
            handle = os.open(
                folder / f"{number:08d}-{gap.start:08d}.bin",
                os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC,
                0o600,
            )
            with os.fdopen(handle, "wb") as file:
                file.write(found)
                file.flush()
                os.fsync(handle)  # the segment is deleted later
            layout.sync_directory(folder)
        except OSError:
            self.is_copied = False


class SettlementReader:
    """A reader that returns settlements in order.

    It does not advance by itself: set `position` once a batch is in Postgres.

    Used from the writer's thread, on a journal that is being written or on an adopted one.
    """

    def __init__(self, segments: Segments) -> None:
        """Take a journal's segments, to be read from their first record."""
        self.segments = segments
        self.position = Position(0, 0)
        self._gaps: dict[Position, int] = {}

    @property
    def damage(self) -> Damage:
        """Return the damage that `read` has found so far."""
        return Damage(
            quarantined_records=len(self._gaps),
            quarantined_bytes=sum(self._gaps.values()),
            is_copied=self.segments.is_copied,
        )

    def read(self, *, upto: Position | None, max_records: int, max_bytes: int) -> Batch:
        """Return the next settlements after `position`, which stays: at least one if there is one
        before `upto` (None: the journal's end).

        Returns at most `max_records`, and stops once `max_bytes` of payload are reached.
        """
        documents: list[tuple[Key, bytes]] = []
        left_bytes = max_bytes
        position = self.position
        for number in self._numbers(upto):
            position = max(position, Position(number, 0))
            reached = position.offset
            end = upto.offset if upto and upto.segment == number else None
            for item in self.segments.records(number, start=reached, end=end):
                reached = item.end
                if isinstance(item, Gap):
                    self._gaps[Position(number, item.start)] = item.end - item.start
                elif item.kind == _SETTLEMENT:
                    documents.append((item.key, item.payload))
                    left_bytes -= len(item.payload)
                    if len(documents) >= max_records or left_bytes <= 0:
                        return Batch(documents=documents, position=Position(number, reached))
            position = Position(number, reached)
        return Batch(documents=documents, position=position)

    def _numbers(self, upto: Position | None) -> list[int]:
        """Return the numbers of the segments from the reader's position up to `upto`, in order."""
        return [
            number
            for number in self.segments.numbers()
            if number >= self.position.segment and (upto is None or number <= upto.segment)
        ]


def read_between(handle: int, start: int, end: int) -> bytes:
    """Read from an open file; return less than `end - start` bytes if it is shorter."""
    parts = []
    while start < end and (part := os.pread(handle, end - start, start)):
        parts.append(part)
        start += len(part)
    return b"".join(parts)
