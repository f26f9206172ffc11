"""Tests that a database lets in its own logins, and not those of another Tollgate database."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from gateway.domain.database_server import server_checks
from gateway.domain.logins import LoginPurpose
from gateway.storage.administration import ensure_logins
from gateway.storage.postgres import logins, migrations
from gateway.storage.postgres.database import Database
from gateway.storage.postgres.server_facts import read_facts
from tests.postgres import separate_server


def test_only_the_own_logins_of_a_database_may_enter(tmp_path: Path) -> None:
    """Attack of 2026-11-29: a reader of a staging database read the ledger of production."""
    with separate_server() as url:
        second_url = url.replace("/tollgate?", "/second?")
        _run(url, "CREATE DATABASE second")
        _run(url, "CREATE ROLE ada LOGIN PASSWORD 'x' IN ROLE tollgate_admin")
        _run(url, "CREATE ROLE measures LOGIN PASSWORD 'x'")
        with closing(Database(second_url)) as second:
            migrations.upgrade(second)
            _made(second, tmp_path)
            with closing(Database(url)) as first:
                _made(first, tmp_path)
                # A login that is no member would lose its way in: a finding, and no revocation.
                (found,) = [
                    check
                    for check in server_checks(read_facts(first))
                    if check.name == "rights of logins"
                ]
                assert "second_reports_login" in found.finding
                _run(url, "DROP ROLE measures")
                _made(first, tmp_path)
                assert "rights of logins" not in {
                    check.name for check in server_checks(read_facts(first))
                }
            _made(second, tmp_path)
        for purpose in LoginPurpose:
            for own, other in ((url, second_url), (second_url, url)):
                login = conninfo_to_dict(logins.address_as(own, purpose, tmp_path))
                assert login["user"].endswith(f"_{purpose}_login")
                psycopg.connect(make_conninfo(**login)).close()
                there = conninfo_to_dict(other)["dbname"]
                with pytest.raises(psycopg.OperationalError, match="permission denied for data"):
                    psycopg.connect(make_conninfo(**login | {"dbname": there}))
        ada = conninfo_to_dict(url) | {"user": "ada", "password": "x"}
        psycopg.connect(make_conninfo(**ada)).close()


def _made(database: Database, home: Path) -> None:
    """Make the logins as `tollgate db upgrade` does."""
    made = ensure_logins(database, home, given={})
    assert (len(made.ready), made.sql, made.notes) == (len(LoginPurpose), (), ())


def _run(url: str, statement: str) -> None:
    with psycopg.connect(url, autocommit=True) as owner:
        owner.execute(statement.encode())
