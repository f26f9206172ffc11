"""A receipt read before the commit is the receipt read after it, byte for byte; and corrections are
shown.
"""

from __future__ import annotations

import json
from decimal import Decimal
from random import Random
from typing import Any
from uuid import UUID

import psycopg
import pytest
from msgspec.structs import replace

from gateway.domain.ids import occurred_at
from gateway.domain.ledger.usage_event import Outcome, UsageEvent
from gateway.domain.pricing.pricing import Line
from gateway.domain.pricing.tokens import TokenKind, TokenUsage, UsageSource
from gateway.reports.json_and_csv import receipt_to_json
from gateway.reports.receipts.attempt import PriceFact
from gateway.reports.receipts.receipt import receipt_of_events
from gateway.reports.reports import Reports
from gateway.storage.policy.prices import PriceStore
from gateway.storage.postgres.database import Database
from tests.reports.conftest import Write
from tests.reports.random_events import random_event
from tests.storage.factories import event, price, request_id

UNKNOWN: dict[str, Any] = {
    "usage": TokenUsage(),
    "usage_source": UsageSource.UNKNOWN,
    "lines": (),
    "cost_nusd": None,
    "held_nusd": 70,
}
# Values that JSON, Postgres or a float could change on the way: order, escapes, NUL, half a
# surrogate pair, many digits.
ODD = {"zz": "1", "a": "é", "B": "\0", "b\0": "x\ud800y", "": " ", "long-name": "\\u0000"}
DECISION = {
    "objective": "priority",
    "rule": "confid\0ential",
    "ranked": ["gpt-eu"],
    "candidates": [
        {"deployment": "gpt-eu", "region": "eu", "obstacles": []},
        {"deployment": "x", "region": "us", "obstacles": [["residency", "is in \ud800"]]},
    ],
}


def odd_event(number: int, rng: Random) -> UsageEvent:
    """A random event in which every member that reaches a receipt is hard to carry."""
    lines = (
        Line(
            kind=TokenKind.INPUT,
            tokens=rng.randrange(10**6),
            usd_per_mtok=Decimal("1E+1"),
            cost_nusd=123,
        ),
        Line(
            kind=TokenKind.OUTPUT,
            tokens=3,
            usd_per_mtok=Decimal(f"0.{rng.randrange(1, 10**12):012}"),
            cost_nusd=1,
        ),
    )
    plain = random_event(number, rng)
    usage = plain.usage
    if rng.random() < 0.5:
        usage = replace(usage, web_search_calls=0, audio_input_tokens=7, cache_write_1h_tokens=1)
    return replace(
        plain,
        usage=usage,
        tags=ODD,
        end_user=rng.choice([None, "u\0\ud800"]),
        decision=DECISION,
        price_id=rng.choice([None, "price_0123456789abcdef", price().price_id]),
        lines=rng.choice([(), lines]),
        tpot_s=rng.random() / 3,
        duration_s=rng.random() * 1e3,
        overhead_s=rng.choice([None, rng.random()]),
        http_status=rng.choice([None, 200, 503]),
        finish_reason="st\0op",
        client_request_id="\ud800",
        upstream_request_id=rng.choice([None, "up"]),
        is_suspect=rng.random() < 0.3,
        is_stand_in_price=rng.random() < 0.3,
        usage_detail=rng.choice(
            [{}, {"speed": "fast", "cost_details.a": "0.10", "queue_time": 1.5}]
        ),
        service_tier=rng.choice([None, "fl\0ex"]),
        reported=rng.choice(
            [None, TokenUsage(), TokenUsage(output_tokens=-1, audio_output_tokens=10**12)]
        ),
    )


def test_a_receipt_reads_alike_before_and_after_the_commit(
    finance: Reports, write: Write, database: Database, rng: Random
) -> None:
    """Whoever keeps the receipt of a second ago must find the same one in the ledger next year."""
    PriceStore(database).store_event_prices([price()])
    events = [odd_event(number, rng) for number in range(120)]

    before = [text(finance, one.request_id, recent=[one]) for one in events]
    write(*events)

    assert [text(finance, one.request_id) for one in events] == before
    # The stored data override the remembered ones: the memory may be older than an adjustment.
    assert [
        text(finance, one.request_id, recent=[replace(one, cost_nusd=1)]) for one in events
    ] == before


def test_attempts_on_both_sides_of_the_commit_are_one_receipt(
    finance: Reports, write: Write
) -> None:
    """The first attempt is written, the second settled a millisecond ago: the total must hold
    both.
    """
    first, second = event(1), event(1, attempt=2, cost_nusd=5, lines=())
    write(first)

    found = finance.receipt(request_id(1), recent=[second])

    assert found is not None
    assert [attempt.event.attempt for attempt in found.attempts] == [1, 2]
    assert found.cost_usd == Decimal("0.000600005")


def test_recent_events_of_another_team_are_not_shown(finance: Reports) -> None:
    """Memory must be as discreet as the ledger."""
    recent = [event(1, team="payments")]
    assert finance.receipt(request_id(1), team="research", recent=recent) is None
    assert receipt_of_events(recent, team="research", prices={}) is None
    demo = [event(1, is_demo=True)]
    assert finance.receipt(request_id(1), team="payments", recent=demo) is None


def test_without_postgres_only_the_day_of_the_price_is_missing(
    finance: Reports, write: Write, database: Database
) -> None:
    """In an outage the worker that answered still shows the whole receipt."""
    PriceStore(database).store_event_prices([price()])
    one = event(1, price_id=price().price_id)
    write(one)

    alone = receipt_of_events(
        [one], team="payments", prices={price().price_id: PriceFact(price=price())}
    )

    assert alone is not None
    ours, theirs = json.loads(receipt_to_json(alone)), json.loads(text(finance, one.request_id))
    (attempt,), (stored,) = ours.pop("attempts"), theirs.pop("attempts")
    assert ours == theirs
    assert {name for name in stored if stored[name] != attempt[name]} == {
        "price_recorded_at",
        "price_obtained",
    }
    assert (attempt["price_recorded_at"], attempt["price_obtained"]) == (None, "policy")
    assert stored["price_obtained"].startswith("policy, in the price book since 20")


@pytest.mark.parametrize(
    ("changes", "usage", "cost"),
    [
        ({}, "the upstream's final figure", "the sum of the lines"),
        (
            {"usage_source": UsageSource.DERIVED},
            "the upstream's last running figure",
            "the sum of the lines",
        ),
        (
            {"usage_source": UsageSource.NONE, "lines": (), "cost_nusd": 0},
            "certainly nothing",
            "zero",
        ),
        (UNKNOWN, "no usage was reported", "unknown: the amount held"),
    ],
)
def test_every_figure_says_how_it_was_obtained(
    finance: Reports, write: Write, changes: dict[str, Any], usage: str, cost: str
) -> None:
    """A number without its origin cannot be defended in front of the team that pays it."""
    write(event(1, **changes))

    found = finance.receipt(request_id(1))

    assert found is not None
    assert found.attempts[0].usage_obtained.startswith(usage)
    assert found.attempts[0].cost_obtained.startswith(cost)


def test_an_adjustment_changes_the_total_and_never_the_cost(
    finance: Reports, write: Write, database_url: str
) -> None:
    """A booking stays; the total is the booking plus corrections, even for an attempt that was
    unknown.
    """
    write(event(1), event(1, attempt=2, outcome=Outcome.UPSTREAM_TIMEOUT, **UNKNOWN))
    adjust(database_url, request_id(1), attempt=1, amount_nusd=-100_000, kind="reprice")
    adjust(
        database_url, request_id(1), attempt=2, amount_nusd=30, kind="engine_counters", settles=True
    )
    adjust(database_url, request_id(2), attempt=1, amount_nusd=10**9, kind="another request's")

    found = finance.receipt(request_id(1))

    assert found is not None
    first, second = found.attempts
    assert (first.cost_usd, first.total_usd) == (Decimal("0.0006"), Decimal("0.0005"))
    assert (second.cost_usd, second.total_usd) == (None, Decimal("0.00000003"))
    assert second.cost_obtained == "unknown when it ended; settled since by an adjustment"
    assert [(a.kind, a.amount_usd, a.posted_period) for a in second.adjustments] == [
        ("engine_counters", Decimal("0.00000003"), "2026-11")
    ]
    assert (found.cost_usd, found.total_usd, found.held_usd) == (
        Decimal("0.0006"),
        Decimal("0.00050003"),
        0,
    )
    assert "not in the total" not in " ".join(found.notes)


def test_a_correction_that_does_not_settle_leaves_the_cost_unknown(
    finance: Reports, write: Write, database_url: str
) -> None:
    """A credit note is no proof of usage."""
    write(event(1, **UNKNOWN))
    adjust(database_url, request_id(1), attempt=1, amount_nusd=-30, kind="credit")
    found = finance.receipt(request_id(1))
    assert found is not None
    assert (found.total_usd, found.held_usd) == (None, Decimal("0.00000007"))


def test_an_unknown_attempt_is_held_until_it_is_resolved(finance: Reports, write: Write) -> None:
    """Unknown is never zero."""
    write(event(1, **UNKNOWN))

    found = finance.receipt(request_id(1))

    assert found is not None
    assert (found.cost_usd, found.total_usd, found.held_usd) == (None, None, Decimal("0.00000007"))
    assert "not in the total" in found.notes[0]


def text(finance: Reports, wanted: UUID, *, recent: list[UsageEvent] | None = None) -> str:
    found = finance.receipt(wanted, recent=recent or [])
    assert found is not None
    return receipt_to_json(found)


def adjust(
    database_url: str,
    wanted: UUID,
    *,
    attempt: int,
    amount_nusd: int,
    kind: str,
    settles: bool = False,
) -> None:
    """A correction, as any of the ledger's jobs would book it."""
    at = occurred_at(wanted)
    with psycopg.connect(database_url) as connection:
        connection.execute(
            "INSERT INTO tollgate.adjustments (adjustment_id, request_id, attempt, team, "
            "cost_centre, posted_period, occurred_at, amount_nusd, kind, reason, author, settles) "
            "VALUES (gen_random_uuid(), %s, %s, 'payments', 'CC-1207', %s, %s, %s, %s, 'a test', "
            "'test', %s)",
            (wanted, attempt, at.date().replace(day=1), at, amount_nusd, kind, settles),
        )
