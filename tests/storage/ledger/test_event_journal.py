"""Events in the journal: every record comes out again, in this process or the next, with its
cost.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from structlog.testing import capture_logs

from gateway.domain.ledger.records import Intent
from gateway.domain.ledger.usage_event import Outcome, UsageEvent
from gateway.domain.pricing.tokens import TokenUsage, UsageSource
from gateway.errors import InvalidRequest, JournalFull
from gateway.storage.journal import Journal, adopt_free, journals_on
from gateway.storage.ledger.documents import decode_event
from gateway.storage.ledger.event_journal import (
    MOST_TEXT,
    JournalBatch,
    LeftJournal,
    LeftJournals,
    OwnJournal,
    open_own,
)
from tests.factories import price
from tests.journal.factories import NEVER, a_journal, names, refuse
from tests.storage.factories import event

# A record holds at most 8 KiB here: enough for an event, and a few hundred events fill a journal.
SEGMENT_BYTES = 512 * 1024
HELD_NUSD = 900_000

OpenJournal = Callable[[], OwnJournal]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "journal"


@pytest.fixture
def open_journal(root: Path) -> Iterator[OpenJournal]:
    """Yield a function that opens journals below `root`; journals that a test leaves open are
    released.
    """
    made: list[Journal] = []

    def make() -> OwnJournal:
        made.append(a_journal(root, segment_bytes=SEGMENT_BYTES, max_bytes=4 * SEGMENT_BYTES))
        return OwnJournal(made[-1])

    yield make
    for journal in made:
        if not journal.is_closed:
            journal.close(is_drained=False)


def intent(number: int = 0, **changes: Any) -> Intent:
    """Return the record that is written before an attempt is sent: interrupted, unknown at its
    hold.
    """
    begun: dict[str, Any] = {
        "outcome": Outcome.INTERRUPTED,
        "http_status": None,
        "usage": TokenUsage(),
        "usage_source": UsageSource.UNKNOWN,
        "lines": (),
        "cost_nusd": None,
        "held_nusd": HELD_NUSD,
        "upstream_request_id": None,
        "finish_reason": None,
    }
    return Intent(event=event(number, **begun | changes), price=price(), writes_output=True)


async def settled(journal: OwnJournal, *events: UsageEvent) -> JournalBatch:
    """Intend and settle each event, and return the batch read back: the same documents that
    `settle` returned.
    """
    documents = []
    for one in events:
        begun = replace(intent().event, request_id=one.request_id)
        await journal.intend(Intent(event=begun, price=price(), writes_output=True))
        documents.append(journal.settle(one))
    await journal.flush()
    batch = journal.read(journal.end(), max_events=NEVER)
    assert batch.documents == documents
    return batch


def fill(journal: OwnJournal) -> None:
    """Write intents until the journal refuses one."""
    for number in range(NEVER):
        journal.intend(intent(number))


def decoded(batch: JournalBatch) -> list[UsageEvent]:
    return [decode_event(document) for document in batch.documents]


def adopted(root: Path) -> tuple[LeftJournal, list[Any]]:
    """Return the one journal that the previous process left, and the log about it."""
    with capture_logs() as logs:
        [left] = LeftJournals(root).adopt()
    return left, logs


# ---- our own


async def test_a_settled_event_is_read_as_it_was_written(
    open_journal: OpenJournal, root: Path
) -> None:
    """Postgres gets every member of the event from the journal; then the disk keeps nothing."""
    journal = open_journal()
    first, second = (
        event(1),
        event(2, reported=TokenUsage(input_tokens=7), is_suspect=True, service_tier="flex"),
    )
    batch = await settled(journal, first, second)
    assert (batch.keys, decoded(batch)) == ([first.key, second.key], [first, second])
    assert journal.event_of(batch.documents[1]) == second
    assert journal.read(journal.end(), max_events=1).keys == [first.key], "nothing was let go yet"
    journal.acknowledge(batch)
    assert journal.read(journal.end(), max_events=NEVER) == JournalBatch([], [], batch.position)
    journal.finish(is_recorded=True)
    assert names(root) == {".lock"}


async def test_a_journal_with_unwritten_events_is_left_for_the_next_start(
    open_journal: OpenJournal, root: Path
) -> None:
    """The process may end while Postgres is away."""
    journal = open_journal()
    await settled(journal, event(1))
    journal.finish(is_recorded=True)
    left, _ = adopted(root)
    assert decoded(left.read(None, max_events=NEVER)) == [event(1)]
    left.finish()


def test_a_worker_that_never_had_a_request_leaves_nothing(
    open_journal: OpenJournal, root: Path
) -> None:
    """The next start would adopt its journal with a warning, and a day later report it as
    silent.
    """
    open_journal().finish(is_recorded=True)
    assert names(root) == {".lock"}


async def test_an_attempt_in_flight_at_the_end_keeps_its_journal(
    open_journal: OpenJournal, root: Path
) -> None:
    """All settled events are in Postgres, but the attempt that is not settled would be
    forgotten.
    """
    journal = open_journal()
    await journal.intend(intent(2))
    journal.acknowledge(await settled(journal, event(1)))
    journal.finish(is_recorded=True)
    assert len(journals_on(root)) == 1


async def test_a_full_journal_admits_nothing_and_settles_admitted_attempts(
    open_journal: OpenJournal,
) -> None:
    """The caller may retry elsewhere. An attempt that was sent has its space, even if every
    event grew by kilobytes.
    """
    journal = open_journal()
    with pytest.raises(JournalFull, match="tollgate doctor") as refused:
        fill(journal)
    assert refused.value.retry_after_s == 5
    assert journal.is_full
    admitted = journal.stats().open_intents
    grown = [event(number, decision={"rules": ["x" * 6_500]}) for number in range(admitted)]
    for one in grown:
        journal.settle(one)
    await journal.flush()
    found = decoded(journal.read(journal.end(), max_events=NEVER))
    assert [one.key for one in found] == [one.key for one in grown]
    assert {one.cost_nusd for one in found} == {600_000}
    assert {bool(one.decision) for one in found} == {True, False}, (
        "what has room keeps what explains it"
    )


def test_labels_beyond_all_measure_are_refused(open_journal: OpenJournal) -> None:
    """The caller caused the error, so the message must name it: no journal of any size would
    take the labels.
    """
    journal = open_journal()
    with pytest.raises(InvalidRequest, match="tags and names"):
        journal.intend(intent(1, tags={"app": "x" * 9_000}))
    assert journal.stats().open_intents == 0


async def test_an_event_that_grew_beyond_a_record_keeps_its_money(
    open_journal: OpenJournal,
) -> None:
    """Its explanations are dropped; its cost, team and usage stay."""
    whole = event(1, decision={"rules": ["x" * 9_000]}, usage_detail={"speed": "fast"})
    batch = await settled(open_journal(), whole)
    assert decoded(batch) == [replace(whole, decision={}, features={}, tags={}, usage_detail={})]


@pytest.mark.parametrize("name", ["upstream_request_id", "finish_reason", "service_tier"])
async def test_an_upstreams_long_words_are_cut(open_journal: OpenJournal, name: str) -> None:
    """Their space is reserved before the upstream has answered; the rest of the event stays
    unchanged.
    """
    words = "".join(chr(ord("a") + n % 26) for n in range(3_000))
    batch = await settled(open_journal(), replace(event(1), **{name: words}))
    assert decoded(batch) == [replace(event(1), **{name: words[:MOST_TEXT]})]


async def test_words_of_usual_length_are_kept_together(open_journal: OpenJournal) -> None:
    """Only texts that are too long in sum are cut, and a missing text stays different from an
    empty one.
    """
    fits = event(
        1, upstream_request_id="u" * (MOST_TEXT - 4), finish_reason="stop", service_tier=None
    )
    batch = await settled(
        open_journal(), fits, event(2, upstream_request_id="u" * 999, finish_reason=None)
    )
    assert decoded(batch) == [
        fits,
        event(2, upstream_request_id="u" * MOST_TEXT, finish_reason=None),
    ]


async def test_a_new_journal_says_how_long_it_lasts(root: Path) -> None:
    """An operator sizes the journal by the outage that it has to survive."""
    with capture_logs() as logs:
        journal = open_own(
            root,
            max_bytes=64 * 2**20,
            syncs=False,
            on_failed_sync=refuse,
            on_synced=lambda seconds: None,
        )
    assert [(line["event"], line["max_bytes"], line["is_synced"]) for line in logs] == [
        ("journal_opened", 64 * 2**20, False)
    ]
    assert 3 < logs[0]["holds_minutes_at_100_requests_per_s"] < 4
    journal.finish(is_recorded=True)


# ---- left by another


async def test_a_started_attempt_becomes_an_interrupted_event(
    open_journal: OpenJournal, root: Path
) -> None:
    """An attempt is charged by its last progress if there is any, else it is unknown at its
    hold. Settled events come first.
    """
    journal = open_journal()
    await settled(journal, event(1))
    metered, silent = intent(2), intent(3)
    for one in (metered, silent):
        await journal.intend(one)
    journal.note_progress({metered.event.key: TokenUsage(input_tokens=10, output_tokens=5)})
    journal.finish(is_recorded=True)

    left, logs = adopted(root)
    assert left.journal_id == journal.journal_id
    assert [(line["event"], line["settled"], line["interrupted"]) for line in logs] == [
        ("journal_adopted", 1, 2)
    ]
    first = left.read(None, max_events=1)
    assert decoded(first) == [event(1)]
    left.acknowledge(first)
    begun = []
    for _ in range(2):
        assert left.read(None, max_events=1) == left.read(None, max_events=1), "until it is let go"
        batch = left.read(None, max_events=1)
        begun.append(decoded(batch))
        left.acknowledge(batch)
    [charged], [unknown] = begun
    assert (charged.key, charged.outcome, charged.usage_source) == (
        metered.event.key,
        Outcome.INTERRUPTED,
        UsageSource.DERIVED,
    )
    assert (charged.usage, charged.cost_nusd, charged.held_nusd) == (
        TokenUsage(input_tokens=10, output_tokens=5),
        30_000,
        None,
    )
    assert unknown == silent.event
    assert left.read(None, max_events=NEVER).documents == []
    left.finish()
    assert names(root) == {".lock"}


@pytest.mark.parametrize(("writes_output", "cost_nusd"), [(False, 10_000), (True, None)])
async def test_half_a_figure_is_whole_for_embeddings_alone(
    open_journal: OpenJournal, root: Path, writes_output: bool, cost_nusd: int | None
) -> None:
    """The intent records whether output was still expected; an embedding has none, so its input
    alone gives the cost.
    """
    journal = open_journal()
    begun = replace(intent(1), writes_output=writes_output)
    await journal.intend(begun)
    journal.note_progress({begun.event.key: TokenUsage(input_tokens=10)})
    journal.finish(is_recorded=True)
    left, _ = adopted(root)
    assert [one.cost_nusd for one in left.begun] == [cost_nusd]
    left.finish()


@pytest.mark.parametrize("note", [b"no JSON", b'{"another": "release"}'])
async def test_progress_that_cannot_be_read_costs_no_event(
    open_journal: OpenJournal, root: Path, note: bytes
) -> None:
    """A note of another release makes the attempt unknown, but does not lose it."""
    journal = open_journal()
    await journal.intend(intent(1))
    journal.journal.note_progress(note)
    journal.finish(is_recorded=True)
    left, logs = adopted(root)
    assert [line["event"] for line in logs] == ["progress_not_readable", "journal_adopted"]
    assert logs[0]["journal"] == str(journal.journal_id)
    assert left.begun == [intent(1).event]
    left.finish()


async def test_a_journal_of_another_release_stops_no_other(
    open_journal: OpenJournal, root: Path
) -> None:
    """Its intents cannot be decoded, so it waits on the disk for a release that can. The other
    journals are booked.
    """
    # Journals are adopted in this order.
    broken, *whole = sorted((open_journal() for _ in range(3)), key=lambda one: one.journal_id)
    await broken.journal.intend(intent(0).event.key, b"no JSON")
    for number, journal in enumerate(whole, start=1):
        await journal.intend(intent(number))
    for journal in (broken, *whole):
        journal.finish(is_recorded=True)

    on_this_volume = LeftJournals(root)
    with capture_logs() as logs:
        left = on_this_volume.adopt()
        assert on_this_volume.adopt() == [], "it is not read again and again"
    assert [(one.journal_id, [event.key for event in one.begun]) for one in left] == [
        (journal.journal_id, [intent(number).event.key])
        for number, journal in enumerate(whole, start=1)
    ]
    assert [line["event"] for line in logs] == [
        "journal_not_readable",
        "journal_adopted",
        "journal_adopted",
    ]
    assert logs[0]["journal"] == str(broken.journal_id)
    for one in left:
        one.finish()
    assert [(listing.journal_id, listing.is_held) for listing in journals_on(root)] == [
        (broken.journal_id, False)
    ]
    [waiting] = adopt_free(root)
    assert waiting.recovered.open_intents == {intent(0).event.key: b"no JSON"}
    waiting.release()
