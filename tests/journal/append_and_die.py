"""Appends below argv[1] on a disk whose first sync never ends, and kills itself behind the last
append.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
from pathlib import Path

from gateway.storage.journal.segments import Disk
from tests.journal.append_for_ever import intent_of, settlement_of
from tests.journal.factories import a_journal, key

ATTEMPTS = 600  # several segments


def hang(file: int) -> None:
    threading.Event().wait()


async def main(root: Path) -> None:
    journal = a_journal(root, disk=Disk(sync=hang))
    for number in range(ATTEMPTS):
        journal.intend(key(number), intent_of(number))
        if number % 2:
            journal.settle(key(number - 1), settlement_of(number - 1))
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
