"""Bounds the embedded server's log, and the temporary files of all its sessions together."""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


def turn_log_over(log: Path, *, most_bytes: int) -> None:
    """Keep a log that has grown beside it, and empty it: the server keeps its descriptor. Lines
    that it writes meanwhile may be lost. One process at a time does it.
    """
    with suppress(OSError), opened(log) as file:
        # The size counts under the lock: another process may just have emptied it.
        if try_lock(file) and os.fstat(file).st_size > most_bytes:
            shutil.copyfile(log, log.with_suffix(".log.1"))
            os.truncate(file, 0)


def end_largest_sort(data: Path, *, postmaster: int, most_bytes: int) -> int | None:
    """End the session with the most temporary files if all of them together are larger than
    `most_bytes`, or than the space that is left on the disk; return its pid, else None.

    Postgres bounds those of one session alone (`temp_file_limit`).
    """
    sizes = _temporary_bytes(data / "base" / "pgsql_tmp")
    total = sizes.total()
    if total <= min(most_bytes, shutil.disk_usage(data).free if total else most_bytes):
        return None
    for pid, _ in sizes.most_common():
        if _parent(pid) == postmaster:
            with suppress(OSError):
                os.kill(pid, signal.SIGTERM)
                return pid
    return None


def _temporary_bytes(folder: Path) -> Counter[int]:
    """Return the bytes of temporary files by the pid of their session: `pgsql_tmpPID.N`, and
    folders `pgsql_tmpPID.N.fileset` for parallel workers (storage/file/fd.c, fileset.c).
    """
    found: Counter[int] = Counter()
    for root, _, names in os.walk(folder):
        inside = Path(root).relative_to(folder).parts[:1]
        for name in names:
            pid = (*inside, name)[0].removeprefix("pgsql_tmp").partition(".")[0]
            with suppress(OSError, ValueError):
                found[int(pid)] += os.lstat(os.path.join(root, name)).st_size
    return found


def _parent(pid: int) -> int | None:
    """Return the pid of a process's parent, None if it has ended."""
    with suppress(OSError, ValueError, IndexError):
        # The name of the program, in parentheses, may have spaces.
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return None


@contextmanager
def opened(path: Path, flags: int = 0) -> Iterator[int]:
    """Open a file, created with mode 0600 if it is missing, and close it after the block."""
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | flags, 0o600)
    try:
        yield handle
    finally:
        os.close(handle)


def try_lock(handle: int) -> bool:
    """Lock an open file exclusively; return False if another process holds it."""
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
