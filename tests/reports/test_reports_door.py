"""The one entry to the reports: its restrictions, and its message when it is shut."""

from __future__ import annotations

import pytest
from sqlalchemy.exc import DBAPIError

from gateway.errors import BadUsage, DatabaseUnavailable
from gateway.reports.question import ask
from gateway.reports.reports import open_reports
from gateway.reports.scope import WHOLE_ORGANISATION
from gateway.reports.sources.connection import Reader


@pytest.mark.parametrize(
    "statement",
    [
        "DELETE FROM tollgate.usage_events",
        "SELECT * FROM tollgate.api_keys",
        "CREATE TABLE finance.mine (x int)",
    ],
)
def test_reports_can_only_read_finance(database_url: str, statement: str) -> None:
    """The dashboard faces many people: for any statement, the role has no more than finance's
    views.
    """
    reader = Reader(database_url)
    try:
        with (
            pytest.raises((DatabaseUnavailable, DBAPIError)),
            reader.snapshot(WHOLE_ORGANISATION) as snapshot,
        ):
            snapshot.rows(statement)
    finally:
        reader.close()


def test_an_unreachable_database_gives_the_next_step() -> None:
    """A user cannot fix a traceback."""
    with (
        open_reports("postgresql://nobody@127.0.0.1:9/none", scope=WHOLE_ORGANISATION) as shut,
        pytest.raises(DatabaseUnavailable, match="fix"),
    ):
        shut.run("spend", ask())


def test_a_database_without_the_schema_says_which_command_makes_it(empty_database_url: str) -> None:
    """The first thing that goes wrong on a new machine."""
    with (
        open_reports(empty_database_url, scope=WHOLE_ORGANISATION) as opened,
        pytest.raises(DatabaseUnavailable, match="tollgate db upgrade"),
    ):
        opened.run("spend", ask())


def test_an_invalid_address_is_refused() -> None:
    """A wrong setting is named at once, not at the first question."""
    with pytest.raises(BadUsage):
        open_reports("sqlite:///x", scope=WHOLE_ORGANISATION)
