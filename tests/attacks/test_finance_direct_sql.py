"""A dishonest clerk with the login of finance, or a program with that of the gateway, against the
books in SQL: a close that keeps no GPU hours, one of an earlier moment, one whose figures are
invented, and facts dated after the close of their month.

Found by an attacker who played that clerk, on 2026-11-27.
"""

from __future__ import annotations

from hashlib import sha256

import psycopg
import pytest
from psycopg import errors

from gateway.storage.ledger.ledger import Ledger
from gateway.storage.ledger.months import MonthStore
from gateway.storage.postgres.database import Database
from tests.storage.factories import event
from tests.storage.ledger.months.test_closed_facts import ADD_ADJUSTMENT, ADD_EVENT
from tests.storage.ledger.months.test_month_states import AUGUST, close, moment

NOTHING = sha256(b"").hexdigest()  # the hash of a close without parts
FINISH = f"SELECT tollgate.finish_close('2026-08-01', %s, '{{}}', '[]', '{NOTHING}', 7, 0, 1)"
DATED_LATE = {
    "tollgate_admin": ADD_ADJUSTMENT.replace("author)", "author, created_at)").replace(
        "'x')", "'x', '2099-01-01')"
    ),
    "tollgate_gateway": ADD_EVENT.format(table="tollgate.usage_events").replace(
        "'f'))", "'f', 'recorded_at', '2099-01-01'))"
    ),
}


@pytest.fixture
def august(database: Database) -> Database:
    """A database with one event of August."""
    Ledger(database).write([event(1, at=moment(AUGUST))])
    return database


@pytest.mark.parametrize("begins", [False, True])
def test_a_close_has_its_own_beginning_and_moment(
    august: Database, database_url: str, begins: bool
) -> None:
    """Without its beginning no GPU hour is kept: the month's bill is gone from every report. At an
    earlier moment the facts since then are in reports, and in no hash.
    """
    with psycopg.connect(database_url) as clerk:
        clerk.execute("SET ROLE tollgate_finance")
        if begins:
            clerk.execute("SELECT tollgate.begin_close('2026-08-01')")
        with pytest.raises(psycopg.Error, match="did not begin to close 2026-08"):
            clerk.execute(FINISH.encode(), ["2026-09-01"])


def test_a_beginning_is_of_one_transaction(august: Database, database_url: str) -> None:
    """One that was committed says nothing about the facts of a later one."""
    with psycopg.connect(database_url) as clerk:
        clerk.execute("SET ROLE tollgate_finance")
        begun = clerk.execute("SELECT closed_at FROM tollgate.begin_close('2026-08-01')").fetchone()
        clerk.commit()
        clerk.execute("SET ROLE tollgate_finance")
        with pytest.raises(psycopg.Error, match="did not begin to close 2026-08"):
            clerk.execute(FINISH.encode(), begun)


def test_verify_finds_a_close_with_invented_figures(august: Database, database_url: str) -> None:
    """A hash over no facts never changes, whatever happens to them."""
    with psycopg.connect(database_url) as clerk:
        clerk.execute("SET ROLE tollgate_finance")
        begun = clerk.execute("SELECT closed_at FROM tollgate.begin_close('2026-08-01')").fetchone()
        clerk.execute(FINISH.encode(), begun)
    (found,) = MonthStore(august).verify(AUGUST)
    assert found.differing == [
        *("events", "adjustments", "allocation", "rates", "shares", "idle", "currencies"),
        *("true-ups", "figures"),
    ]
    assert found.sha256 != found.close.sha256


@pytest.mark.parametrize("role", DATED_LATE)
def test_no_fact_is_dated_after_its_writing(august: Database, database_url: str, role: str) -> None:
    """Reports would show it in its month, whose close had left it out."""
    with psycopg.connect(database_url) as clerk:
        clerk.execute(f'SET ROLE "{role}"'.encode())
        with pytest.raises(errors.SerializationFailure, match="dated after its writing"):
            clerk.execute(DATED_LATE[role].encode())
    assert close(august, AUGUST).adjustments == 0


def test_the_rule_of_closed_months_goes_by_the_clock(database_url: str) -> None:
    """`now()` of a transaction that was open at the month's end lies in the month for ever. Time
    cannot be turned back in a test, so this reads the trigger.
    """
    with psycopg.connect(database_url) as connection:
        found = connection.execute(
            "SELECT DISTINCT pg_get_triggerdef(oid) LIKE '%clock_timestamp()%' FROM pg_trigger "
            "WHERE tgname = 'closed_months_take_no_events'"
        ).fetchall()
    assert found == [(True,)]
