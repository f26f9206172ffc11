"""Fills the volume below argv[1] with a journal and with a stranger's file, and prints the
result as JSON.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from contextlib import suppress
from pathlib import Path

from gateway.storage.journal import adopt_free
from tests.journal.factories import a_journal, admit_until_full, key, settlements

SEGMENT_BYTES = 256 * 1024


def take_all_space(path: Path) -> None:
    with suppress(OSError), path.open("wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))


async def main(root: Path) -> None:
    journal = a_journal(root, segment_bytes=SEGMENT_BYTES, max_bytes=10_000 * SEGMENT_BYTES)
    admitted = admit_until_full(journal, b"i" * 1000, until=20)
    take_all_space(root / "strangers-file")  # a reservation holds
    admitted += admit_until_full(journal, b"i" * 1000, first=20)
    is_full = journal.is_full
    journal.note_progress(b"p" * 10_000)
    for number in range(admitted):
        journal.settle(key(number), b"s" * journal.max_payload_bytes)
    await journal.flush()
    misses = journal.stats().progress_misses
    journal.close(is_drained=False)
    [found] = adopt_free(root)
    delivered = settlements(found.settlements)
    found.finish()
    os.unlink(root / "strangers-file")
    after = a_journal(root, segment_bytes=SEGMENT_BYTES, max_bytes=10_000 * SEGMENT_BYTES)
    await after.intend(key(0), b"i" * 1000)
    after.close(is_drained=False)
    print(
        json.dumps(
            {
                "admitted": admitted,
                "delivered": len(delivered),
                "longest": {len(payload) for _, payload in delivered}
                == {journal.max_payload_bytes},
                "is_full": is_full,
                "progress_misses": misses,
                "open": len(found.recovered.open_intents),
            }
        )
    )


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
