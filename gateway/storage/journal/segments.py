"""Segment files: space reserved ahead, appended to at the tail, deleted whole."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from uuid import UUID

from gateway.storage.journal import layout
from gateway.storage.journal.frames import SEGMENT_HEADER_BYTES, segment_header, segment_seed

SEGMENT_BYTES = 8 * 2**20
_ZEROS_BYTES = 2**20


def write_ahead(file: int, start: int, size: int) -> None:
    """Reserve space and fill it with zeros. Raises OSError where there is no space.

    Space that was only reserved becomes data with the first write to it, which a file system notes
    with each sync: on ext4 `fdatasync` then takes 0.25 ms instead of 0.15 (docs/decisions/0008).
    """
    os.posix_fallocate(file, start, size)
    zeros = bytes(min(size, _ZEROS_BYTES))
    for at in range(start, start + size, len(zeros)):
        os.pwrite(file, zeros[: start + size - at], at)


@dataclass(frozen=True, slots=True)
class Disk:
    """The two calls that a disk refuses when it breaks or is full; tests pass in refusals."""

    sync: Callable[[int], None] = os.fdatasync
    allocate: Callable[[int, int, int], None] = write_ahead


class Spare:
    """An empty file whose space the disk has promised.

    `folder` is the open directory of the journal: files are named in it wherever it is moved.
    """

    def __init__(self, folder: int, name: str, size: int, disk: Disk) -> None:
        """Raises OSError, and leaves nothing, where there is no space."""
        self.folder, self.name = folder, name
        self.file = os.open(
            name, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600, dir_fd=folder
        )
        try:
            disk.allocate(self.file, 0, size)
        except OSError:
            self.delete()
            raise

    def delete(self) -> None:
        os.close(self.file)
        with suppress(FileNotFoundError):
            os.unlink(self.name, dir_fd=self.folder)


class Segment:
    """One numbered file of records. `tail` is where the next one goes; it only grows."""

    __slots__ = ("file", "folder", "is_gone", "is_let_go", "name", "number", "seed", "tail")

    def __init__(self, spare: Spare, journal_id: UUID, number: int) -> None:
        """Turn a spare into a segment: its name becomes durable with the next sync of the journal.

        A file that cannot be named, because somebody deleted it, goes on without: Postgres gets
        what is in it as long as this process lives.
        """
        self.folder = spare.folder
        self.name = layout.segment_name(number)
        with suppress(OSError):
            os.rename(spare.name, self.name, src_dir_fd=self.folder, dst_dir_fd=self.folder)
        self.file = spare.file
        self.number = number
        self.seed = segment_seed(journal_id, number)
        self.tail = 0
        self.is_let_go = False  # to be deleted by the thread
        self.is_gone = False
        self.append(segment_header(journal_id, number))
        assert self.tail == SEGMENT_HEADER_BYTES

    def append(self, frame: bytes) -> None:
        """Write at the tail.

        Raises OSError; what was written of the frame is then overwritten by the next one.
        """
        written = os.pwrite(self.file, frame, self.tail)
        if written != len(frame):
            raise OSError(errno.EIO, f"{written} of {len(frame)} bytes were written", self.name)
        self.tail += written

    def delete(self) -> None:
        """Delete the file, durably: a later segment's deletion must not outlive a power cut that
        undoes this one.
        """
        os.close(self.file)
        with suppress(
            OSError
        ):  # somebody deleted it, or took the right to; read once more it counts no second time
            os.unlink(self.name, dir_fd=self.folder)
        os.fsync(self.folder)
        self.is_gone = True
