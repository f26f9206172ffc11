"""A closed month could be reopened by a plain UPDATE of the owner, without a reason or a version,
and then took more facts; `finance.periods` did not show the close.
"""

from __future__ import annotations

from decimal import Decimal

import pytest
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError

from gateway.storage.ledger.ledger import Ledger
from gateway.storage.ledger.months import MonthStore
from gateway.storage.postgres.database import Database
from tests.storage.budget_books import rows
from tests.storage.factories import event
from tests.storage.ledger.months.test_month_states import AUGUST, close, moment

STATE = (
    "SELECT state, version, sha256, closed_by, reason, events, adjustments, total_usd FROM "
    "finance.periods WHERE month = '2026-08-01'"
)


@pytest.fixture
def closed(database: Database) -> Database:
    """Return a database with one closed month of one event."""
    ledger = Ledger(database)
    ledger.write([event(1, at=moment(AUGUST))])
    ledger.close()
    close(database, AUGUST)
    return database


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE tollgate.periods SET state = 'open'",
        "UPDATE tollgate.periods SET state = 'open', reopened_at = now()",
        "UPDATE tollgate.periods SET month = '2020-01-01'",
        "UPDATE tollgate.periods SET opened_at = now()",
        "DELETE FROM tollgate.periods",
        "TRUNCATE tollgate.periods CASCADE",
    ],
)
def test_the_owner_cannot_reopen_it_by_hand(closed: Database, statement: str) -> None:
    """A month reopened so takes facts that no version of a close explains."""
    with pytest.raises(DBAPIError, match=r"closed|refused|never"), closed.begin() as connection:
        connection.execute(text(statement))
    assert rows(closed, STATE)[0][0] == "closed"


def test_its_function_reopens_it_and_it_closes_again(closed: Database) -> None:
    """The rule must leave the one way that has a reason and an entry in the audit log."""
    MonthStore(closed).reopen(AUGUST, reason="an invoice came")
    assert rows(closed, STATE) == [("provisional", *(None,) * 7)]
    again = close(closed, AUGUST)
    assert rows(closed, STATE)[0][1:3] == (2, again.sha256)


def test_the_view_shows_the_close(database: Database) -> None:
    """A warehouse finds the version, its hash and its figures without the command line."""
    ledger = Ledger(database)
    ledger.write([event(1, at=moment(AUGUST))])
    ledger.close()
    accepted = dict.fromkeys(("unpartitioned-events", "unreconciled-providers"), "a test")
    made = MonthStore(database).close(AUGUST, billed=(), accepted=accepted, reason="all is in")
    (found,) = rows(database, STATE)
    assert tuple(found[:3]) == ("closed", 1, made.sha256)
    assert found[3] == made.author
    assert tuple(found[4:]) == ("all is in", 1, 0, Decimal("0.000600000"))


@pytest.mark.parametrize("role", ["tollgate_gateway", None])
@pytest.mark.parametrize(
    "statement",
    [
        "INSERT INTO tollgate.usage_events SELECT (jsonb_populate_record(event, jsonb_build_object("
        "'request_id', left(request_id::text, 35) || 'f'))).* FROM tollgate.usage_events AS event",
        "INSERT INTO tollgate.adjustments (adjustment_id, team, cost_centre, posted_period, "
        "occurred_at, amount_nusd, kind, reason, author, written_by) VALUES (gen_random_uuid(), "
        "'payments', 'CC-1207', '2026-08-01', '2026-08-05', 1, 'resolution', 'x', 'x', '3')",
    ],
    ids=["event", "adjustment"],
)
def test_no_row_states_another_writer(database: Database, role: str | None, statement: str) -> None:
    """The watermark of the exports rests on `written_by`: every later export would miss the row."""
    ledger = Ledger(database)
    ledger.write([event(1)])
    ledger.close()
    with database.begin() as connection:
        connection.execute(text(f'SET LOCAL ROLE "{role}"' if role else "SELECT 1"))
        with pytest.raises(DBAPIError, match="another transaction"):
            connection.execute(text(statement))
