"""Takes over the journals of dead workers on this disk, and finds their settlements and unsettled
intents; writes nothing to Postgres.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID

from gateway.domain.ledger.journals import LocalJournal
from gateway.domain.ledger.usage_event import Key
from gateway.storage.journal import layout
from gateway.storage.journal.frames import FrameKind, Gap, UnknownFormat
from gateway.storage.journal.reader import Damage, Segments, SettlementReader
from gateway.storage.journal.running_usage import read_progress


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovered:
    """The contents of a journal.

    `open_intents` have no settlement in it; `progress` is the last complete note.
    """

    open_intents: Mapping[Key, bytes]
    settlements: int
    progress: bytes | None
    damage: Damage


class AdoptedJournal:
    """A dead worker's journal, locked by this process. Its records stay until `finish`."""

    def __init__(self, directory: Path, lock: layout.Lock) -> None:
        """Read the whole journal of a dead worker, and delete its spare files. Raises
        `UnknownFormat`.
        """
        self.directory = directory
        self.journal_id = UUID(directory.name)
        self._lock = lock
        for spare in directory.glob(layout.SPARE_PATTERN):  # spares hold no records
            spare.unlink()
        self.recovered = _read_contents(directory)
        self.settlements = SettlementReader(Segments(directory))

    def finish(self) -> None:
        """Remove the journal, once Postgres has its settlements and the outcome of its open
        intents; its damaged bytes are kept.
        """
        damage = (self.recovered.damage, self.settlements.damage)
        layout.remove(self.directory, is_copied=all(found.is_copied for found in damage))
        self.release()

    def release(self) -> None:
        """Release the lock and leave the journal unchanged for a later adoption, by this process or
        another.
        """
        self._lock.release()


def _ignore_odd_entry(journal_id: UUID, odd: OSError) -> None:
    """Ignore a journal's folder that cannot be opened or read; the default of `on_odd`."""


def adopt_free(
    root: Path,
    *,
    without: Collection[UUID] = (),
    on_odd: Callable[[UUID, OSError], None] = _ignore_odd_entry,
) -> list[AdoptedJournal]:
    """Lock and read every journal below `root` that no worker holds, and finish the removals that a
    crash interrupted; write none to Postgres.

    A journal of another version's format stays in place, and so do those in `without`. `on_odd` is
    called with an entry that cannot be opened or read. That entry stays too, and the others are
    still taken.
    """
    if not root.is_dir():
        return []
    taken = _lock_free_journals(root, without, on_odd)
    adopted = []
    try:
        for directory, lock in taken:
            try:
                adopted.append(AdoptedJournal(directory, lock))
            except UnknownFormat:
                continue
            except OSError as odd:
                on_odd(UUID(directory.name), odd)
    finally:
        kept = {journal.directory for journal in adopted}
        for directory, lock in taken:
            if directory not in kept:  # an open lock makes its journal look held
                lock.release()
    return adopted


def _lock_free_journals(
    root: Path, without: Collection[UUID], on_odd: Callable[[UUID, OSError], None]
) -> list[tuple[Path, layout.Lock]]:
    """Lock the journals below a root that no worker holds, and return their folders and locks."""
    found = []
    with layout.root_locked(root):
        layout.delete_done(root)
        for journal_id, directory in layout.journal_directories(root):
            if journal_id in without:
                continue
            try:
                lock = layout.take_lock(directory)
            except OSError as odd:
                on_odd(journal_id, odd)
                continue
            if lock is not None:
                found.append((directory, lock))
    return found


def journals_on(
    root: Path, *, on_odd: Callable[[UUID, OSError], None] = _ignore_odd_entry
) -> list[LocalJournal]:
    """Return the journals below a root, held or not, in the order of their ids.

    `on_odd` is called with an entry that cannot be opened or read.
    """
    if not root.is_dir():
        return []
    found = []
    with layout.root_locked(root):
        for journal_id, directory in layout.journal_directories(root):
            try:
                found.append(_listing(journal_id, directory))
            except OSError as odd:
                on_odd(journal_id, odd)
    return found


def _listing(journal_id: UUID, directory: Path) -> LocalJournal:
    """Return one journal's entry in the list: its size on disk and whether a worker holds it."""
    lock = layout.take_lock(directory)
    if lock is not None:
        lock.release()
    segments = (
        layout.segment_path(directory, number) for number in layout.segment_numbers(directory)
    )
    return LocalJournal(
        journal_id=journal_id,
        used_bytes=sum(path.stat().st_size for path in segments),
        is_held=lock is None,
    )


def _read_contents(directory: Path) -> Recovered:
    """Return a dead worker's open intents, number of settlements, running usage and damaged bytes,
    from its whole journal; copy the damaged bytes aside.
    """
    segments = Segments(directory)
    intents: dict[Key, bytes] = {}
    settled: set[Key] = set()
    gaps: list[tuple[int, Gap]] = []
    last_written = 0
    for number in segments.numbers():
        for item in segments.records(number):
            last_written = number
            if isinstance(item, Gap):
                gaps.append((number, item))
            elif item.kind == FrameKind.SETTLEMENT:
                settled.add(item.key)
            else:
                intents[item.key] = item.payload
        # Segment by segment, to keep settled records out of memory.
        for key in settled & intents.keys():
            del intents[key]
    torn = sum(number == last_written and gap.is_tail for number, gap in gaps)
    return Recovered(
        open_intents=intents,
        settlements=len(settled),
        progress=read_progress(directory, segments.journal_id),
        damage=Damage(
            torn_tails=torn,
            quarantined_records=len(gaps) - torn,
            quarantined_bytes=sum(gap.end - gap.start for _, gap in gaps),
            is_copied=segments.is_copied,
        ),
    )
