"""Where a journal's files lie, who holds it, and how it is removed without a moment at which a
crash would lose it.

<root>/.lock                          held for a moment while journals are made, taken or removed
<root>/<journal id>/                  flock, as of `lock` in it, as long as its worker lives; gone
with a kill <root>/<journal id>/00000001.segment  records; only the highest number is appended to
<root>/<journal id>/spare-3.segment   space for the next segment; holds nothing <root>/<journal
id>/progress-0, -1    the last running usage, written in turn <root>/<journal id>/quarantine/
copies of bytes that are no record <root>/<journal id>.done              everything in it is in
Postgres; may be deleted at any time <root>/<journal id>.quarantined       a whole journal that
could not be read or copied <root>/quarantine/<journal id>/       what was damaged in journals that
are gone
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
    """The name of segment `number` in its journal's folder."""
    return f"{number:08d}.segment"


def segment_path(directory: Path, number: int) -> Path:
    """Where segment `number` lies."""
    return directory / segment_name(number)


def spare_name(number: int) -> str:
    """The name of the `number`th spare until it becomes a segment."""
    return f"spare-{number}.segment"


def segment_numbers(directory: Path) -> list[int]:
    """Return the numbers of a journal's segments, oldest first."""
    return sorted(int(path.stem) for path in directory.glob("*.segment") if path.stem.isdecimal())


def journal_directories(root: Path) -> Iterator[tuple[UUID, Path]]:
    """Yield the journals below a root, whoever holds them, in the order of their ids."""
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
    """A held journal: its folder and the file in it, both open and locked."""

    folder: int
    file: int

    def release(self) -> None:
        """Let go of both."""
        os.close(self.file)
        os.close(self.folder)


def take_lock(directory: Path) -> Lock | None:
    """Return the held lock of a journal, or None where another worker holds it.

    The folder itself is locked, because a cleaner of old files takes the file `lock` first: it is
    never written. The file is locked too, for versions that look at it alone. The caller holds the
    root's lock, so that nobody removes either between the opening and the locking.
    """
    with ExitStack() as undo:
        folder = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        undo.callback(os.close, folder)
        if not _is_taken(folder):
            return None
        file = os.open("lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600, dir_fd=folder)
        undo.callback(os.close, file)
        if not _is_taken(file):
            return None
        undo.pop_all()
        return Lock(folder, file)


def _is_taken(handle: int) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def sync_directory(directory: Path) -> None:
    """Make the names in a directory durable."""
    handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def remove(directory: Path, *, is_copied: bool = True) -> None:
    """Remove a journal whose records are in Postgres; what was damaged in it stays, below the root.

    Renamed before it is deleted: half a journal must never look like a whole one. With `is_copied`
    False the damaged bytes could not be copied, and the journal is set aside whole.
    """
    root = directory.parent
    try:
        _move_quarantine(directory, root / QUARANTINE / directory.name)
    except OSError:  # a full disk: a rename alone needs no space
        is_copied = False
    with root_locked(root):
        directory.rename(
            directory.with_name(f"{directory.name}.{'done' if is_copied else 'quarantined'}")
        )
    sync_directory(root)
    delete_done(root)


def delete_done(root: Path) -> None:
    """Delete journals that are done; one that another process is deleting too does no harm."""
    for path in root.glob("*.done"):
        shutil.rmtree(path, ignore_errors=True)


def _move_quarantine(directory: Path, target: Path) -> None:
    found = sorted((directory / QUARANTINE).glob("*"))
    if found:
        target.mkdir(mode=0o700, parents=True, exist_ok=True)
        for path in found:
            path.replace(target / path.name)
        for made in (target, target.parent, target.parent.parent):
            sync_directory(made)
