"""Replaces a file in one step: an error leaves no half file, and an existing one as it was."""

from __future__ import annotations

import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from gateway.errors import BadUsage

OWN_MODE = 0o600


@contextmanager
def replaced_file(path: Path) -> Iterator[BinaryIO]:
    """Open a new file that takes the place of `path` when the block ends without an error.

    An existing file gives its mode and owner to the new one, a link stays a link, and a file that
    was not there is its owner's alone, whatever the umask. Raises `BadUsage` if it cannot be
    written.
    """
    try:
        with whole_file(path) as out:
            yield out
    except OSError as broken:
        raise BadUsage(
            f"{path} cannot be written: {broken.strerror or broken}. Nothing was changed."
        ) from None


@contextmanager
def whole_file(path: Path) -> Iterator[BinaryIO]:
    """Do as `replaced_file`, for a caller that explains the error: raises `OSError`."""
    target = path.resolve()
    new = target.with_name(f".{target.name}.{secrets.token_hex(4)}")
    if target.is_dir():
        raise IsADirectoryError(0, "it is a folder")
    with open(new, "xb", opener=lambda name, flags: os.open(name, flags, OWN_MODE)) as out:
        try:
            _take_over(target, out.fileno())
            yield out
            out.flush()
            os.fsync(out.fileno())
            os.replace(new, target)
        finally:
            with suppress(OSError):  # it is gone after the replacement
                os.unlink(new)


def _take_over(old: Path, new: int) -> None:
    """Give an open file the mode of an older one, if any, and its owner if this user may."""
    try:
        known = old.stat()
    except FileNotFoundError:
        return
    with suppress(PermissionError):
        os.fchown(new, known.st_uid, known.st_gid)
    os.fchmod(new, stat.S_IMODE(known.st_mode))
