"""Torn, cut and flipped: every byte of a small journal, one at a time."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest

from gateway.domain.ledger.usage_event import Key
from gateway.storage.journal import Damage, Segments, SettlementReader, adopt_free
from gateway.storage.journal.frames import FRAME_BYTES, SEGMENT_HEADER_BYTES
from gateway.storage.journal.layout import segment_path
from tests.journal.factories import (
    SMALL,
    a_journal,
    adopted,
    key,
    last_segment,
    settlements,
    written,
)

Record = tuple[str, Key, bytes]


def a_dead_journal(root: Path) -> tuple[Path, list[tuple[int, Record]]]:
    """A journal of one segment, and its records with the offset behind each."""
    made: list[tuple[int, Record]] = []

    async def make() -> Path:
        journal = a_journal(root)
        for number in range(4):
            await journal.intend(key(number), b"intent %d" % number)
            made.append((journal.tail.offset, ("intent", key(number), b"intent %d" % number)))
        for number in (2, 0):
            journal.settle(key(number), b"paid %d" % number)
            made.append((journal.tail.offset, ("settlement", key(number), b"paid %d" % number)))
        journal.close(is_drained=False)
        return journal.directory

    return asyncio.run(make()), made


def found_in(root: Path) -> tuple[set[Record], Damage]:
    """Return an adoption's findings: settlements, and open intents."""
    found = adopted(root)
    records = {("settlement", *document) for document in settlements(found.settlements)}
    records |= {("intent", *intent) for intent in found.recovered.open_intents.items()}
    found.release()
    return records, found.recovered.damage


def expected(records: list[Record]) -> set[Record]:
    """Return the records' meaning: an intent with a settlement is settled."""
    settled = {found for kind, found, _ in records if kind == "settlement"}
    return {record for record in records if record[0] == "settlement" or record[1] not in settled}


def test_a_cut_at_every_byte_costs_the_record_it_cuts_and_counts(root: Path) -> None:
    """The file ends anywhere: whole records before the cut survive, the torn one is counted, never
    an exception.
    """
    directory, made = a_dead_journal(root)
    whole = written(directory)
    assert made[-1][0] == len(whole)
    ends = {SEGMENT_HEADER_BYTES, 0} | {end for end, _ in made}
    for cut in range(len(whole) + 1):
        for tail in (b"", bytes(100)):  # a shorter file, or pages that never reached the disk
            last_segment(directory).write_bytes(whole[:cut] + tail)
            records, damage = found_in(root)
            assert records == expected([record for end, record in made if end <= cut]), cut
            assert damage.torn_tails == (cut not in ends), cut
            assert damage.quarantined_records == 0, cut


def test_a_flip_of_every_byte_costs_the_record_it_hits_and_counts(root: Path) -> None:
    """Bit rot: all other records survive, the damage is counted and its bytes are kept."""
    directory, made = a_dead_journal(root)
    path = last_segment(directory)
    data = path.read_bytes()
    starts = [SEGMENT_HEADER_BYTES] + [end for end, _ in made]
    rng = random.Random(20261121)
    places = [*range(made[-1][0] + 60), SMALL - 1, *rng.sample(range(made[-1][0], SMALL), 40)]
    for at in places:
        for flip in {0xFF, 1 << rng.randrange(8)}:
            path.write_bytes(data[:at] + bytes([data[at] ^ flip]) + data[at + 1 :])
            records, damage = found_in(root)
            hit = [
                record
                for start, (end, record) in zip(starts, made, strict=False)
                if start <= at < end
            ]
            assert records == expected([record for _, record in made if record not in hit]), (
                at,
                flip,
            )
            assert damage.torn_tails + damage.quarantined_records == 1, (at, flip)
            assert damage.torn_tails == (at >= starts[-2]), (at, flip)
            assert damage.quarantined_bytes > 0


def test_damaged_bytes_are_kept_with_their_place_in_the_name(root: Path) -> None:
    """An operator may need them: never deleted, not even with the journal."""
    directory, made = a_dead_journal(root)
    data = last_segment(directory).read_bytes()
    start, end = made[0][0], made[1][0]
    last_segment(directory).write_bytes(data[: start + 30] + b"\xff" + data[start + 31 :])
    found = adopted(root)
    assert found.recovered.damage == Damage(quarantined_records=1, quarantined_bytes=end - start)
    assert settlements(found.settlements) == [(key(2), b"paid 2"), (key(0), b"paid 0")]
    assert found.settlements.damage == found.recovered.damage
    found.finish()
    [kept] = (root / "quarantine" / directory.name).iterdir()
    assert kept.name == f"00000001-{start:08d}.bin"
    assert kept.read_bytes() == data[start : start + 30] + b"\xff" + data[start + 31 : end]
    assert adopt_free(root) == []


def test_only_the_end_of_the_last_written_segment_is_a_torn_tail(root: Path) -> None:
    """Garbage at the end of an earlier segment is damage: its worker had written on."""
    directory, made = a_dead_journal(root)
    path = last_segment(directory)
    path.write_bytes(path.read_bytes()[: made[-1][0]] + b"garbage" + bytes(50))
    segment_path(directory, 2).write_bytes(b"")
    assert found_in(root)[1] == Damage(torn_tails=1, quarantined_bytes=7)
    segment_path(directory, 2).write_bytes(bytes(40) + b"torn")
    assert found_in(root)[1] == Damage(torn_tails=1, quarantined_records=1, quarantined_bytes=11)


async def test_damage_below_a_living_journal_is_passed_by_once(root: Path) -> None:
    """The writer must not stand still before a record that the disk lost, nor count it with each
    try.
    """
    journal = a_journal(root)
    for number in range(3):
        await journal.intend(key(number), b"intent")
        journal.settle(key(number), b"paid %d" % number)
    await journal.flush()
    path = last_segment(journal.directory)
    with path.open("r+b") as file:
        file.seek(path.read_bytes().index(b"paid 1"))
        file.write(b"P")
    reader = SettlementReader(Segments(journal.directory))
    for _ in range(3):
        batch = reader.read(upto=journal.end, max_records=9, max_bytes=10**6)
        assert [found for found, _ in batch.documents] == [key(0), key(2)]
    assert reader.damage == Damage(quarantined_records=1, quarantined_bytes=FRAME_BYTES + 6)
    journal.close(is_drained=True)
    assert len(list((root / "quarantine" / journal.directory.name).iterdir())) == 1


@pytest.mark.parametrize("seed", range(20))
def test_random_bytes_are_never_an_exception(root: Path, seed: int) -> None:
    """A start continues with any bytes in the files."""
    rng = random.Random(seed)
    directory, _ = a_dead_journal(root)
    for name in ("00000001.segment", "00000002.segment", "progress-0", "progress-1"):
        (directory / name).write_bytes(rng.randbytes(rng.randrange(5000)))
    records, damage = found_in(root)
    assert records == set()
    assert damage.torn_tails + damage.quarantined_records >= 1
