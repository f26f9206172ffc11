"""Adopting a worker's journal: nothing lost, nothing twice, after a crash at any step."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from struct import pack
from uuid import UUID
from zlib import crc32

import pytest

from gateway.storage.journal import Damage, Journal, Segments, adopt_free, journals_on, layout
from gateway.storage.journal.frames import FrameKind, encode, segment_seed
from gateway.storage.journal.layout import segment_path
from tests.journal.conftest import MakeJournal
from tests.journal.factories import (
    SMALL,
    adopted,
    after_kill,
    file_limit,
    key,
    last_segment,
    names,
    settlements,
    written,
)

REPOSITORY = Path(__file__).parents[2]


def left_behind(make_journal: MakeJournal) -> Path:
    """A journal whose worker is gone: three attempts settled, and a last one open."""
    return asyncio.run(_left_behind(make_journal()))


async def _left_behind(journal: Journal) -> Path:
    for number in range(3):
        await journal.intend(key(number), b"intent %d" % number)
        journal.settle(key(number), b"paid %d" % number)
    await journal.intend(key(99, 2), b"intent 99")
    journal.note_progress(b"running")
    journal.close(is_drained=False)
    return journal.directory


def test_the_next_start_finds_everything(make_journal: MakeJournal, root: Path) -> None:
    """Settlements to write again, intents to settle, the last running usage to settle them by."""
    directory = left_behind(make_journal)
    found = adopted(root)
    assert (found.journal_id, found.directory) == (found.settlements.segments.journal_id, directory)
    assert found.recovered.open_intents == {key(99, 2): b"intent 99"}
    assert found.recovered.settlements == 3
    assert found.recovered.progress == b"running"
    assert found.recovered.damage == Damage()
    assert settlements(found.settlements, max_records=2) == [
        (key(n), b"paid %d" % n) for n in range(3)
    ]
    found.finish()
    assert names(root) == {".lock"}
    assert adopt_free(root) == []


def test_a_worker_of_an_older_version_keeps_its_journal(
    make_journal: MakeJournal, root: Path
) -> None:
    """It locks the file alone."""
    directory = left_behind(make_journal)
    with (directory / "lock").open("rb") as held:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        assert adopt_free(root) == []
    adopted(root).release()


@pytest.mark.parametrize(("fails", "number"), [(2, errno.EIO), (1, errno.EMFILE), (3, errno.EIO)])
def test_a_disk_is_asked_three_times(
    make_journal: MakeJournal, monkeypatch: pytest.MonkeyPatch, fails: int, number: int
) -> None:
    """Only an error of the disk itself may pass; any other failure is reported at once."""
    segments, real = Segments(left_behind(make_journal)), layout.segment_path
    failures = iter([number] * fails)

    def path(directory: Path, of: int) -> Path:
        for found in failures:
            raise OSError(found, os.strerror(found))
        return real(directory, of)

    monkeypatch.setattr(layout, "segment_path", path)
    (only,) = (int(one.stem) for one in segments.directory.glob("*.segment"))
    if (fails, number) == (2, errno.EIO):
        assert len(segments.load(only, 0, 10)) == 10
    else:
        with pytest.raises(OSError, match=os.strerror(number)):
            segments.load(only, 0, 10)


def test_a_journal_that_is_not_finished_is_found_again(
    make_journal: MakeJournal, root: Path
) -> None:
    """Postgres may be away at this start; the next one tries again, with the same records."""
    left_behind(make_journal)
    first = adopted(root)
    before = (first.recovered, settlements(first.settlements))
    first.release()
    second = adopted(root)
    assert (second.recovered, settlements(second.settlements)) == before
    second.release()


def test_a_volume_without_journals_has_nothing_to_adopt(root: Path) -> None:
    """The first start on a new volume."""
    assert adopt_free(root) == []
    assert journals_on(root) == []


def test_one_of_many_starts_adopts_a_journal(make_journal: MakeJournal, root: Path) -> None:
    """All workers of a host start at once and look at the same volume."""
    for _ in range(5):
        left_behind(make_journal)
    # Flock is per opened file, so threads compete as processes do.
    with ThreadPoolExecutor(8) as pool:
        found = [
            journal for some in pool.map(lambda _: adopt_free(root), range(8)) for journal in some
        ]
    assert len(found) == 5
    assert len({journal.journal_id for journal in found}) == 5
    for journal in found:
        journal.finish()
    assert journals_on(root) == []


def test_a_living_journal_is_listed_and_not_adopted(make_journal: MakeJournal, root: Path) -> None:
    """`tollgate journal list` beside running workers disturbs none of them."""
    free = left_behind(make_journal)
    held = make_journal()
    listed = {listing.journal_id: listing for listing in journals_on(root)}
    assert {journal_id: listing.is_held for journal_id, listing in listed.items()} == {
        UUID(free.name): False,
        UUID(held.directory.name): True,
    }
    assert listed[UUID(free.name)].used_bytes == SMALL
    found = adopted(root)
    assert [listing.is_held for listing in journals_on(root)] == [True, True]
    found.release()


def test_a_directory_without_records_is_adopted_and_removed(
    root: Path, make_journal: MakeJournal
) -> None:
    """A crash while a journal is made leaves an empty directory, or a segment of zeros."""
    made = make_journal()
    made.close(is_drained=False)
    (made.directory / "lock").unlink()
    last_segment(made.directory).write_bytes(bytes(SMALL))
    found = adopted(root)
    assert (found.recovered.open_intents, found.recovered.damage) == ({}, Damage())
    assert settlements(found.settlements) == []
    found.finish()
    assert journals_on(root) == []


def test_other_directory_entries_are_left_alone(root: Path, make_journal: MakeJournal) -> None:
    """Other entries there are not ours to open or delete."""
    left_behind(make_journal)
    (root / "lost+found").mkdir()
    (root / "notes.txt").touch()
    adopted(root).finish()
    assert names(root) == {".lock", "lost+found", "notes.txt"}


async def test_the_last_whole_progress_note_counts(make_journal: MakeJournal, root: Path) -> None:
    """A kill in the middle of a note leaves the one before; none at all leaves the attempt unknown,
    not wrong.
    """
    journal = make_journal()
    await journal.intend(key(1), b"intent")
    assert adopted(after_kill(journal, root / "none").parent).recovered.progress is None
    for note in (b"first, and longer than what follows", b"second", b"third", b""):
        journal.note_progress(note)
        assert (
            adopted(after_kill(journal, root / f"after {note!r}").parent).recovered.progress == note
        )
    newest, older = journal.directory / "progress-0", journal.directory / "progress-1"
    newest.write_bytes(newest.read_bytes()[:15])
    assert adopted(after_kill(journal, root / "torn").parent).recovered.progress == b"third"
    older.write_bytes(b"\xff" * 40)
    assert adopted(after_kill(journal, root / "both").parent).recovered.progress is None
    older.unlink()
    assert adopted(after_kill(journal, root / "gone").parent).recovered.progress is None


def test_every_bit_of_a_progress_note_counts(make_journal: MakeJournal, root: Path) -> None:
    """A running figure that is wrong would be charged; a missing one is only less exact."""
    journal = make_journal()
    journal.note_progress(b"first")
    journal.note_progress(b"second")
    directory = after_kill(journal, root / "killed")
    whole = (directory / "progress-0").read_bytes()
    for at in range(len(whole)):
        for bit in range(8):
            (directory / "progress-0").write_bytes(
                whole[:at] + bytes([whole[at] ^ 1 << bit]) + whole[at + 1 :]
            )
            found = adopted(root / "killed")
            assert found.recovered.progress == b"first", (at, bit)
            found.release()


def test_a_progress_note_of_another_journal_is_ignored(
    make_journal: MakeJournal, root: Path
) -> None:
    """Files copied between directories must not charge anybody."""
    other = make_journal()
    other.note_progress(b"other")
    journal = make_journal()
    for name in ("progress-0", "progress-1"):
        shutil.copy(other.directory / name, journal.directory / name)
    assert adopted(after_kill(journal, root / "killed").parent).recovered.progress is None


def test_a_full_disk_costs_a_progress_note_and_nothing_else(
    make_journal: MakeJournal, root: Path
) -> None:
    """Requests go on; the note before stays."""
    journal = make_journal()
    journal.note_progress(b"first")
    with file_limit(0):
        journal.note_progress(b"second")
    with file_limit(12):
        journal.note_progress(b"third")
    assert journal.stats().progress_misses == 2
    assert adopted(after_kill(journal, root / "killed").parent).recovered.progress == b"first"
    journal.note_progress(b"fourth")
    assert adopted(after_kill(journal, root / "later").parent).recovered.progress == b"fourth"


def test_an_intent_that_comes_after_its_settlement_is_settled(
    make_journal: MakeJournal, root: Path
) -> None:
    """It cannot happen; if it did, the attempt must not be booked a second time as unknown."""
    directory = left_behind(make_journal)
    [listing] = journals_on(root)
    again = encode(FrameKind.INTENT, key(1), b"intent 1", seed=segment_seed(listing.journal_id, 2))
    segment_path(directory, 2).write_bytes(bytes(40) + again)
    found = adopted(root)
    assert set(found.recovered.open_intents) == {key(99, 2)}
    found.release()


def test_a_journal_of_a_later_format_waits(make_journal: MakeJournal, root: Path) -> None:
    """After a roll-back the newer product's journal is neither read nor deleted."""
    directory = left_behind(make_journal)
    data = last_segment(directory).read_bytes()
    later = b"tollgate" + pack("<I", 2) + data[12:36]
    last_segment(directory).write_bytes(later + pack("<I", crc32(later)) + data[40:])
    for _ in range(2):
        assert adopt_free(root) == []
    assert [listing.is_held for listing in journals_on(root)] == [False]


def test_removal_survives_a_kill_at_every_step(make_journal: MakeJournal, root: Path) -> None:
    """Killed before any file operation of `finish`: the next start finds the whole journal, or
    nothing to book.
    """
    directory = left_behind(make_journal)
    data = last_segment(directory).read_bytes()
    # So that there is something to keep aside.
    last_segment(directory).write_bytes(data[:50] + b"?" + data[51:])
    shutil.copytree(root, root.parent / "template")
    outcomes = []
    for step in range(1, 100):
        shutil.rmtree(root)
        shutil.copytree(root.parent / "template", root)
        ended = subprocess.run(
            [sys.executable, "-m", "tests.journal.finish_and_die", root, str(step)], cwd=REPOSITORY
        )
        found = adopt_free(root)
        if found:
            assert len(settlements(found[0].settlements)) == 3
            # The intent of attempt 0 is damaged, its settlement stands.
            assert found[0].recovered.open_intents == {key(99, 2): b"intent 99"}
            assert found[0].recovered.damage.quarantined_records == 1
            found[0].finish()
        outcomes.append(bool(found))
        assert [
            path.stat().st_size for path in (root / "quarantine" / directory.name).iterdir()
        ] == [29 + 8]
        assert names(root) == {".lock", "quarantine"}
        if ended.returncode == 0:
            break
    assert ended.returncode == 0
    # First the journal is there, from some step on it is not, and never again: both were met.
    assert outcomes == sorted(outcomes, reverse=True)
    assert {True, False} == set(outcomes)


@pytest.mark.parametrize("bad", [2, 3])
async def test_an_unreadable_segment_does_not_stop_the_start(
    make_journal: MakeJournal, root: Path, bad: int
) -> None:
    """The disk gives an error for one file: the others are booked, and the journal is set aside
    whole.
    """
    journal = make_journal()
    number = 0
    while journal.tail.segment < 3:
        await journal.intend(key(number), b"x" * 200)
        journal.settle(key(number), b"paid")
        number += 1
    journal.close(is_drained=False)
    segment_path(journal.directory, bad).unlink()
    segment_path(journal.directory, bad).mkdir()  # reading it is an error, as of a bad block
    found = adopted(root)
    assert found.recovered.damage == Damage(
        quarantined_records=1, quarantined_bytes=1, is_copied=False
    )
    assert 0 < len(settlements(found.settlements)) < number
    assert settlements(found.settlements) == []
    assert found.settlements.damage == found.recovered.damage
    found.finish()
    assert names(root) == {".lock", f"{journal.directory.name}.quarantined"}
    assert adopt_free(root) == []


@pytest.mark.parametrize("full_when", ["copying", "moving"])
def test_damage_that_cannot_be_copied_is_kept_whole(
    make_journal: MakeJournal, root: Path, full_when: str
) -> None:
    """On a full disk nothing can be copied; a rename needs no space."""
    directory = left_behind(make_journal)
    last_segment(directory).write_bytes(written(directory) + b"torn")
    if full_when == "copying":
        with file_limit(1):
            found = adopted(root)
    else:
        (root / "quarantine").touch()  # no directory can be made there
        found = adopted(root)
    assert found.recovered.damage.torn_tails == 1
    assert found.recovered.damage.is_copied is (full_when == "moving")
    assert len(settlements(found.settlements)) == 3
    found.finish()
    kept = root / f"{directory.name}.quarantined"
    assert last_segment(kept).read_bytes().endswith(b"torn")
    assert adopt_free(root) == []
    os.close(os.open(kept / "lock", os.O_RDONLY))


def test_other_entries_do_not_keep_journals_from_being_adopted(
    make_journal: MakeJournal, root: Path
) -> None:
    """A file in place of a directory; a journal may also be named that is not to be read again."""
    left = left_behind(make_journal)
    (root / str(key(77)[0])).touch()
    assert [listing.journal_id for listing in journals_on(root)] == [UUID(left.name)]
    assert adopt_free(root, without=[UUID(left.name)]) == []
    adopted(root).finish()
    assert names(root) == {".lock", str(key(77)[0])}
