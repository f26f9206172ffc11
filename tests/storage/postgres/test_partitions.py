"""Monthly partitions: made before they are needed, and no row is lost if they come late."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, date, datetime

import pytest
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError

from gateway.domain.calendar_months import last_partitioned_month, last_required_month, next_month
from gateway.domain.checks import Status
from gateway.domain.ledger.health import state_checks
from gateway.storage.ledger.ledger import Ledger
from gateway.storage.ledger.month_findings import month_findings
from gateway.storage.ledger.state import read_state
from gateway.storage.postgres import partitions
from gateway.storage.postgres.database import Database
from tests.storage.factories import event

# The migration made this month and three more by the server's clock; these months are far from any
# test run.
LATE = date(2024, 2, 1)


def _places(database: Database) -> list[tuple[str, int]]:
    with database.begin() as connection:
        rows = connection.execute(
            text(
                "SELECT relname, count(*) FROM tollgate.usage_events event JOIN pg_class ON "
                "pg_class.oid = event.tableoid GROUP BY 1 ORDER BY 1"
            )
        )
        return [(str(name), count) for name, count in rows]


def _unpartitioned(database: Database) -> int:
    """Return the open items of February 2024 outside its partition."""
    with database.begin() as connection:
        found = month_findings(
            lambda query, **values: connection.execute(text(query), values).mappings().one(),
            LATE,
            billed=(),
        )
    (one,) = [finding for finding in found if finding.name == "unpartitioned-events"]
    return int(one.figures["found"])


def test_the_next_months_are_there_from_the_start(database: Database) -> None:
    """A month that begins on a Sunday night must not need an operator."""
    with database.begin() as connection:
        today = connection.execute(text("SELECT (now() AT TIME ZONE 'UTC')::date")).scalar_one()
    assert partitions.missing(database, until=last_required_month(today)) == []
    after = next_month(last_partitioned_month(today))
    absent = partitions.missing(database, until=after)
    assert absent[-1] == f"usage_events_{after:%Y_%m}"
    assert partitions.ensure_months(database, first=today, last=after) == absent
    assert partitions.missing(database, until=after) == []


def test_rows_that_waited_in_the_default_partition_move_over(database: Database) -> None:
    """Postgres refuses a partition whose rows are in the default one, so a late job must move
    them itself.
    """
    leap_day, next_month = (
        datetime(2024, 2, 29, 23, 59, 59, tzinfo=UTC),
        datetime(2024, 3, 1, tzinfo=UTC),
    )
    Ledger(database).write([event(1, at=leap_day), event(2, at=next_month)])
    assert partitions.ensure_months(database, first=LATE, last=LATE) == ["usage_events_2024_02"]
    assert _places(database) == [("usage_events_2024_02", 1), ("usage_events_default", 1)]
    assert Ledger(database).write([event(1, at=leap_day), event(3, at=leap_day)]) == 1
    assert _places(database) == [("usage_events_2024_02", 2), ("usage_events_default", 1)]


def test_ensuring_again_changes_nothing(database: Database) -> None:
    """Every replica runs the job daily."""
    months = {"first": date(2023, 11, 30), "last": date(2024, 2, 1)}
    created = partitions.ensure_months(database, **months)
    assert created == [
        f"usage_events_{month}" for month in ("2023_11", "2023_12", "2024_01", "2024_02")
    ]
    assert partitions.ensure_months(database, **months) == []


def test_replicas_that_ensure_at_the_same_time_make_one(
    database: Database, database_url: str
) -> None:
    """All replicas start together, while events are written, in a role that may not create
    tables itself.
    """
    gateway = Database(database_url, role="tollgate_gateway")

    def ensure(n: int) -> list[str]:
        Ledger(gateway).write([event(n, at=datetime(2024, 2, 3, tzinfo=UTC))])
        return partitions.ensure_months(gateway, first=LATE, last=LATE)

    with ThreadPoolExecutor(6) as pool:
        made = [name for names in pool.map(ensure, range(6)) for name in names]
    assert made == ["usage_events_2024_02"]
    assert _places(database) == [("usage_events_2024_02", 6)]
    gateway.close()


def test_a_late_partition_has_every_rule_of_the_ledger(database: Database) -> None:
    """A month without the check or the key would accept duplicates."""
    partitions.ensure_months(database, first=LATE, last=LATE)
    rules = text(
        "SELECT pg_get_constraintdef(oid) FROM pg_constraint WHERE conrelid = CAST(:name AS "
        "regclass) AND contype IN ('p', 'c') ORDER BY 1"
    )
    with database.begin() as connection:
        late, default = (
            connection.execute(rules, {"name": f"tollgate.usage_events_{name}"}).scalars().all()
            for name in ("2024_02", "default")
        )
    assert late == default
    assert len(late) == 6


@pytest.mark.parametrize("month", ["1999-01-01", "2999-01-01"])
def test_the_gateways_role_cannot_fill_the_catalogue(database: Database, month: str) -> None:
    """The function runs with the owner's rights, so a caller's influence on it must be limited."""
    ask = text("SELECT tollgate.ensure_month(:month)")
    with (
        pytest.raises(DBAPIError, match="10 years ago or 2 years ahead"),
        database.begin() as connection,
    ):
        connection.execute(ask, {"month": month})


def test_a_detached_month_is_named_and_attached_again(database: Database) -> None:
    """Its events were in no report, and the remedy did nothing; those that came meanwhile were in
    the default partition.
    """
    days = [datetime(2024, 2, day, 12, tzinfo=UTC) for day in (1, 2)]
    partitions.ensure_months(database, first=LATE, last=LATE)
    Ledger(database).write([event(1, at=days[0])])
    with database.begin() as connection:
        connection.execute(
            text("ALTER TABLE tollgate.usage_events DETACH PARTITION tollgate.usage_events_2024_02")
        )
    Ledger(database).write([event(2, at=days[1])])
    assert _places(database) == [("usage_events_default", 1)]
    state = read_state(database, partitions_until=LATE)
    (check,) = [one for one in state_checks(state) if one.name == "partitions"]
    assert (check.status, "usage_events_2024_02" in check.finding) == (Status.FAIL, True)
    assert _unpartitioned(database) == 2  # the event in the default partition, and the table
    with database.begin() as connection:
        connection.execute(text("DELETE FROM tollgate.dirty_hours"))
    assert partitions.attach_months(database) == ["usage_events_2024_02"]
    assert _places(database) == [("usage_events_2024_02", 2)]
    assert _unpartitioned(database) == 0
    assert partitions.detached(database) == partitions.attach_months(database) == []
    with database.begin() as connection:
        hours = connection.execute(text("SELECT hour FROM tollgate.dirty_hours")).scalars()
        assert sorted(hours) == days
    for statement in (
        "UPDATE tollgate.usage_events SET cost_nusd = 0",
        "DELETE FROM tollgate.usage_events_2024_02",
        "TRUNCATE tollgate.usage_events_2024_02",
    ):
        with pytest.raises(DBAPIError), database.begin() as connection:
            connection.execute(text(statement))
