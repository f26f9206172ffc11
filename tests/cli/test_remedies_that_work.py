"""Attacks on 2026-11-29: the remedy for a lost right or login changed nothing, and printed success.

For each break, `doctor` names a remedy. The test follows it to the letter, and the gateway's own
login works again.
"""

from __future__ import annotations

import json
import re
from contextlib import closing

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict

from gateway.domain.logins import LoginPurpose, login_name
from gateway.errors import DatabaseUnavailable
from gateway.storage.postgres import entry
from gateway.storage.postgres.database import Database
from tests.cli.conftest import Cli

NEW_PASSWORDS, UPGRADE = "tollgate db upgrade --new-passwords", "tollgate db upgrade"
BREAKS = {
    "lost INSERT": "REVOKE INSERT ON tollgate.usage_events FROM tollgate_gateway",
    "lost USAGE": "REVOKE USAGE ON SCHEMA tollgate FROM tollgate_gateway",
    "lost EXECUTE": "REVOKE EXECUTE ON FUNCTION tollgate.settle_holds FROM tollgate_gateway",
    "lost TEMPORARY": "REVOKE TEMPORARY ON DATABASE {database} FROM PUBLIC, tollgate_gateway",
    "lost SELECT of the commands": "REVOKE SELECT ON tollgate.policies FROM tollgate_admin",
    "lost USAGE of the commands": "REVOKE USAGE ON SCHEMA tollgate FROM tollgate_admin",
    "lost CONNECT": "REVOKE CONNECT ON DATABASE {database} FROM PUBLIC, {login}",
    "lost membership": "REVOKE tollgate_gateway FROM {login}",
    "NOLOGIN": "ALTER ROLE {login} NOLOGIN",
    "over": "ALTER ROLE {login} VALID UNTIL '2020-01-01'",
    "no room": "ALTER ROLE {login} CONNECTION LIMIT 0",
    "another password": "ALTER ROLE {login} PASSWORD 'another'",
    "dropped": "REVOKE CONNECT ON DATABASE {database} FROM {login}; DROP ROLE {login}",
}


@pytest.mark.parametrize("broken", BREAKS)
def test_the_remedy_that_doctor_names_works(cli: Cli, database_url: str, broken: str) -> None:
    assert _failures(cli) == []
    assert _works(cli)
    _run(database_url, BREAKS[broken])
    failures = _failures(cli)
    assert failures, "doctor calls it healthy"
    said = " ".join(failures)
    if NEW_PASSWORDS in said:
        cli.ok("db", "upgrade", "--new-passwords")
    elif UPGRADE in said:
        cli.ok("db", "upgrade")
    else:
        (remedy,) = re.findall(r"As an administrator: (ALTER ROLE [^;]+);", said)
        _run(database_url, remedy)
    assert _failures(cli) == []
    assert _works(cli)


@pytest.mark.parametrize("broken", ["NOLOGIN", "over", "another password", "lost CONNECT"])
def test_the_message_of_a_refused_login_has_its_remedy(
    cli: Cli, database_url: str, broken: str
) -> None:
    """The gateway's log and `/readyz` had "Start it, or fix TOLLGATE_DATABASE_URL"."""
    with cli.toolbox.open_address(LoginPurpose.GATEWAY) as address:
        _run(database_url, BREAKS[broken])
        with (
            closing(Database(address, role="tollgate_gateway")) as gateway,
            pytest.raises(DatabaseUnavailable) as refused,
            gateway.begin(),
        ):
            pass
    assert "does not let" in str(refused.value)
    wanted = {
        "NOLOGIN": "ALTER ROLE .* LOGIN;",
        "over": "VALID UNTIL 'infinity';",
        "another password": NEW_PASSWORDS,
        "lost CONNECT": "Run: tollgate db upgrade. ",
    }
    assert re.search(wanted[broken], str(refused.value))


@pytest.mark.parametrize("broken", ["NOLOGIN", "over"])
def test_upgrade_names_what_keeps_a_login_out(cli: Cli, database_url: str, broken: str) -> None:
    """Its words were "see pg_hba.conf"."""
    _run(database_url, BREAKS[broken])
    said = cli("db", "upgrade").err
    (remedy,) = re.findall(r"As an administrator: (ALTER ROLE [^;]+);", said)
    _run(database_url, remedy)
    assert "ALTER ROLE" not in cli("db", "upgrade").err
    assert _works(cli)


def test_check_fails_for_a_lost_right(cli: Cli, database_url: str) -> None:
    """`tollgate db check || tollgate db upgrade` is how scripts use it."""
    _run(database_url, BREAKS["lost INSERT"])
    ran = cli("db", "check")
    assert ran.code == 1
    assert "tollgate_gateway lacks INSERT on table tollgate.usage_events" in ran.err
    cli.ok("db", "upgrade")
    cli.ok("db", "check")


def test_a_login_of_another_tollgate_database_may_not_enter(
    cli: Cli, database_url: str, postgres_url: str
) -> None:
    """The roles belong to the server: such a login read and wrote the ledger of each database."""
    name = conninfo_to_dict(database_url)["dbname"]
    other = f"{name}_second"
    login = login_name(other, LoginPurpose.REPORTS)
    with psycopg.connect(postgres_url, autocommit=True) as server:
        try:
            server.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(other)))
            server.execute(
                sql.SQL("CREATE ROLE {} LOGIN PASSWORD 'x' IN ROLE tollgate_reader").format(
                    sql.Identifier(login)
                )
            )
            with closing(Database(database_url)) as database:
                _run(database_url, "GRANT CONNECT ON DATABASE {database} TO PUBLIC")
                with database.begin() as connection:
                    found = entry.read_members(connection)
                assert login in found.foreign
                assert login_name(str(name), LoginPurpose.REPORTS) in found.own
                if found.others:  # another test's login is there now: a finding, no revocation
                    said = cli("doctor").out
                    assert "rights of logins" in said
                else:
                    cli.ok("db", "upgrade")
                    with database.begin() as connection:
                        assert entry.read_members(connection).foreign == ()
            assert _works(cli)
        finally:
            server.execute(sql.SQL("DROP DATABASE {}").format(sql.Identifier(other)))
            server.execute(sql.SQL("DROP ROLE {}").format(sql.Identifier(login)))


def _failures(cli: Cli) -> list[str]:
    """Return the words of `doctor` about the database, rights and logins, if it is not well."""
    rows = json.loads(cli("doctor", "--format", "json").out)
    return [
        f"{row['finding']} {row['what to do']}"
        for row in rows
        if row["check"] in ("database", "rights of roles", "logins")
        and row["status"] in ("fail", "unknown")
    ]


def _works(cli: Cli) -> bool:
    """Return True if the gateway's login can serve in the gateway's role."""
    with (
        cli.toolbox.open_address(LoginPurpose.GATEWAY) as address,
        closing(Database(address, role="tollgate_gateway")) as gateway,
        gateway.connect() as session,
    ):
        session.execute("CREATE TEMPORARY TABLE t (n integer)")
        session.execute("SELECT FROM tollgate.policies")
        row = session.execute(
            "SELECT has_table_privilege('tollgate.usage_events', 'INSERT'), "
            "has_function_privilege('tollgate.settle_holds(uuid, jsonb)', 'EXECUTE'), "
            "session_user <> 'tollgate'"
        ).fetchone()
    return row == (True, True, True)


def _run(url: str, statement: str) -> None:
    database = str(conninfo_to_dict(url)["dbname"])
    with psycopg.connect(url, autocommit=True) as owner:
        owner.execute(
            sql.SQL(statement).format(
                database=sql.Identifier(database),
                login=sql.Identifier(login_name(database, LoginPurpose.GATEWAY)),
            )
        )
