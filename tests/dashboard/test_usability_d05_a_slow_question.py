"""Usability D5: before the hours were summed up, a page blamed an absent database for a question
that was too slow.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from gateway.errors import DatabaseTooSlow
from gateway.reports.reports import open_reports
from gateway.reports.scope import WHOLE_ORGANISATION
from gateway.storage.ledger import rollups
from gateway.storage.postgres.database import Database
from tests.cli.conftest import Cli, cli, cli_at
from tests.dashboard.conftest import Open
from tests.dashboard.test_pages import texts
from tests.storage.factories import event

__all__ = ["cli", "cli_at"]  # fixtures of the command line
Write = Callable[..., None]


def test_a_statement_beyond_its_limit_is_called_slow(database: Database) -> None:
    """An answer of "cannot be asked" sends an operator to a database that is well."""

    def ask() -> None:
        with database.begin() as connection:
            connection.exec_driver_sql("SET LOCAL statement_timeout = '10ms'")
            connection.exec_driver_sql("SELECT pg_sleep(10)")

    with pytest.raises(DatabaseTooSlow, match=r"took longer than its limit.*tollgate serve"):
        ask()


def test_a_page_says_that_hours_wait_to_be_summed_up(
    look: Open, write: Write, database: Database
) -> None:
    """The remedy is a gateway, and the page names it."""
    write(event(1))
    with database.begin() as connection:
        connection.exec_driver_sql(
            "CREATE FUNCTION finance.slow() RETURNS boolean LANGUAGE plpgsql AS $$ BEGIN RAISE "
            "EXCEPTION 'canceling statement due to statement timeout' USING ERRCODE = '57014'; END "
            "$$;ALTER VIEW finance.periods RENAME TO periods_before;CREATE VIEW finance.periods AS "
            "SELECT * FROM finance.periods_before WHERE finance.slow();GRANT SELECT ON "
            "finance.periods TO tollgate_reader;"
        )
    app = look()
    assert not app.exception
    assert "this question took too long" in texts(app)
    assert "1 hours are not summed up yet" in texts(app)
    assert "tollgate serve" in texts(app)


def test_demo_data_is_summed_up(cli: Cli, database_url: str) -> None:
    """The first look at the dashboard is at demo data, and no gateway may have run yet."""
    cli.ok("demo-data")
    with open_reports(database_url, scope=WHOLE_ORGANISATION) as finance:
        assert finance.hours_not_summed() == 0
    database = Database(database_url)
    assert rollups.check(database) == ()
    database.close()
