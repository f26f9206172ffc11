"""Creates files that contain a secret, readable by their owner alone, whole or not at all; leaves
an existing one unchanged.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path


def create(path: Path, content: str) -> None:
    """Create a file that only its owner can read; leave a file with content unchanged. Raises
    `OSError`.

    An empty file was left by a full disk or a kill. Nothing was ever made with it, so it is
    replaced.
    """
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    new = path.with_name(f".{path.name}.new")
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)  # two concurrent first starts create one file
        if path.exists() and path.stat().st_size > 0:
            return
        new.unlink(missing_ok=True)
        try:
            with os.fdopen(
                os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "w"
            ) as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())  # a power cut must not lose a secret that is already in use
            new.replace(path)
            os.fsync(folder)
        finally:
            new.unlink(missing_ok=True)
    finally:
        os.close(folder)
