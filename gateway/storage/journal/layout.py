"""Names, locks, lists and removes a journal's folders and files, and documents their layout; a
crash during a removal loses nothing.

    <root>/.lock                          held briefly while journals are made, taken or removed
    <root>/<journal id>/                  locked (flock), like `lock` in it, while its worker lives
    <root>/<journal id>/00000001.segment  records; only the highest number is appended to
    <root>/<journal id>/spare-3.segment   space for the next segment; holds nothing
    <root>/<journal id>/progress-0, -1    the last running usage, written in turn
    <root>/<journal id>/quarantine/       copies of bytes that are not a record
    <root>/<journal id>.done              everything in it is in Postgres; may be deleted
    <root>/<journal id>.quarantined       a whole journal that could not be read or copied
    <root>/quarantine/<journal id>/       the damaged bytes of removed journals

A kill releases the locks.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import NamedTuple
from uuid import UUID

QUARANTINE = "quarantine"
SPARE_PATTERN = "spare-*.segment"


def segment_name(number: int) -> str:
    """Return the name of segment `number` in its journal's folder."""
    return f"{number:08d}.segment"


def segment_path(directory: Path, number: int) -> Path:
    """Return the path of segment `number`."""
    return directory / segment_name(number)


def spare_name(number: int) -> str:
    """Return the name of the `number`th spare until it becomes a segment."""
    return f"spare-{number}.segment"


def segment_numbers(directory: Path) -> list[int]:
    """Return the numbers of a journal's segments, oldest first."""
    return sorted(int(path.stem) for path in directory.glob("*.segment") if path.stem.isdecimal())


def journal_directories(root: Path) -> Iterator[tuple[UUID, Path]]:
    """Yield the journals below a root, held or not, in the order of their ids."""
    for path in sorted(root.iterdir()) if root.is_dir() else ():
        with suppress(ValueError):
            yield UUID(path.name), path


@contextmanager
def root_locked(root: Path) -> Iterator[None]:
    """Keep other processes from making, taking or removing journals below a root.

    Held for file operations only.
    """
    handle = os.open(root / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


class Lock(NamedTuple):
    """A held journal: its folder and the lock file in it, both open and locked."""

    folder: int
    file: int

    def release(self) -> None:
        """Close the journal's folder and its lock file, which unlocks both."""
        os.close(self.file)
        os.close(self.folder)


def take_lock(directory: Path) -> Lock | None:
    """Lock a journal and return the lock, or None if another worker holds it.

    The folder itself is locked, because tools that clean up old files delete the never-written file
    `lock` first. The file is locked too, for versions that check only the file. The caller holds
    the root's lock, so neither can be removed between opening and locking.
    """
    with ExitStack() as undo:
        folder = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        undo.callback(os.close, folder)
        if not _try_lock(folder):
            return None
        file = os.open("lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600, dir_fd=folder)
        undo.callback(os.close, file)
        if not _try_lock(file):
            return None
        undo.pop_all()
        return Lock(folder, file)


def _try_lock(handle: int) -> bool:
    """Lock an open file; return False if another process holds it."""
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def sync_directory(directory: Path) -> None:
    """Make the names of the files in a directory durable."""
    handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def remove(directory: Path, *, is_copied: bool = True) -> None:
    """Remove a journal whose records are in Postgres; its damaged bytes stay, below the root.

    It is renamed before it is deleted: half a journal must never look like a whole one. If
    `is_copied` is False, the damaged bytes could not be copied and the whole journal is set aside.
    """
    root = directory.parent
    try:
        _move_quarantine(directory, root / QUARANTINE / directory.name)
    except OSError:  # a full disk: a rename needs no space
        is_copied = False
    with root_locked(root):
        directory.rename(
            directory.with_name(f"{directory.name}.{'done' if is_copied else 'quarantined'}")
        )
    sync_directory(root)
    delete_done(root)


def delete_done(root: Path) -> None:
    """Delete the journals below a root that `remove` has renamed, also those left by a crash; two
    processes may delete the same one at once.
    """
    for path in root.glob("*.done"):
        shutil.rmtree(path, ignore_errors=True)


def _move_quarantine(directory: Path, target: Path) -> None:
    """Move a journal's damaged bytes to another folder, durably."""
    found = sorted((directory / QUARANTINE).glob("*"))
    if found:
        target.mkdir(mode=0o700, parents=True, exist_ok=True)
        for path in found:
            path.replace(target / path.name)
        for made in (target, target.parent, target.parent.parent):
            sync_directory(made)
