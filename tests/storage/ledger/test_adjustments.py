"""Unknown attempts and their later resolution: once, permanently, and never by changing the
event.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest
from sqlalchemy import text

from gateway.domain.ledger.resolution import StatedCost
from gateway.domain.ledger.usage_event import UsageEvent
from gateway.domain.pricing.tokens import TokenUsage, UsageSource
from gateway.errors import BadUsage, NothingFound, TollgateError
from gateway.storage.ledger import rollups
from gateway.storage.ledger.adjustments import (
    expire_holds,
    resolve,
)
from gateway.storage.ledger.documents import encode_event
from gateway.storage.ledger.ledger import Ledger
from gateway.storage.postgres.database import Database
from tests.storage.factories import NOON, event, request_id

DAY = timedelta(days=1)
LONG_AGO = NOON - 400 * DAY


def unknown(number: int = 1, **changes: Any) -> UsageEvent:
    values = {
        "usage": TokenUsage(),
        "usage_source": UsageSource.UNKNOWN,
        "lines": (),
        "cost_nusd": None,
    }
    return event(number, **values | {"held_nusd": 5000} | changes)


def rows(database: Database, statement: str) -> list[tuple[Any, ...]]:
    with database.begin() as connection:
        return [tuple(row) for row in connection.execute(text(statement))]


def is_unsettled(database: Database) -> list[bool]:
    return [
        flag
        for (flag,) in rows(
            database, "SELECT is_unsettled FROM finance.usage_events ORDER BY request_id"
        )
    ]


@pytest.mark.parametrize(
    ("cost", "nusd"), [(StatedCost.ZERO, 0), (StatedCost.HOLD, 5000), (1234, 1234), (9999, 9999)]
)
def test_an_unknown_attempt_is_resolved_by_an_adjustment(
    database: Database, cost: StatedCost | int, nusd: int
) -> None:
    """The event stays unknown permanently; the adjustment records the later cost and its source."""
    Ledger(database).write([unknown()])
    assert is_unsettled(database) == [True]
    booked = resolve(database, request_id(1), attempt=None, cost=cost, reason="invoice 4711")
    assert (booked.attempt, booked.posted_period) == (1, date(2026, 11, 1))
    assert booked.cost_usd == booked.amount_usd == Decimal(nusd).scaleb(-9)
    assert is_unsettled(database) == [False]
    assert rows(
        database, "SELECT amount_nusd, kind, reason, settles, author FROM tollgate.adjustments"
    ) == [(nusd, "resolution", "invoice 4711", True, rows(database, "SELECT session_user")[0][0])]
    assert rows(database, "SELECT cost_nusd, held_nusd FROM tollgate.usage_events") == [
        (None, 5000)
    ]


def test_nothing_is_resolved_twice(database: Database) -> None:
    """Two people with the same invoice must not book it twice, not even in the same second."""
    Ledger(database).write([unknown()])

    def book(amount: int) -> str:
        try:
            return str(
                resolve(database, request_id(1), attempt=1, cost=amount, reason="invoice").attempt
            )
        except BadUsage as refused:
            return refused.message

    with ThreadPoolExecutor(4) as pool:
        results = sorted(pool.map(book, range(4)))
    assert results == [
        "1",
        *[f"Attempt 1 of {request_id(1)} is resolved already. Nothing was booked."] * 3,
    ]
    assert rows(database, "SELECT count(*) FROM tollgate.adjustments") == [(1,)]


@pytest.mark.parametrize(
    ("number", "attempt", "error", "words"),
    [
        (1, None, BadUsage, "Nothing is unknown"),
        (2, None, BadUsage, "Attempts 1, 2 of .* are unknown"),
        (2, 3, NothingFound, "no attempt 3; it has 1, 2"),
        (3, None, BadUsage, "demo data"),
        (4, None, NothingFound, "report unsettled"),
        (5, None, BadUsage, "Nothing was held"),
    ],
)
def test_an_unresolvable_correction_is_refused_with_a_reason(
    database: Database, number: int, attempt: int | None, error: type[TollgateError], words: str
) -> None:
    """The person who books must learn the reason, and that nothing was booked."""
    Ledger(database).write(
        [
            event(1),
            unknown(2),
            unknown(2, attempt=2),
            unknown(3, is_demo=True),
            unknown(5, held_nusd=None),
        ]
    )
    with pytest.raises(error, match=words):
        resolve(database, request_id(number), attempt=attempt, cost=StatedCost.HOLD, reason="x")
    assert rows(database, "SELECT count(*) FROM tollgate.adjustments") == [(0,)]


def test_one_attempt_of_several_is_resolved_by_its_number(database: Database) -> None:
    """A failover may leave two unknown attempts of one request."""
    Ledger(database).write([unknown(2), unknown(2, attempt=2)])
    resolve(database, request_id(2), attempt=2, cost=7, reason="x")
    resolve(database, request_id(2), attempt=1, cost=8, reason="x")
    assert rows(database, "SELECT attempt, amount_nusd FROM tollgate.adjustments ORDER BY 1") == [
        (1, 8),
        (2, 7),
    ]


# ---- unresolved holds


def recent(number: int, **changes: Any) -> UsageEvent:
    """Return an event of now, by the server's clock: the expected cost is the average of the
    last seven days.
    """
    return event(number, at=datetime.now(UTC).replace(microsecond=0) - 2 * DAY, **changes)


def test_an_old_hold_is_let_go_at_the_expected_cost(database: Database) -> None:
    """Unresolved holds would block budgets forever, so the average cost of such attempts
    replaces them.
    """
    Ledger(database).write(
        [
            *(recent(n, cost_nusd=cost) for n, cost in enumerate((100, 200, 301))),
            recent(10, cost_nusd=9000, deployment="other"),
            recent(11, cost_nusd=9000, is_demo=True),
            unknown(20, at=LONG_AGO),
            unknown(21, at=LONG_AGO, held_nusd=150),
            unknown(22, at=LONG_AGO, deployment="never seen"),
            unknown(23, at=LONG_AGO, is_demo=True),
            unknown(24, at=datetime.now(UTC).replace(microsecond=0)),
        ]
    )
    rollups.refresh(database)
    assert expire_holds(database, ttl=DAY) == 3
    assert expire_holds(database, ttl=DAY) == 0, "once each"
    amounts = rows(
        database,
        "SELECT amount_nusd, kind, settles, reason FROM tollgate.adjustments ORDER BY request_id",
    )
    assert [(amount, kind, settles) for amount, kind, settles, _ in amounts] == [
        (200, "expired_hold", True),  # the average of 100, 200 and 301 is 200.33
        (150, "expired_hold", True),  # never more than the hold
        (5000, "expired_hold", True),  # nothing to compare with
    ]
    assert "average of 3 attempts that served, of route assistant at gpt-eu" in amounts[0][3]
    assert "the whole hold" in amounts[2][3]
    assert rows(database, "SELECT count(*) FROM finance.usage_events WHERE is_unsettled") == [(1,)]
    assert rows(database, "SELECT count(*) FROM finance.adjustments WHERE is_expected") == [(3,)]


def test_known_tokens_are_never_booked_below_the_average_price_of_a_token(
    database: Database,
) -> None:
    """A caller who makes many cheap requests would else get its dear unknown ones nearly free, and
    its hard budget back, each day.
    """
    served = TokenUsage(input_tokens=10, output_tokens=10)
    dear = TokenUsage(input_tokens=3000, output_tokens=200)
    Ledger(database).write(
        [
            *(recent(n, cost_nusd=100, usage=served) for n in range(3)),
            unknown(20, at=LONG_AGO, held_nusd=90_000, usage=dear),
            unknown(21, at=LONG_AGO, held_nusd=9_000, usage=dear),
            unknown(22, at=LONG_AGO, held_nusd=90_000),
        ]
    )
    rollups.refresh(database)
    assert expire_holds(database, ttl=DAY) == 3
    amounts = rows(
        database, "SELECT amount_nusd, reason FROM tollgate.adjustments ORDER BY request_id"
    )
    assert [amount for amount, _ in amounts] == [16_000, 9_000, 100]
    assert "for its own 3200 tokens, at most the hold" in amounts[0][1]


def test_an_invoice_corrects_an_expected_cost(database: Database) -> None:
    """The invoice comes after a week, and the sum must then equal it."""
    Ledger(database).write([unknown(1, at=LONG_AGO)])
    expire_holds(database, ttl=DAY)
    booked = resolve(database, request_id(1, LONG_AGO), attempt=None, cost=1200, reason="invoice")
    assert booked.amount_usd == Decimal(1200 - 5000).scaleb(-9)
    assert rows(
        database,
        "SELECT sum(amount_nusd), count(*) FILTER (WHERE settles) FROM tollgate.adjustments",
    ) == [(1200, 1)]
    assert rows(database, "SELECT count(*) FROM finance.adjustments WHERE is_expected") == [(0,)]
    with pytest.raises(BadUsage, match="resolved already"):
        resolve(database, request_id(1, LONG_AGO), attempt=None, cost=1, reason="again")
    assert expire_holds(database, ttl=DAY) == 0


def test_a_settlement_that_comes_after_all_corrects_an_expected_cost(database: Database) -> None:
    """A volume that was thought lost comes back; the sum must then equal the settlement."""
    at = LONG_AGO
    Ledger(database).write([unknown(1, at=at)])
    expire_holds(database, ttl=DAY)
    Ledger(database).write_documents([encode_event(event(1, at=at, cost_nusd=600))])
    assert rows(database, "SELECT sum(amount_nusd) FROM tollgate.adjustments") == [(600,)]


def test_more_holds_than_one_transaction_takes(database: Database) -> None:
    """After an upstream's outage there may be thousands."""
    Ledger(database).write([unknown(n, at=LONG_AGO) for n in range(1001)])
    assert expire_holds(database, ttl=DAY) == 1001
