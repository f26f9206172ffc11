"""Records the demo organisations that were written, and refuses to write one as a ledger beside
real events.
"""

from __future__ import annotations

from datetime import date

from sqlalchemy import Connection, text

from gateway.errors import OperatorError
from gateway.storage.postgres.database import Database
from gateway.storage.postgres.locks import TableLock

_FOUND = """
SELECT last_day FROM tollgate.demo_organisations
WHERE organisation = :organisation AND is_ledger = :is_ledger
"""
_OTHER_LEDGER = "SELECT organisation FROM tollgate.demo_organisations WHERE is_ledger"
# The roll-up answers at once if there are real events; only a ledger without any is searched.
_HAS_REAL_EVENTS = """
SELECT EXISTS (SELECT FROM tollgate.spend_rollup WHERE NOT is_demo)
    OR EXISTS (SELECT FROM tollgate.usage_events WHERE NOT is_demo)
"""
_ADD = """
INSERT INTO tollgate.demo_organisations (organisation, is_ledger, last_day)
VALUES (:organisation, :is_ledger, :last_day)
"""


class DemoOrganisationTable:
    """The register of the demo organisations in a database."""

    def __init__(self, database: Database) -> None:
        """Take the database; no connection is opened yet."""
        self._database = database

    def begin(self, organisation: str, *, is_ledger: bool, last_day: date) -> date:
        """Record that an organisation is about to be written, and return its last day: that of the
        first time, if there was one.

        Raises `OperatorError` if it would be a ledger beside other real events.
        """
        row = {"organisation": organisation, "is_ledger": is_ledger, "last_day": last_day}
        with self._database.begin(is_long=True) as connection:
            connection.execute(text(TableLock.DEMO_ORGANISATIONS.taken))
            found: date | None = connection.execute(text(_FOUND), row).scalar_one_or_none()
            if found is not None:
                return found
            if is_ledger:
                _require_no_real_events(connection)
            connection.execute(text(_ADD), row)
        return last_day


def _require_no_real_events(connection: Connection) -> None:
    """Raise `OperatorError` if the ledger has real events, with the next step."""
    other = connection.execute(text(_OTHER_LEDGER)).scalar_one_or_none()
    if other is not None:
        raise OperatorError(
            f"This database is the demo ledger of another organisation ({other}). Nothing was "
            "changed. Use an empty database for this one: set TOLLGATE_HOME to a new folder, or "
            "TOLLGATE_DATABASE_URL to a new database."
        )
    if connection.execute(text(_HAS_REAL_EVENTS)).scalar_one():
        raise OperatorError(
            "This database has real events, and a demo ledger would mix with them. Nothing was "
            "changed. Use an empty database: set TOLLGATE_HOME to a new folder, or "
            "TOLLGATE_DATABASE_URL to a new database. Or leave out --as-ledger: then only "
            "reports with --demo show the generated events."
        )
