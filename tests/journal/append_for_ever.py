"""A worker that is meant to be killed: appends below argv[1] from number argv[2] on and prints its
progress.

Each line is one write to standard output, made after the fact: `acked N`, `settled N`, `written N`
(in Postgres).
"""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

from gateway.storage.journal import Journal, Segments, SettlementReader
from tests.journal.factories import SMALL, a_journal, key

WORKERS = 12


def say(word: str, number: int) -> None:
    os.write(1, b"%s %d\n" % (word.encode(), number))


def intent_of(number: int) -> bytes:
    return b"intent %d " % number * (1 + number % 9)


def settlement_of(number: int) -> bytes:
    return b"paid %d " % number * (1 + number % 7)


async def work(journal: Journal, first: int) -> None:
    """Settle one attempt after another; every tenth stays open while others come and go."""
    number = first
    staying: list[int] = []
    while True:
        await journal.intend(key(number), intent_of(number))
        say("acked", number)
        staying.append(number)
        if number // WORKERS % 10 or len(staying) > 40:
            settled = staying.pop(0 if len(staying) > 40 else -1)
            journal.settle(key(settled), settlement_of(settled))
            say("settled", settled)
        journal.note_progress(b"%d" % number * 50)
        number += WORKERS


async def write(journal: Journal) -> None:
    reader = SettlementReader(Segments(journal.directory))
    while True:
        batch = reader.read(upto=journal.end, max_records=50, max_bytes=10**6)
        for (request_id, _), payload in batch.documents:
            assert payload == settlement_of(request_id.int)
            say("written", request_id.int)
        reader.position = batch.position
        journal.delete_before(batch.position)
        await asyncio.sleep(0)


async def main(root: Path, first: int) -> None:
    journal = a_journal(root, max_bytes=64 * SMALL)
    async with asyncio.TaskGroup() as group:
        group.create_task(write(journal))
        for worker in range(WORKERS):
            group.create_task(work(journal, first + worker))


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), int(sys.argv[2])))
