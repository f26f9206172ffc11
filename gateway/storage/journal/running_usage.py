"""Writes and reads the last running usage of all live streams in a journal's progress files,
replaced as a whole and never synced.

It is replaced several times a second. Two files are written in turn, so that a kill in the middle
of a write leaves the previous one. Renaming a file over another costs the event loop 0.25 ms (p99
1.5 ms, ext4), because the file system flushes the data first; this costs 0.015 ms.
"""

from __future__ import annotations

import os
from pathlib import Path
from struct import Struct, error
from uuid import UUID
from zlib import crc32

# Sequence, payload bytes, CRC-32 of both and the payload, seeded with the journal's id.
_HEADER = Struct("<QII")
_CHECKED = Struct("<QI")
NAMES = ("progress-0", "progress-1")


class RunningUsageFile:
    """The writer of the progress files.

    A full disk costs accuracy, not requests: `misses` counts the refused notes.
    """

    def __init__(self, directory: Path, journal_id: UUID) -> None:
        """Open a journal's two progress files for writing."""
        self.misses = 0
        self._seed = crc32(journal_id.bytes)
        self._sequence = 0
        self._files = [
            os.open(directory / name, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
            for name in NAMES
        ]

    def replace(self, payload: bytes) -> None:
        """Replace the stored running usage of all live streams; on a full disk the old one stays,
        and a miss is counted.
        """
        self._sequence += 1
        checksum = crc32(payload, crc32(_CHECKED.pack(self._sequence, len(payload)), self._seed))
        record = _HEADER.pack(self._sequence, len(payload), checksum) + payload
        try:
            written = os.pwrite(self._files[self._sequence % 2], record, 0)
        except OSError:
            written = 0
        if written != len(record):
            self.misses += 1
            # The next note goes here again, so that the good file is not at risk.
            self._sequence -= 1

    def close(self) -> None:
        """Close the two progress files; they stay on disk."""
        for file in self._files:
            os.close(file)


def read_progress(directory: Path, journal_id: UUID) -> bytes | None:
    """Return the newest complete running usage of a journal's streams, None if there is none."""
    found = [_read(directory / name, crc32(journal_id.bytes)) for name in NAMES]
    newest = max((note for note in found if note is not None), default=None)
    return newest and newest[1]


def _read(path: Path, seed: int) -> tuple[int, bytes] | None:
    """Return a progress file's sequence number and content; None if it is missing, incomplete or of
    another journal.
    """
    try:
        data = path.read_bytes()
        sequence, size, checksum = _HEADER.unpack_from(data)
    except (OSError, error):
        return None
    payload = data[_HEADER.size : _HEADER.size + size]
    if (
        len(payload) < size
        or crc32(payload, crc32(_CHECKED.pack(sequence, size), seed)) != checksum
    ):
        return None
    return sequence, payload
