"""Writes the files of a message into a folder of this machine, each whole or not at all, or raises
`NotDelivered`.
"""

from __future__ import annotations

import asyncio
import os
import secrets
from contextlib import suppress
from pathlib import Path

from gateway.domain.alerts.delivery import AlertMessage, AttachedFile, NotDelivered

REMEDY = "Make it writable for the gateway; the statements are written again."


async def write_files(message: AlertMessage, folder: str) -> None:
    """Write the message's files into a folder. A repeated message replaces them with the same
    content. Raises `NotDelivered`.
    """
    await asyncio.to_thread(_write_all, message, Path(folder))


def _write_all(message: AlertMessage, folder: Path) -> None:
    """Write each file. The folder is not made: an unmounted disk must not look like a full one."""
    if not folder.is_dir():
        raise NotDelivered(f"There is no folder {folder} where the gateway runs. {REMEDY}")
    for file in message.files:
        try:
            _write(folder / file.name, file)
        except OSError as broken:
            raise NotDelivered(
                f"{folder} cannot be written: {broken.strerror or broken}. {REMEDY}"
            ) from None
    # The names too must outlive a power cut, before the delivery is recorded.
    with suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _write(path: Path, file: AttachedFile) -> None:
    """Write one file under a name of its own, and put it in its place when it is on the disk."""
    new = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        # A group may fetch it from the folder, by the umask; a statement is for no other user.
        mode = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        with os.fdopen(os.open(new, mode, 0o640), "wb") as out:
            out.write(file.content)
            out.flush()
            os.fsync(out.fileno())
        os.replace(new, path)
    finally:
        with suppress(OSError):  # it is gone after the replacement
            os.unlink(new)
