"""Documents on their way into the ledger: each is booked once, in any batch and any state of the
month.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID, uuid4

import msgspec
import pytest
from msgspec import structs
from sqlalchemy import text

from gateway.domain.ledger.records import Written
from gateway.domain.ledger.usage_event import UsageEvent
from gateway.domain.pricing.tokens import TokenUsage, UsageSource
from gateway.errors import DatabaseUnavailable
from gateway.storage.ledger.documents import encode_event
from gateway.storage.ledger.journals_table import JournalTable
from gateway.storage.ledger.ledger import COLUMNS, Ledger
from gateway.storage.ledger.state import read_state
from gateway.storage.postgres.database import Database
from tests.storage.factories import NOON, event
from tests.waiting import eventually

UNKNOWN = {
    "usage": TokenUsage(),
    "usage_source": UsageSource.UNKNOWN,
    "lines": (),
    "cost_nusd": None,
}


WAITING = (
    "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = "
    "'Lock'"
)


@pytest.fixture
def ledger(database: Database) -> Ledger:
    """Return the ledger of this test's database."""
    return Ledger(database)


def documents(*events: UsageEvent) -> list[bytes]:
    return [encode_event(one) for one in events]


def rows(database: Database, statement: str, **values: object) -> list[tuple[object, ...]]:
    with database.begin() as connection:
        return [tuple(row) for row in connection.execute(text(statement), values)]


def one_value(database: Database, statement: str) -> object:
    ((value,),) = rows(database, statement)
    return value


def changed(one: UsageEvent, **members: object) -> bytes:
    """Return the document of an event with members that no event could have."""
    return msgspec.json.encode(msgspec.json.decode(encode_event(one)) | members)


def test_a_batch_separates_new_from_known_events(ledger: Ledger) -> None:
    """A writer that ships its journal again must see that it booked nothing new."""
    first = documents(event(1), event(2))
    assert ledger.write_documents(first) == Written(inserted=2)
    assert ledger.write_documents([*first, *documents(event(3))]) == Written(inserted=1, known=2)
    assert ledger.write_documents([]) == Written()


def test_every_member_that_has_no_column_is_kept(database: Database, ledger: Ledger) -> None:
    """If a provider counts something new that was charged, the count must be found again."""
    usage = TokenUsage(input_tokens=9, output_tokens=0, cache_write_1h_tokens=4, web_search_calls=0)
    odd_usage = TokenUsage(input_tokens=-1, output_tokens=0)
    tiered = event(1, usage=usage, reported=odd_usage, service_tier="flex", is_stand_in_price=True)
    unknown = changed(event(2), usage={"input_tokens": 1, "smell_tokens": 7, "taste_tokens": None})
    ledger.write_documents([*documents(tiered), unknown, *documents(event(3))])
    kept = (
        "SELECT input_tokens, output_tokens, usage_detail, reported_usage, service_tier, "
        "is_stand_in_price "
    )
    assert rows(database, f"{kept} FROM finance.usage_events ORDER BY request_id") == [
        (
            9,
            0,
            {"cache_write_1h_tokens": 4, "web_search_calls": 0},
            {"input_tokens": -1, "output_tokens": 0},
            "flex",
            True,
        ),
        (1, None, {"smell_tokens": 7}, None, None, False),
        (1000, 50, None, None, None, False),
    ]


def test_the_upstreams_other_figures_stand_beside_rare_counts(
    database: Database, ledger: Ledger
) -> None:
    """One column has both; a count of tokens is never replaced by a figure of its name."""
    usage = TokenUsage(input_tokens=9, output_tokens=0, web_search_calls=2)
    stated = {"provider_cost_usd": "0.092374", "queue_time": 0.25, "web_search_calls": 7}
    ledger.write([event(1, usage=usage, usage_detail=stated)])
    ((kept,),) = rows(database, "SELECT usage_detail FROM finance.usage_events")
    assert kept == {"provider_cost_usd": "0.092374", "queue_time": 0.25, "web_search_calls": 2}


def test_omitted_members_are_booked_as_their_defaults(database: Database, ledger: Ledger) -> None:
    """A document omits members that are null, false or empty by default; a document with all
    members makes the same row.
    """
    bare: dict[str, Any] = {
        "finish_reason": None,
        "client_request_id": None,
        "upstream_request_id": None,
        "features": {},
        "decision": {},
    }
    short, long = event(1, **bare), event(2, **bare)
    left_out = {*bare, "service_tier", "reported", "is_stand_in_price", "is_suspect", "is_demo"}
    assert not left_out & msgspec.json.decode(encode_event(short)).keys()
    usage = dict.fromkeys(TokenUsage.__struct_fields__) | structs.asdict(long.usage)
    spelled_out = changed(long, **{name: getattr(long, name) for name in left_out}, usage=usage)
    assert ledger.write_documents([*documents(short), spelled_out]) == Written(inserted=2)
    columns = ", ".join(
        name
        for name in COLUMNS
        if name not in ("request_id", "occurred_at", "started_at", "digest")
    )
    first, second = rows(
        database, f"SELECT {columns} FROM tollgate.usage_events ORDER BY request_id"
    )
    assert first == second


# ---- two records of one attempt


def test_other_content_becomes_one_adjustment_however_often_it_comes(
    database: Database, ledger: Ledger
) -> None:
    """Two records claim one attempt: neither is dropped, and the last content decides the sum."""
    ledger.write_documents(documents(event(1, cost_nusd=600)))
    other = documents(event(1, cost_nusd=1000))
    assert ledger.write_documents(other) == Written(conflicts=1)
    for _ in range(3):
        assert ledger.write_documents([*other, *documents(event(1, cost_nusd=600))]) == Written(
            known=2
        )
    assert one_value(database, "SELECT cost_nusd FROM tollgate.usage_events") == 600
    booked = (
        "SELECT amount_nusd, kind, team, cost_centre, posted_period, settles FROM "
        "tollgate.adjustments"
    )
    assert rows(database, booked) == [
        (400, "redelivery", "payments", "CC-1207", date(2026, 11, 1), False)
    ]
    reason = str(one_value(database, "SELECT reason FROM tollgate.adjustments"))
    digests = rows(database, "SELECT encode(digest, 'hex') FROM tollgate.usage_events")
    digests += rows(database, "SELECT encode(digest, 'hex') FROM tollgate.adjustments")
    assert all(str(digest) in reason for (digest,) in digests)
    assert read_state(database, partitions_until=NOON.date()).conflicting_events == 1


def test_a_conflict_of_equal_cost_is_still_reported(database: Database, ledger: Ledger) -> None:
    """No money is owed, but the operator must see that two gateways use one journal."""
    ledger.write_documents(documents(event(1)))
    assert ledger.write_documents(documents(event(1, team="others"))) == Written(conflicts=1)
    assert rows(database, "SELECT amount_nusd, team FROM tollgate.adjustments") == [(0, "payments")]


def test_several_contents_add_up_to_the_last(database: Database, ledger: Ledger) -> None:
    """If each difference were taken to the first content, the same correction would count twice."""
    batch = documents(*(event(1, cost_nusd=cost) for cost in (600, 1000, 700)))
    assert ledger.write_documents(batch) == Written(inserted=1, conflicts=2)
    amounts = "SELECT amount_nusd FROM tollgate.adjustments ORDER BY amount_nusd"
    assert rows(database, amounts) == [(-300,), (400,)]
    assert one_value(database, "SELECT cost_nusd FROM tollgate.usage_events") == 600, (
        "the first of a batch counts"
    )


def test_a_late_cost_settles_an_unknown_attempt(database: Database, ledger: Ledger) -> None:
    """A recovery booked the attempt as unknown; then its settlement is found on another volume."""
    ledger.write_documents(documents(event(1, **UNKNOWN, held_nusd=5000)))
    assert ledger.write_documents(documents(event(1, cost_nusd=600))) == Written(conflicts=1)
    assert rows(database, "SELECT amount_nusd, settles FROM tollgate.adjustments") == [(600, True)]
    assert one_value(database, "SELECT is_unsettled FROM finance.usage_events") is False


def test_an_unknown_record_takes_nothing_from_a_known_cost(
    database: Database, ledger: Ledger
) -> None:
    """A record without a cost does not correct a record with one."""
    ledger.write_documents(documents(event(1, cost_nusd=600)))
    ledger.write_documents(documents(event(1, **UNKNOWN, held_nusd=5000)))
    assert rows(database, "SELECT amount_nusd, settles FROM tollgate.adjustments") == [(0, False)]


def test_demo_data_made_again_is_no_conflict(database: Database, ledger: Ledger) -> None:
    """Demo events are made again with today's prices, and cost no money."""
    ledger.write_documents(documents(event(1, is_demo=True)))
    assert ledger.write_documents(documents(event(1, is_demo=True, cost_nusd=1))) == Written(
        known=1
    )
    assert ledger.write_documents(documents(event(1, cost_nusd=1))) == Written(conflicts=1), (
        "this one is real"
    )


def test_two_writers_with_conflicting_batches_in_other_order_book_each_once(
    database: Database, ledger: Ledger
) -> None:
    """Two workers book two adopted journals at the same moment, in opposite directions."""
    first = documents(*(event(n, cost_nusd=100) for n in range(200)))
    second = documents(*(event(n, cost_nusd=300) for n in range(200)))
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(ledger.write_documents, (first, second[::-1], first[::-1], second)))
    total = sum(found, Written())
    assert (total.inserted, total.conflicts, total.dead) == (200, 200, 0)
    assert one_value(database, "SELECT count(*) FROM tollgate.adjustments") == 200
    query = """SELECT DISTINCT e.cost_nusd + a.amount_nusd FROM tollgate.usage_events e
              JOIN tollgate.adjustments a USING (request_id, attempt)"""
    assert set(rows(database, query)) <= {(100,), (300,)}


# ---- documents that cannot be booked


POISON = {
    "not an id": changed(event(900), request_id="tomorrow"),
    "an id of another kind": changed(event(900), request_id=str(UUID(int=2**128 - 1))),
    "a moment that no calendar has": changed(event(900), started_at="infinity"),
    "more tokens than there are": changed(event(900), usage={"input_tokens": 10**30}),
    "a NUL": encode_event(event(900)).replace(b"payments", b"pay\\u0000ments"),
    "half a surrogate pair": encode_event(event(900)).replace(b"payments", b"pay\\ud800ments"),
    "a word for a number": changed(event(900), cost_nusd="a lot"),
    "a list for tags": changed(event(900), tags=["a"]),
    "text for usage": changed(event(900), usage="many"),
    "no team": changed(event(900), team=None),
    "not JSON": b"{",
    "nothing": b"",
    "a list": b"[]",
    "bytes that are no text": b'{"team": "\xff\xfe"}',
    "a line break and a tab": b"{\n\t\\",
    "the end of a copy": b"\\.",
    "a name longer than an index takes": changed(event(900), team="x" * 9000),
    "braces without end": b"[" * 100_000,
}


@pytest.mark.parametrize("what", POISON)
@pytest.mark.parametrize("place", [0, 7, 14])
def test_one_poisoned_document_stops_no_other(
    database: Database, ledger: Ledger, what: str, place: int
) -> None:
    """Otherwise one record that Postgres always refuses would fill the journal."""
    batch = documents(*(event(n) for n in range(14)))
    batch.insert(place, POISON[what])
    if what == "a name longer than an index takes":
        # It must not compress.
        batch[place] = changed(event(900), team="".join(str(n) for n in range(9000)))
    assert ledger.write_documents(batch) == Written(inserted=14, dead=1)
    assert rows(database, "SELECT document FROM tollgate.dead_letters") == [(batch[place],)]
    assert ledger.write_documents(batch).dead == 1
    state = read_state(database, partitions_until=NOON.date())
    assert state.dead_letters == 1, "the same record again is one dead letter"
    assert one_value(database, "SELECT count(*) FROM tollgate.usage_events") == 14


def test_many_poisoned_documents_leave_the_good_ones(database: Database, ledger: Ledger) -> None:
    """If a release writes half its records wrongly, the other half is still booked."""
    good, bad = documents(*(event(n) for n in range(40))), [f"junk {n}".encode() for n in range(40)]
    mixed = [document for pair in zip(good, bad, strict=True) for document in pair]
    assert ledger.write_documents(mixed) == Written(inserted=40, dead=40)


def test_a_dead_letter_says_why_without_its_content(database: Database, ledger: Ledger) -> None:
    """The operator needs the reason; logs and reports must not repeat a caller's content."""
    ledger.write_documents([changed(event(1), policy_version="SECRET")])
    ((error,),) = rows(database, "SELECT error FROM finance.dead_letters")
    assert "22P02" in str(error)


# ---- months


def test_an_event_of_a_closed_month_is_posted_to_the_next_open_one(
    database: Database, ledger: Ledger
) -> None:
    """A closed month never changes; the event must still be booked, with its own date."""
    september = datetime(2026, 9, 30, 23, tzinfo=UTC)
    with database.begin() as connection:
        connection.execute(
            text(
                "INSERT INTO tollgate.periods (month, state) VALUES ('2026-09-01', 'closed'), "
                "('2026-10-01', 'closed')"
            )
        )
    ledger.write_documents(
        documents(event(1, at=september), event(2, at=datetime(2026, 11, 1, tzinfo=UTC)))
    )
    assert rows(
        database,
        "SELECT posted_period, occurred_at FROM tollgate.usage_events ORDER BY occurred_at",
    ) == [
        (date(2026, 11, 1), september),
        (date(2026, 11, 1), datetime(2026, 11, 1, tzinfo=UTC)),
    ]


def test_an_event_opens_a_month_if_none_is_open(database: Database, ledger: Ledger) -> None:
    """If all months so far are closed, the next one begins with this event."""
    far = datetime(2150, 6, 1, tzinfo=UTC)
    with database.begin() as connection:
        connection.execute(
            text("INSERT INTO tollgate.periods (month, state) VALUES ('2150-06-01', 'closed')")
        )
    ledger.write_documents(documents(event(1, at=far)))
    assert rows(database, "SELECT posted_period FROM tollgate.usage_events") == [
        (date(2150, 7, 1),)
    ]
    assert rows(database, "SELECT month, state FROM tollgate.periods ORDER BY 1") == [
        (date(2150, 6, 1), "closed"),
        (date(2150, 7, 1), "open"),
    ]


def test_a_month_cannot_be_closed_under_events_on_their_way(
    database: Database, ledger: Ledger
) -> None:
    """The month must not close between the check and the commit: its hash would miss the event."""
    ledger.write_documents(documents(event(1)))
    close = text("SET LOCAL lock_timeout = '50ms'; UPDATE tollgate.periods SET state = 'closed'")
    with database.begin() as writer:
        writer.execute(text("SELECT tollgate.posting_months(ARRAY['2026-11-01'::date])"))
        with pytest.raises(DatabaseUnavailable, match="lock timeout"), database.begin() as closer:
            closer.execute(close)
    with database.begin() as closer:
        closer.execute(close)


def test_an_event_waits_for_a_month_that_is_being_closed(
    database: Database, ledger: Ledger
) -> None:
    """It must use the month's new state, not the old one."""
    ledger.write_documents(documents(event(1)))
    with ThreadPoolExecutor(1) as pool, database.engine.connect() as closer:
        closer.execute(
            text("UPDATE tollgate.periods SET state = 'closed' WHERE month = '2026-11-01'")
        )
        writing = pool.submit(ledger.write_documents, documents(event(2)))
        eventually(lambda: rows(database, WAITING), "the writer at the month's lock")
        closer.commit()
        assert writing.result() == Written(inserted=1)
    posted = rows(database, "SELECT posted_period FROM tollgate.usage_events ORDER BY request_id")
    assert posted == [(date(2026, 11, 1),), (date(2026, 12, 1),)]


def test_an_adjustment_of_a_closed_month_is_posted_to_the_next(
    database: Database, ledger: Ledger
) -> None:
    """A correction of a closed month belongs to a month that can still change."""
    ledger.write_documents(documents(event(1, cost_nusd=600)))
    with database.begin() as connection:
        connection.execute(text("UPDATE tollgate.periods SET state = 'closed'"))
    ledger.write_documents(documents(event(1, cost_nusd=700)))
    booked = "SELECT posted_period, amount_nusd, occurred_at::date FROM tollgate.adjustments"
    assert rows(database, booked) == [(date(2026, 12, 1), 100, date(2026, 11, 20))]


# ---- journals


def test_a_journal_is_known_by_its_heartbeat(database: Database, ledger: Ledger) -> None:
    """A worker that died with events on its disk is found by its last heartbeat."""
    journals, journal_id, other = JournalTable(database), uuid4(), uuid4()
    journals.register(journal_id, replica="gateway-1")
    ledger.write_documents(documents(event(1), event(2)), journal_id=journal_id)
    ledger.write_documents([*documents(event(1), event(3)), b"junk"], journal_id=journal_id)
    ledger.write_documents(documents(event(4)), journal_id=other)
    found = {journal.id: journal for journal in journals.all()}
    assert (found[journal_id].replica, found[journal_id].written, found[journal_id].state) == (
        "gateway-1",
        3,
        "live",
    )
    assert (found[other].replica, found[other].written) == ("unknown", 1), (
        "one that could not say its name in time"
    )
    assert rows(database, "SELECT journal_id FROM tollgate.dead_letters") == [(journal_id,)]
    before = found[journal_id].heartbeat
    journals.record_heartbeat(journal_id)
    journals.drained(other)
    assert [(j.id, j.state) for j in journals.all()] == [(other, "drained"), (journal_id, "live")]
    assert journals.all()[1].heartbeat > before


def test_lines_with_an_exponent_are_written_out_in_order(
    database: Database, ledger: Ledger
) -> None:
    """A data warehouse may read `1E+1` as a price of 1, or as no price."""
    lines = [
        {"kind": "input", "tokens": n, "usd_per_mtok": rate, "cost_nusd": n}
        for n, rate in enumerate(["1E+1", "2.5E-7", "0.250"])
    ]
    ledger.write_documents([changed(event(1), lines=lines), changed(event(2, team="E+"), lines=[])])
    kept = (
        "SELECT jsonb_path_query_array(lines, '$[*].usd_per_mtok') FROM tollgate.usage_events "
        "ORDER BY request_id"
    )
    assert rows(database, kept) == [(["10", "0.00000025", "0.250"],), ([],)]
    assert Decimal("0.250") == Decimal("0.25")
