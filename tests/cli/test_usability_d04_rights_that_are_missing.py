"""Usability D4: without rights the error named `tollgate_admin`, and a command that could not
help.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import psycopg
import pytest
from psycopg import sql

from tests.cli.conftest import Cli


@pytest.fixture
def finance_login(database_url: str) -> tuple[str, str]:
    """The name and the address of a login that is in `tollgate_reader` alone."""
    parts = urlsplit(database_url)
    name = f"{parts.path.strip('/')}_fin"
    with psycopg.connect(database_url, autocommit=True) as connection:
        connection.execute(
            sql.SQL("CREATE ROLE {} LOGIN PASSWORD 'x'").format(sql.Identifier(name))
        )
        connection.execute(sql.SQL("GRANT tollgate_reader TO {}").format(sql.Identifier(name)))
    return name, urlunsplit(parts._replace(netloc=f"{name}:x@{parts.netloc.rpartition('@')[2]}"))


@pytest.mark.parametrize("command", [("key", "list"), ("price", "list"), ("policy", "show")])
def test_missing_rights_name_the_login_and_the_grant(
    cli_at: Callable[[str], Cli],
    applied: Cli,
    finance_login: tuple[str, str],
    command: tuple[str, ...],
) -> None:
    """The one who reads it can hand the line to an administrator, and it is enough."""
    name, url = finance_login
    ran = cli_at(url)(*command)
    assert ran.code == 3, ran
    assert f'GRANT tollgate_admin TO "{name}";' in ran.err
    assert f"Login {name} is not in tollgate_admin" in ran.err
    assert "TOLLGATE_ADMIN_DATABASE_URL" in ran.err
    assert "tollgate db upgrade" not in ran.err


def test_the_grant_that_is_named_is_enough(
    cli_at: Callable[[str], Cli],
    applied: Cli,
    finance_login: tuple[str, str],
    database_url: str,
    policy_file: Path,
) -> None:
    """Advice that does not help costs more than none."""
    name, url = finance_login
    with psycopg.connect(database_url, autocommit=True) as connection:
        connection.execute(sql.SQL("GRANT tollgate_admin TO {}").format(sql.Identifier(name)))
    assert cli_at(url)("key", "list").code == 0


@pytest.mark.parametrize(
    "command", [("report", "months"), ("policy", "show"), ("key", "create", "demo")]
)
def test_a_database_without_tables_has_one_reason(
    cli_at: Callable[[str], Cli], empty_database_url: str, command: tuple[str, ...]
) -> None:
    """Reports spoke of rights and a GRANT, which sent the reader of a new home the wrong way."""
    parts = urlsplit(empty_database_url)
    name = f"{parts.path.strip('/')}_new"
    with psycopg.connect(empty_database_url, autocommit=True) as connection:
        connection.execute(
            sql.SQL("CREATE ROLE {} LOGIN PASSWORD 'x'").format(sql.Identifier(name))
        )
    ran = cli_at(urlunsplit(parts._replace(netloc=f"{name}:x@{parts.netloc.rpartition('@')[2]}")))(
        *command
    )
    assert ran.code == 3, ran
    assert "schema is missing or older than this Tollgate. Run: tollgate db upgrade" in ran.err
    assert "GRANT" not in ran.err
