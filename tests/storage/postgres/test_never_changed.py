"""Booked rows are permanent: no role of the product may change them, nor can the owner by
mistake.
"""

from __future__ import annotations

from datetime import UTC, date, datetime

import psycopg
import pytest
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError

from gateway.errors import DatabaseUnavailable
from gateway.storage.ledger.documents import encode_event
from gateway.storage.ledger.ledger import Ledger
from gateway.storage.ledger.state import read_state
from gateway.storage.postgres import partitions
from gateway.storage.postgres.database import Database
from tests.storage.factories import event

LATE = datetime(2024, 2, 3, tzinfo=UTC)
STATEMENTS = ("UPDATE {} SET {} = now()", "DELETE FROM {}", "TRUNCATE {} CASCADE")
TABLES = (
    "tollgate.usage_events",
    "tollgate.usage_events_2026_11",
    "tollgate.usage_events_2024_02",  # made long after the migration
    "tollgate.usage_events_default",
    "tollgate.adjustments",
)


@pytest.fixture
def booked(database: Database) -> Database:
    """Return a database with an event in every kind of partition and an adjustment."""
    early = event(3, at=datetime(2001, 1, 1, tzinfo=UTC))
    Ledger(database).write([event(1), event(2, at=LATE), early])
    with database.begin() as connection:
        has_november = connection.execute(
            text("SELECT to_regclass('tollgate.usage_events_2026_11')")
        ).scalar_one()
    if not has_november:
        partitions.ensure_months(database, first=date(2026, 11, 1), last=date(2026, 11, 1))
    partitions.ensure_months(database, first=LATE.date(), last=LATE.date())
    Ledger(database).write_documents([encode_event(event(1, cost_nusd=1))])
    return database


def written(statement: str, table: str) -> str:
    return statement.format(table, "recorded_at" if "events" in table else "created_at")


def content(database: Database) -> list[object]:
    with database.begin() as connection:
        events = connection.execute(
            text("SELECT * FROM tollgate.usage_events ORDER BY request_id")
        ).all()
        return [*events, *connection.execute(text("SELECT * FROM tollgate.adjustments")).all()]


@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("statement", STATEMENTS)
def test_the_owner_cannot_change_booked_events(
    booked: Database, table: str, statement: str
) -> None:
    """One careless psql session must not be able to rewrite a month."""
    before = content(booked)
    with (
        pytest.raises(Exception, match="the ledger is never changed"),
        booked.begin() as connection,
    ):
        connection.execute(text(written(statement, table)))
    assert content(booked) == before
    assert len(before) == 4


@pytest.mark.parametrize("role", ["tollgate_gateway", "tollgate_reader"])
@pytest.mark.parametrize("table", [*TABLES, "tollgate.prices"])
@pytest.mark.parametrize("statement", STATEMENTS)
def test_no_role_of_the_product_may_even_try(
    booked: Database, database_url: str, role: str, table: str, statement: str
) -> None:
    """An attacker who takes over a gateway or a dashboard must not be able to change the books."""
    narrow = Database(database_url, role=role)
    with pytest.raises(DatabaseUnavailable, match="may not do this"), narrow.begin() as connection:
        connection.execute(text(written(statement, table)))
    narrow.close()


@pytest.mark.parametrize(
    "trick",
    [
        "SET session_replication_role = replica",
        "ALTER TABLE tollgate.usage_events_default DISABLE TRIGGER ALL",
        "DROP TRIGGER rows_never_change ON tollgate.usage_events",
        "SELECT tollgate.make_immutable('tollgate.usage_events')",
        "SELECT tollgate.refuse_change()",
    ],
)
def test_a_gateway_cannot_open_the_door_that_late_partitions_use(
    booked: Database, database_url: str, trick: str
) -> None:
    """Only one function moves rows out of the default partition; no setting of a caller may
    allow it otherwise.
    """
    gateway = Database(database_url, role="tollgate_gateway")
    with pytest.raises((DatabaseUnavailable, DBAPIError)), gateway.begin() as connection:
        connection.execute(text(trick))
    with pytest.raises(DatabaseUnavailable, match="may not do this"), gateway.begin() as connection:
        connection.execute(text("DELETE FROM tollgate.usage_events_default"))
    gateway.close()


def test_after_rows_have_moved_the_default_partition_refuses_again(booked: Database) -> None:
    """The exception lasts for the one transaction that moves the rows, even if it fails."""
    Ledger(booked).write([event(9, at=datetime(2024, 3, 3, tzinfo=UTC))])
    half_way = text("SELECT tollgate.ensure_month('2024-03-01'), 1 / 0")
    with pytest.raises(DBAPIError, match="division by zero"), booked.begin() as connection:
        connection.execute(half_way)
    partitions.ensure_months(booked, first=date(2024, 3, 1), last=date(2024, 3, 1))
    with (
        pytest.raises(Exception, match="the ledger is never changed"),
        booked.begin() as connection,
    ):
        connection.execute(text("DELETE FROM tollgate.usage_events_default"))
    assert read_state(booked, partitions_until=LATE.date()).default_partition_rows == 1


def test_no_session_can_delete_while_rows_are_moved(booked: Database, database_url: str) -> None:
    """The trigger is off inside the moving transaction; no other session may use the table until
    it is on again.
    """
    Ledger(booked).write([event(9, at=datetime(2024, 3, 3, tzinfo=UTC))])
    with booked.begin() as moving, psycopg.connect(database_url) as other:
        moving.execute(text("SELECT tollgate.ensure_month('2024-03-01')"))
        other.execute("SET lock_timeout = '50ms'")
        with pytest.raises(psycopg.errors.LockNotAvailable):
            other.execute("DELETE FROM tollgate.usage_events_default")


def test_the_default_partition_is_counted_by_the_gateway_too(
    database: Database, database_url: str
) -> None:
    """The gateway raises the alarm, not the owner."""
    gateway = Database(database_url, role="tollgate_gateway")

    def waiting() -> int:
        return read_state(gateway, partitions_until=LATE.date()).default_partition_rows

    assert waiting() == 0
    Ledger(gateway).write([event(1, at=LATE), event(2, at=datetime.now(UTC))])
    assert waiting() == 1
    partitions.ensure_months(gateway, first=LATE.date(), last=LATE.date())
    assert waiting() == 0
    gateway.close()
