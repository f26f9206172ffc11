"""Months close oldest first, and late facts are posted to the oldest month that is not
closed.
"""

from __future__ import annotations

from datetime import UTC, date, datetime
from typing import Any

import pytest
from sqlalchemy import text

from gateway.domain.ledger.month_close import MonthClose
from gateway.errors import OperatorError
from gateway.storage.ledger.documents import encode_event
from gateway.storage.ledger.ledger import Ledger
from gateway.storage.ledger.months import MonthStore
from gateway.storage.postgres.database import Database
from tests.storage.factories import event

AUGUST, SEPTEMBER, OCTOBER = date(2026, 8, 1), date(2026, 9, 1), date(2026, 10, 1)


def moment(month: date, day: int = 5) -> datetime:
    return datetime(month.year, month.month, day, 12, tzinfo=UTC)


def rows(database: Database, sql: str) -> list[Any]:
    with database.begin() as connection:
        return [tuple(row) for row in connection.execute(text(sql))]


def states(database: Database) -> dict[date, str]:
    return dict(rows(database, "SELECT month, state FROM finance.periods"))


def close(database: Database, month: date) -> MonthClose:
    """Close a month; the events of tests lie in the default partition."""
    accepted = dict.fromkeys(("unpartitioned-events", "unreconciled-providers"), "a test")
    return MonthStore(database).close(month, billed=(), accepted=accepted)


def test_a_month_that_is_over_is_provisional_without_any_job(database: Database) -> None:
    """A job that did not run would leave the wrong state."""
    now = datetime.now(UTC)
    Ledger(database).write([event(1, at=moment(OCTOBER)), event(2, at=now)])
    assert states(database) == {OCTOBER: "provisional", now.date().replace(day=1): "open"}
    close(database, OCTOBER)
    assert states(database)[OCTOBER] == "closed"


def test_months_close_oldest_first_and_only_when_they_are_over(database: Database) -> None:
    """A month before a closed one could not change any more, though it was never checked."""
    now = datetime.now(UTC)
    moments = (moment(AUGUST), moment(OCTOBER), now)
    Ledger(database).write([event(n, at=at) for n, at in enumerate(moments)])
    for month, why in (
        (OCTOBER, "oldest first: 2026-08 comes next"),
        (now.date().replace(day=1), f"{now:%Y-%m} is not over"),
    ):
        with pytest.raises(OperatorError, match=why):
            close(database, month)
    close(database, AUGUST)
    with pytest.raises(OperatorError, match="closed already"):
        close(database, AUGUST)
    with pytest.raises(OperatorError, match="2026-09 comes next"):  # though it has no events
        close(database, OCTOBER)
    close(database, SEPTEMBER)
    close(database, OCTOBER)
    assert set(states(database).values()) == {"closed", "open"}


def test_only_the_newest_closed_month_reopens(database: Database) -> None:
    """A month under a closed one cannot change alone: the later one took over its late facts."""
    Ledger(database).write([event(1, at=moment(AUGUST)), event(2, at=moment(SEPTEMBER))])
    months = MonthStore(database)
    with pytest.raises(OperatorError, match="not the newest closed"):
        months.reopen(AUGUST, reason="x")
    close(database, AUGUST)
    close(database, SEPTEMBER)
    with pytest.raises(OperatorError, match="not the newest closed"):
        months.reopen(AUGUST, reason="x")
    with pytest.raises(OperatorError, match="for a reason"):
        months.reopen(SEPTEMBER, reason=" ")
    months.reopen(SEPTEMBER, reason="an invoice came")
    months.reopen(AUGUST, reason="and another")
    assert states(database) == {AUGUST: "provisional", SEPTEMBER: "provisional"}


def test_late_events_and_adjustments_go_to_the_oldest_month_that_is_not_closed(
    database: Database,
) -> None:
    """Also if that month has no events yet: it would otherwise close without them."""
    ledger = Ledger(database)
    ledger.write([event(1, at=moment(AUGUST)), event(9)])
    close(database, AUGUST)
    ledger.write([event(2, at=moment(AUGUST)), event(3, at=moment(date(2026, 3, 1)))])
    ledger.write_documents([encode_event(event(1, at=moment(AUGUST), cost_nusd=1))])
    assert rows(
        database,
        "SELECT posted_period FROM tollgate.usage_events WHERE occurred_at < '2026-09-01' "
        "ORDER BY recorded_at, occurred_at",
    ) == [(AUGUST,), (SEPTEMBER,), (SEPTEMBER,)]
    assert rows(database, "SELECT posted_period, amount_nusd FROM tollgate.adjustments") == [
        (SEPTEMBER, 1 - 600_000)
    ]


def test_a_reopened_month_takes_its_own_events_again_and_closes_as_version_2(
    database: Database,
) -> None:
    """Both versions stay, and the first one still has its own hash."""
    ledger, months = Ledger(database), MonthStore(database)
    ledger.write([event(1, at=moment(AUGUST), cost_nusd=100)])
    first = close(database, AUGUST)
    months.reopen(AUGUST, reason="an invoice came")
    ledger.write([event(2, at=moment(AUGUST), cost_nusd=10)])
    second = close(database, AUGUST)
    assert [(one.version, one.events, one.total_usd * 10**9) for one in (first, second)] == [
        (1, 1, 100),
        (2, 2, 110),
    ]
    assert first.sha256 != second.sha256
    assert [(one.close.version, one.differing) for one in months.verify(AUGUST)] == [
        (1, []),
        (2, []),
    ]
    acts = rows(
        database, "SELECT action, subject FROM finance.audit_log WHERE action LIKE 'month.%'"
    )
    assert acts == [
        ("month.close", "2026-08"),
        ("month.reopen", "2026-08"),
        ("month.close", "2026-08"),
    ]
