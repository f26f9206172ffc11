"""Creates the ledger's missing monthly partitions, and lists those that are missing.

Rows without a partition go to the default one, so that none is refused.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date

from sqlalchemy import Connection, text

from gateway.domain.calendar_months import last_partitioned_month, next_month
from gateway.storage.postgres.database import Database

MOST_MONTHS = 120
_DETACHED = r"""
SELECT relname FROM pg_class
WHERE relnamespace = 'tollgate'::regnamespace AND relkind = 'r' AND NOT relispartition
  AND relname ~ '^usage_events_[0-9]{4}_[0-9]{2}$'
ORDER BY relname
"""


def ensure_months(database: Database, *, first: date, last: date) -> list[str]:
    """Create the missing partitions of the months from `first` to `last`; return their names.

    Each has its own short transaction: creating one locks the default partition. The month's rows
    in the default partition move over.
    """
    created = []
    for month in _months(first, last):
        with database.begin() as connection:
            name = _ensure(connection, month)
        if name is not None:
            created.append(name)
    return created


def ensure_coming_months(connection: Connection) -> None:
    """Create the partitions of this month (of Postgres' clock, UTC) and of those ahead."""
    today = _today(connection)
    for month in _months(today, last_partitioned_month(today)):
        _ensure(connection, month)


def detached(database: Database) -> list[str]:
    """Return the tables of months that are in the ledger's schema, and no partition of it: their
    events are in no report.
    """
    with database.begin() as connection:
        return list(connection.execute(text(_DETACHED)).scalars())


def attach_months(database: Database) -> list[str]:
    """Attach each month's table that somebody detached, with the events of its month that came
    since then; return their names. Only the tables' owner may.
    """
    attached = detached(database)
    for name in attached:
        year, month = map(int, name.removeprefix("usage_events_").split("_"))
        with database.begin() as connection:
            connection.execute(
                text("SELECT tollgate.attach_month(:month)"), {"month": date(year, month, 1)}
            )
    return attached


def missing(database: Database, *, until: date) -> list[str]:
    """Return the missing partitions from this month (of Postgres' clock, UTC) to that of
    `until`.
    """
    with database.begin() as connection:
        today = _today(connection)
        rows = connection.execute(
            text(
                "SELECT child.relname FROM pg_inherits JOIN pg_class child ON child.oid = inhrelid "
                "JOIN pg_class parent ON parent.oid = inhparent JOIN pg_namespace n ON n.oid = "
                "parent.relnamespace WHERE n.nspname = 'tollgate' AND parent.relname = "
                "'usage_events'"
            )
        )
        present = set(rows.scalars())
    return [
        name
        for month in _months(today, until)
        if (name := f"usage_events_{month:%Y_%m}") not in present
    ]


def _today(connection: Connection) -> date:
    """Return the day of Postgres' clock, in UTC."""
    found: date = connection.execute(text("SELECT (now() AT TIME ZONE 'UTC')::date")).scalar_one()
    return found


def _ensure(connection: Connection, month: date) -> str | None:
    """Create the partition of a month; return its name, or None if it was there."""
    name: str | None = connection.execute(
        text("SELECT tollgate.ensure_month(:month)"), {"month": month}
    ).scalar_one()
    return name


def _months(first: date, last: date) -> Iterator[date]:
    """Yield the first day of each month from `first` to `last`."""
    count = (last.year - first.year) * 12 + last.month - first.month + 1
    assert count <= MOST_MONTHS, "a range of more than ten years is a mistake, not a plan"
    month = first.replace(day=1)
    while month <= last:
        yield month
        month = next_month(month)
