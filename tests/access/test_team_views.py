"""Each view of finance has a view for teams with the same columns, and its role may read no
other.
"""

from __future__ import annotations

import psycopg
import pytest
from sqlalchemy import text

from gateway.storage.postgres.database import Database

SCHEMAS = [("finance", "team"), ("closed", "team_closed")]
COLUMNS = """
SELECT relname, attname, format_type(atttypid, atttypmod) FROM pg_class JOIN pg_attribute ON
  attrelid = pg_class.oid
WHERE relnamespace = CAST(:schema AS regnamespace) AND relkind = 'v' AND attnum > 0
ORDER BY relname, attnum
"""
VIEWS = """
SELECT relname, pg_get_viewdef(pg_class.oid), reloptions FROM pg_class
WHERE relnamespace = CAST(:schema AS regnamespace) AND relkind = 'v'
"""
# The views that show facts of the organisation that name no team.
OPEN = {
    "currency_rates",
    "demo_ledger",
    "deployment_prices",
    "dirty_hours",
    "month_closes",
    "periods",
    "policy_days",
    "prices",
    "watermark",
}


@pytest.mark.parametrize(("schema", "target"), SCHEMAS)
def test_each_view_has_one_for_teams(database: Database, schema: str, target: str) -> None:
    """A report that reads a missing one fails for team leads alone, which no other test sees.

    A migration that adds a view, or columns to one, calls `tollgate.show_to_teams` for it.
    """
    with database.begin() as connection:
        columns, own = (
            [tuple(row) for row in connection.execute(text(COLUMNS), {"schema": name})]
            for name in (schema, target)
        )
    assert own == columns


@pytest.mark.parametrize("schema", [target for _, target in SCHEMAS])
def test_each_view_keeps_its_rows_to_teams(database: Database, schema: str) -> None:
    """A view without a condition shows everything: the list of those is short, and here."""
    with database.begin() as connection:
        found = connection.execute(text(VIEWS), {"schema": schema}).all()
    for name, definition, options in found:
        assert options == ["security_barrier=true"], name
        condition = definition.rpartition("WHERE")[2]
        is_own = "= ANY (" in condition and "tollgate.teams" in condition
        is_none = condition.strip() == "false;"
        assert is_own or is_none or name in OPEN, name


@pytest.mark.parametrize(
    "statement",
    [
        "SELECT FROM finance.usage_events",
        "SELECT FROM closed.usage_events",
        "SELECT FROM tollgate.usage_events",
        "SELECT FROM tollgate.policies",
        "SELECT finance.idle_costs('2026-01-01', '2027-01-01')",
        "SELECT closed.idle_costs('2026-01-01', '2027-01-01')",
        "SELECT tollgate.show_to_teams('finance.prices', 'true')",
        "DELETE FROM team.usage_events",
    ],
)
def test_the_role_may_read_nothing_else(database_url: str, statement: str) -> None:
    """A query that forgot to name the team's schema fails; it never shows foreign rows."""
    with psycopg.connect(database_url) as connection:
        connection.execute("SET ROLE tollgate_team_reader")
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            connection.execute(statement.encode())


def test_a_login_of_reports_may_act_as_the_role(database_url: str) -> None:
    """The dashboard's login is in the reports' role, and gets no right that this one lacks."""
    with psycopg.connect(database_url) as connection:
        row = connection.execute(
            "SELECT pg_has_role('tollgate_reader', 'tollgate_team_reader', 'MEMBER'), "
            "pg_has_role('tollgate_team_reader', 'tollgate_reader', 'MEMBER')"
        ).fetchone()
    assert row == (True, False)


@pytest.mark.parametrize("schema", [schema for schema, _ in SCHEMAS])
def test_finances_views_know_no_team(database: Database, schema: str) -> None:
    """Finance's plans are those of before only as long as its views are."""
    with database.begin() as connection:
        found = connection.execute(text(VIEWS), {"schema": schema}).all()
    assert found
    for name, definition, options in found:
        assert "current_setting('tollgate.teams" not in definition, name
        assert not options, name


@pytest.mark.parametrize("view", ["usage_events", "spend_daily_detail", "spend_daily_by_tag"])
def test_the_teams_are_read_once_a_query(database: Database, view: str) -> None:
    """A function call for each row would make a team's pages slower than finance's."""
    with database.begin() as connection:
        connection.exec_driver_sql("SET LOCAL ROLE tollgate_team_reader")
        rows = connection.exec_driver_sql(f"EXPLAIN (VERBOSE) SELECT team FROM team.{view}")
        plan = "\n".join(str(row[0]) for row in rows)
    filters = [line for line in plan.splitlines() if "Filter:" in line or "Cond:" in line]
    assert any("team = ANY" in line for line in filters), plan
    assert not any("current_setting" in line for line in filters), plan
    assert plan.count("current_setting") == 1, plan
