"""Writes intents and settled events to the local journal, and reads them back for Postgres, from
this process's journal or a dead one's.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID

import structlog
from msgspec.structs import replace

from gateway.domain.ledger.records import Intent, recovered
from gateway.domain.ledger.usage_event import Key, UsageEvent
from gateway.domain.pricing.tokens import TokenUsage
from gateway.errors import InvalidRequest, JournalFull
from gateway.storage import journal as files
from gateway.storage.journal import (
    AdoptedJournal,
    Journal,
    JournalStats,
    Position,
    Segments,
    SettlementReader,
    adopt_free,
    capacity_requests,
)
from gateway.storage.ledger.documents import (
    decode_event,
    decode_intent,
    decode_progress,
    encode_event,
    encode_intent,
    encode_progress,
)

log = structlog.get_logger()

# A plain chat request with its tags and decision: 1.5 kB of intent, 1.3 kB of event, two frame
# heads.
TYPICAL_REQUEST_BYTES = 2_900
USUAL_REQUESTS_PER_S = 100
# Characters of text from an upstream: its room is reserved before the upstream answers.
MOST_TEXT = 256
BATCH_BYTES = 4 * 2**20


@dataclass(frozen=True, slots=True)
class JournalBatch:
    """Documents of settled events in journal order; `position` is the start of the next batch."""

    keys: Sequence[Key]
    documents: Sequence[bytes]
    position: Position


class _OpenSegments(Segments):
    """The segments of a journal that is being written, read through its open files and not by
    name.
    """

    is_open = True

    def __init__(self, journal: Journal) -> None:
        """Take the journal that this worker writes to."""
        super().__init__(journal.directory)
        self._journal = journal

    def numbers(self) -> list[int]:
        """Return the numbers of the segments that are still there."""
        return self._journal.segment_numbers()

    def load(self, number: int, start: int, end: int | None) -> bytes:
        """Return all written bytes of a segment between two offsets."""
        return self._journal.read_segment(number, start, end)


class OwnJournal:
    """This worker's journal: intents and settlements go in, settled events come out."""

    def __init__(self, journal: Journal) -> None:
        """Take a new journal, which this worker writes to and reads from its beginning."""
        self.journal = journal
        self._reader = SettlementReader(_OpenSegments(journal))
        self._reader.position = journal.end  # a new journal's end is after its header
        self.journal_id = journal.journal_id

    def intend(self, intent: Intent) -> Awaitable[None]:
        """Append an attempt's intent to the journal now; the returned awaitable resolves when it is
        durable.

        Raises `JournalFull` if there is no room, and `InvalidRequest` if the request's labels are
        too long.
        """
        try:
            return self.journal.intend(intent.event.key, encode_intent(intent))
        except files.NoJournalRoom:
            raise JournalFull(
                "The journal on this machine is full because the ledger cannot be written, so "
                "nothing new is admitted. Try again; an admin finds the cause with: tollgate "
                "doctor.",
                retry_after_s=5,
            ) from None
        except files.RecordTooLarge:
            raise InvalidRequest(
                "The tags and names of this request are too long to be written down."
            ) from None

    def settle(self, event: UsageEvent) -> bytes:
        """Append the settled event and return its document. Never waits and never fails."""
        bounded = _bounded(event)
        document = encode_event(bounded)
        try:
            self.journal.settle(event.key, document)
        except (
            files.RecordTooLarge
        ):  # kilobytes longer than its intent: drop the explanations, keep the money
            reported = bounded.reported and bounded.reported.bounded
            document = encode_event(
                replace(
                    bounded, decision={}, features={}, tags={}, usage_detail={}, reported=reported
                )
            )
            self.journal.settle(event.key, document)
        return document

    def event_of(self, document: bytes) -> UsageEvent:
        """Return the event of a document that `settle` returned."""
        return decode_event(document)

    def flush(self) -> Awaitable[None]:
        """Return an awaitable that resolves when all appended records are durable, and so can be
        read.
        """
        return self.journal.flush()

    def note_progress(self, running: Mapping[Key, TokenUsage]) -> None:
        """Record the last running usage of all live attempts."""
        self.journal.note_progress(encode_progress(running))

    @property
    def is_full(self) -> bool:
        """True if no new request can be admitted."""
        return self.journal.is_full

    @property
    def is_gone(self) -> bool:
        """True if the journal's folder was removed or moved away."""
        return self.journal.is_gone

    def stats(self) -> JournalStats:
        """Return the journal's state."""
        return self.journal.stats()

    def end(self) -> Position:
        """Return the position up to which records can be read now."""
        return self.journal.end

    def read(self, upto: Position, *, max_events: int) -> JournalBatch:
        """Return the next settled events up to a position, after the last acknowledged batch."""
        return _read(self._reader, upto, max_events)

    def acknowledge(self, batch: JournalBatch) -> None:
        """Record that a batch is in Postgres: delete the segments before its end, and read on from
        there.
        """
        self.journal.delete_before(batch.position)
        self._reader.position = batch.position

    @property
    def is_drained(self) -> bool:
        """True if all attempts are settled and all settlements are in Postgres."""
        return not self.journal.unsettled_attempts() and self._reader.position == self.journal.tail

    def finish(self, *, is_recorded: bool = False) -> None:
        """Close the journal: remove it if Postgres has all of it and recorded it as drained, else
        leave it to the next start.

        `is_recorded`: Postgres has recorded it as drained. A removed journal without that record
        would keep its leases for a day and then be booked as lost.
        """
        self.journal.close(is_drained=is_recorded and self.is_drained)


class LeftJournal:
    """The journal of a dead process: its settlements, then its unfinished attempts."""

    def __init__(self, adopted: AdoptedJournal) -> None:
        """Take a dead process's journal and compute the events of its interrupted attempts. Raises
        `ValueError` if another version wrote it.
        """
        self._adopted = adopted
        self.begun = _interrupted_events(adopted)
        self.journal_id = adopted.journal_id

    def end(self) -> None:
        """Return None: such a journal is read to its last record."""
        return

    def read(self, upto: None, *, max_events: int) -> JournalBatch:
        """Return the dead process's next settled events, then its interrupted ones, after the last
        acknowledged batch.
        """
        batch = _read(self._adopted.settlements, upto, max_events)
        if batch.documents or not self.begun:
            return batch
        chosen = self.begun[:max_events]
        return JournalBatch(
            [event.key for event in chosen], [encode_event(e) for e in chosen], batch.position
        )

    def acknowledge(self, batch: JournalBatch) -> None:
        """Record that a batch is in Postgres, so that it is not read again."""
        self._adopted.settlements.position = batch.position
        written = set(batch.keys)
        self.begun = [event for event in self.begun if event.key not in written]

    def finish(self) -> None:
        """Remove the journal: all of it is in Postgres."""
        self._adopted.finish()

    def release(self) -> None:
        """Unlock the journal and leave it to the next adoption."""
        self._adopted.release()


def open_own(
    root: Path,
    *,
    max_bytes: int,
    syncs: bool,
    on_failed_sync: Callable[[OSError], None],
    on_synced: Callable[[float], None],
) -> OwnJournal:
    """Create this worker's journal, and log how many minutes it lasts. Raises `BadUsage`."""
    made = Journal.create(
        root, max_bytes=max_bytes, syncs=syncs, on_failed_sync=on_failed_sync, on_synced=on_synced
    )
    minutes = capacity_requests(max_bytes, TYPICAL_REQUEST_BYTES) / USUAL_REQUESTS_PER_S / 60
    log.info(
        "journal_opened",
        journal=str(made.journal_id),
        directory=str(made.directory),
        max_bytes=max_bytes,
        holds_minutes_at_100_requests_per_s=round(minutes, 1),
        is_synced=syncs,
    )
    return OwnJournal(made)


class LeftJournals:
    """The journals of a volume whose processes are dead."""

    def __init__(self, root: Path) -> None:
        """Take the folder that holds the journals of all workers on this volume."""
        self._root = root
        self._unreadable: set[UUID] = set()  # logged once; reading them again would only cost time
        self._odd: set[str] = set()  # paths that could not be opened, logged once each

    def adopt(self) -> list[LeftJournal]:
        """Take over the journals that are free now, and log their contents.

        Never fails because of a broken journal.
        """
        try:
            return self._adopted(
                adopt_free(self._root, without=self._unreadable, on_odd=self._log_odd)
            )
        except OSError as broken:  # the root folder; our own open journal must still be written
            self._log_once(str(self._root), broken)
            return []

    def _log_odd(self, journal_id: UUID, odd: OSError) -> None:
        """Log once that the folder of a journal cannot be opened or read."""
        self._log_once(str(self._root / str(journal_id)), odd)

    def _log_once(self, path: str, problem: OSError) -> None:
        """Log the first problem of a path that cannot be adopted, and no later one."""
        if path not in self._odd:
            self._odd.add(path)
            log.error("journal_not_adopted", path=path, problem=str(problem))

    def _adopted(self, journals: Sequence[AdoptedJournal]) -> list[LeftJournal]:
        """Read journals that this process has locked, and log their contents; release those of
        another format.
        """
        found = []
        for journal in journals:
            try:
                left = LeftJournal(journal)
            except ValueError as broken:  # another version's; it loses nothing while it stays there
                log.error(
                    "journal_not_readable", journal=str(journal.journal_id), problem=str(broken)
                )
                self._unreadable.add(journal.journal_id)
                journal.release()
                continue
            damage = journal.recovered.damage
            log.warning(
                "journal_adopted",
                journal=str(journal.journal_id),
                settled=journal.recovered.settlements,
                interrupted=len(left.begun),
                torn_tails=damage.torn_tails,
                quarantined_records=damage.quarantined_records,
                quarantined_bytes=damage.quarantined_bytes,
            )
            found.append(left)
        return found


def _read(reader: SettlementReader, upto: Position | None, max_events: int) -> JournalBatch:
    """Return the next settled events of a journal as a batch of at most `max_events`."""
    batch = reader.read(upto=upto, max_records=max_events, max_bytes=BATCH_BYTES)
    return JournalBatch(
        [key for key, _ in batch.documents],
        [document for _, document in batch.documents],
        batch.position,
    )


def _interrupted_events(adopted: AdoptedJournal) -> list[UsageEvent]:
    """Return the events to book for a dead process's unsettled intents, each with the running usage
    noted last.
    """
    found = adopted.recovered
    try:
        running = decode_progress(found.progress) if found.progress else {}
    except ValueError:
        log.warning("progress_not_readable", journal=str(adopted.journal_id))
        running = {}
    events = []
    for key, payload in found.open_intents.items():
        intent = decode_intent(payload)
        events.append(
            recovered(
                intent.event, intent.price, running.get(key), writes_output=intent.writes_output
            )
        )
    return events


def _bounded(event: UsageEvent) -> UsageEvent:
    """Return the event with the upstream's own text cut to its reserved length."""
    if (
        len(event.upstream_request_id or "")
        + len(event.finish_reason or "")
        + len(event.service_tier or "")
        <= MOST_TEXT
    ):
        return event
    return replace(
        event,
        upstream_request_id=(event.upstream_request_id or "")[:MOST_TEXT] or None,
        finish_reason=(event.finish_reason or "")[:MOST_TEXT] or None,
        service_tier=(event.service_tier or "")[:MOST_TEXT] or None,
    )
