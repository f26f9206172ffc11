"""Journals for the tests: small ones, broken disks, and the remains after a kill or a power cut."""

from __future__ import annotations

import errno
import os
import resource
import shutil
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import UUID

from gateway.domain.ledger.usage_event import Key
from gateway.storage.journal import (
    AdoptedJournal,
    Journal,
    NoJournalRoom,
    SettlementReader,
    adopt_free,
)
from gateway.storage.journal.layout import segment_numbers, segment_path

# A segment so small that a test fills several; its records hold at most 256 bytes.
SMALL = 16 * 1024
NEVER = 10**9


def key(number: int, attempt: int = 1) -> Key:
    return UUID(int=number), attempt


def refuse(error: OSError) -> None:
    """For journals whose disk must not fail."""
    raise AssertionError(f"the journal's disk failed: {error}")


def a_journal(root: Path, **changes: Any) -> Journal:
    options: dict[str, Any] = {
        "max_bytes": 64 * SMALL,
        "segment_bytes": SMALL,
        "on_failed_sync": refuse,
    }
    return Journal.create(root, **(options | changes))


def after_kill(journal: Journal, root: Path) -> Path:
    """Return a copy of a journal as a kill at this moment leaves it: written bytes are there,
    the lock is free.
    """
    root.mkdir(exist_ok=True)
    copied = root / journal.directory.name
    # Its thread may delete a segment meanwhile: a kill a moment earlier or later.
    shutil.copytree(
        journal.directory, copied, ignore_dangling_symlinks=True, copy_function=_copy_if_there
    )
    return copied


def adopted(root: Path) -> AdoptedJournal:
    """The one journal below a root that is free."""
    [found] = adopt_free(root)
    return found


def names(folder: Path) -> set[str]:
    """Return the names in a directory."""
    return {path.name for path in folder.iterdir()}


def admit_until_full(
    journal: Journal,
    intent: bytes,
    *,
    settlement: bytes | None = None,
    first: int = 0,
    until: int = NEVER,
) -> int:
    """Intend, and settle if a settlement is given, until the journal is full; return how many
    were admitted.
    """
    for number in range(first, until):
        try:
            journal.intend(key(number), intent)
        except NoJournalRoom:
            return number - first
        if settlement is not None:
            journal.settle(key(number), settlement)
    return until - first


def settlements(reader: SettlementReader, *, max_records: int = NEVER) -> list[tuple[Key, bytes]]:
    """Read an adopted journal to its end, batch by batch."""
    found: list[tuple[Key, bytes]] = []
    while True:
        batch = reader.read(upto=None, max_records=max_records, max_bytes=NEVER)
        reader.position = batch.position
        if not batch.documents:
            return found
        found += batch.documents


def last_segment(directory: Path) -> Path:
    return segment_path(directory, segment_numbers(directory)[-1])


def written(directory: Path) -> bytes:
    """The bytes of the last segment without the space behind them."""
    return last_segment(directory).read_bytes().rstrip(b"\0")


@contextmanager
def file_limit(size: int) -> Iterator[None]:
    """Let no file of this process grow beyond `size` bytes for a moment: a write across it is cut
    short.

    Python does not keep the modules that are imported meanwhile: it does not notice that its own
    write was cut short, and no later process could import the rest.
    """
    before, keeps_none = resource.getrlimit(resource.RLIMIT_FSIZE), sys.dont_write_bytecode
    sys.dont_write_bytecode = True
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        sys.dont_write_bytecode = keeps_none


class GatedSync:
    """An fdatasync that ends only while it is open or when one is let; counts those that began."""

    def __init__(self, *, is_open: bool = False) -> None:
        self.begun = 0
        self._is_open = is_open
        self._let = 0
        self._change = threading.Condition()

    def __call__(self, file: int) -> None:
        os.fdatasync(file)
        with self._change:
            self.begun += 1
            self._change.wait_for(lambda: self._is_open or self._let)
            self._let -= not self._is_open

    def let_one_end(self) -> None:
        with self._change:
            self._let += 1
            self._change.notify_all()

    def turn(self, *, is_open: bool) -> None:
        with self._change:
            self._is_open = is_open
            self._change.notify_all()


class FailingSync:
    """An fdatasync that fails from the `when`th on, as a dying disk does."""

    def __init__(self, when: int = 1) -> None:
        self.calls = 0
        self._when = when

    def __call__(self, file: int) -> None:
        self.calls += 1
        if self.calls >= self._when:
            raise OSError(errno.EIO, "Input/output error")


class SmallDisk:
    """Space for that many files of any size; `left` may be changed while it is in use."""

    def __init__(self, files: int) -> None:
        self.left = files

    def __call__(self, file: int, offset: int, size: int) -> None:
        if not self.left:
            raise OSError(errno.ENOSPC, "No space left on device")
        self.left -= 1
        os.posix_fallocate(file, offset, size)


def _copy_if_there(source: str, target: str) -> None:
    try:
        shutil.copy(source, target)
    except FileNotFoundError:
        pass
