"""A worker whose disk breaks: appends below argv[1], prints each acknowledged number, ends with 70
at a failed sync.

With argv[2] the fdatasync of that number fails by itself, for machines without strace.
"""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

from gateway.storage.journal.segments import Disk
from tests.journal.factories import FailingSync, a_journal, key

EXIT_CODE = 70


def end_the_process(error: OSError) -> None:
    os.write(1, b"errno %d\n" % error.errno)
    os._exit(EXIT_CODE)


async def main(root: Path, when: int | None) -> None:
    disk = Disk() if when is None else Disk(sync=FailingSync(when))
    journal = a_journal(root, on_failed_sync=end_the_process, disk=disk)
    for number in range(10_000):
        await journal.intend(key(number), b"intent %d" % number)
        os.write(1, b"acked %d\n" % number)


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else None))
