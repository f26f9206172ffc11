"""No role of the product can put a fact into a closed month, or change a closed version."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest
from psycopg import errors

from gateway.storage.ledger.ledger import Ledger
from gateway.storage.postgres.database import Database
from tests.storage.factories import event
from tests.storage.ledger.months.test_month_states import AUGUST, close, moment

# The owner.
ROLES = (
    *("tollgate_gateway", "tollgate_admin", "tollgate_finance", "tollgate_reader"),
    None,
)
ADD_EVENT = """
INSERT INTO {table} SELECT (jsonb_populate_record(event, jsonb_build_object(
    'request_id', left(request_id::text, 35) || 'f'))).*
FROM tollgate.usage_events AS event
"""
ADD_ADJUSTMENT = """
INSERT INTO tollgate.adjustments (adjustment_id, team, cost_centre, posted_period, occurred_at,
  amount_nusd, kind, reason, author)
VALUES (gen_random_uuid(), 'payments', 'CC-1207', '2026-08-01', '2026-08-05', 1, 'resolution', 'x',
  'x')
"""
ADD_GPU_HOUR = """
INSERT INTO tollgate.gpu_hours (deployment, hour, policy_version, gpu_type, gpu_count,
  usd_per_gpu_hour, basis, watched_ms, up_ms, billed_ms, bill_nusd)
VALUES ('a', '{}', 1, 'H200', 1, 3, 'seen', 1, 1, 1, 5)
"""
STATEMENTS = {
    "an event": ADD_EVENT.format(table="tollgate.usage_events"),
    "an event of a partition": ADD_EVENT.format(table="tollgate.usage_events_default"),
    "an adjustment": ADD_ADJUSTMENT,
    **{
        f"{verb.split()[0].lower()} {table}": verb.format(table)
        for table, column in (
            ("tollgate.usage_events", "team"),
            ("tollgate.adjustments", "reason"),
            ("tollgate.closed_gpu_hours", "deployment"),
            ("tollgate.closed_idle_costs", "deployment"),
            ("tollgate.month_closes", "author"),
        )
        for verb in (f"UPDATE {{}} SET {column} = 'x'", "DELETE FROM {}", "TRUNCATE {}")
    },
}


@pytest.fixture(scope="module")
def month_url(postgres_url: str, migrated_template: str) -> Iterator[str]:
    """A database whose August is closed, with one row in each table of its facts."""
    from tests.postgres import _Database

    with _Database(postgres_url, "tollgate_closed_facts", template=migrated_template) as url:
        database = Database(url)
        with database.begin() as connection:
            connection.exec_driver_sql(ADD_ADJUSTMENT)
            connection.exec_driver_sql(ADD_GPU_HOUR.format("2026-08-05 12:00+00"))
        Ledger(database).write([event(1, at=moment(AUGUST))])
        close(database, AUGUST)
        database.close()
        yield url


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("name", STATEMENTS)
def test_a_closed_month_refuses_every_change(month_url: str, role: str | None, name: str) -> None:
    """A trigger refuses those that have the right to write, the grants all others, and a foreign
    key the owner's TRUNCATE of the versions.
    """
    refusals: tuple[type[psycopg.Error], ...] = (errors.RestrictViolation,)
    if name in ("truncate tollgate.month_closes", "truncate tollgate.adjustments"):
        refusals += (errors.FeatureNotSupported,)
    if role is not None:
        refusals += (errors.InsufficientPrivilege,)
    with psycopg.connect(month_url) as connection:
        if role is not None:
            connection.execute(f'SET ROLE "{role}"')
        with pytest.raises(refusals):
            connection.execute(STATEMENTS[name].encode())


@pytest.mark.parametrize("role", ["tollgate_gateway", "tollgate_reader"])
@pytest.mark.parametrize(
    "statement",
    [
        "SELECT tollgate.begin_close('2026-09-01')",
        "SELECT tollgate.reopen_month('2026-08-01', 'x')",
        "UPDATE tollgate.periods SET state = 'open'",
        "DELETE FROM tollgate.periods",
    ],
)
def test_only_an_administrator_closes_or_reopens(month_url: str, role: str, statement: str) -> None:
    """A gateway that is taken over must not be able to open the books."""
    with psycopg.connect(month_url) as connection:
        connection.execute(f'SET ROLE "{role}"')
        with pytest.raises(errors.InsufficientPrivilege):
            connection.execute(statement.encode())


def test_an_administrator_cannot_leave_a_close_half_done(month_url: str) -> None:
    """Kept GPU hours without a version would stand in the way of the real close."""
    with psycopg.connect(month_url) as connection:
        connection.execute(ADD_GPU_HOUR.format("2026-09-05 12:00+00").encode())
        connection.execute("SET ROLE tollgate_admin")
        connection.execute("SELECT tollgate.begin_close('2026-09-01')")
        with pytest.raises(errors.ForeignKeyViolation):
            connection.commit()


def test_a_fact_that_began_before_the_reopening_is_refused(database_url: str) -> None:
    """It would look like a fact of the version before, whose hash would then differ."""
    database = Database(database_url)
    Ledger(database).write([event(1, at=moment(AUGUST))])
    close(database, AUGUST)
    with psycopg.connect(database_url) as slow:
        slow.execute("SELECT 1")
        with database.begin() as connection:
            connection.exec_driver_sql("SELECT tollgate.reopen_month('2026-08-01', 'x')")
        with pytest.raises(errors.SerializationFailure, match="was reopened after"):
            slow.execute(ADD_ADJUSTMENT.encode())
    with psycopg.connect(database_url) as later:
        later.execute(ADD_ADJUSTMENT.encode())
    database.close()
