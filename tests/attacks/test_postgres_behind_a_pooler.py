"""A pooler in transaction mode ran wrong statements and lent one login's role to another: it is
refused by name.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from sqlalchemy import text

from gateway.errors import ReadOnlyDatabase, UnsuitableDatabase
from gateway.main import build_toolbox
from gateway.settings import Settings
from gateway.storage.policy.keys import KeyStore
from gateway.storage.postgres.change_notifications import ChangeFeed
from gateway.storage.postgres.database import Database
from gateway.storage.postgres.leadership import Leadership
from gateway.storage.postgres.locks import TableLock
from tests.cli.conftest import Cli, Ran
from tests.gateway_process import free_port
from tests.pgbouncer import BINARY, pgbouncer
from tests.policy.documents import EXAMPLE

needs_pgbouncer = pytest.mark.skipif(
    BINARY is None, reason="PgBouncer is not installed (tests/install_tools.sh)"
)
SHARED = {
    "transaction": ("pool_mode = transaction",),
    "in turns": ("pool_mode = transaction", "server_round_robin = 1"),
    "one session": ("pool_mode = transaction", "default_pool_size = 1"),
    "options dropped": ("pool_mode = transaction", "ignore_startup_parameters = options"),
    "statement": ("pool_mode = statement",),
}


@pytest.fixture
def cli_at(tmp_path: Path) -> Callable[[str], Cli]:
    """Return a function that makes a command line for any database."""
    return lambda url: Cli(build_toolbox(Settings(home=tmp_path / "home", database_url=url)))


@needs_pgbouncer
@pytest.mark.parametrize("mode", SHARED)
def test_every_use_of_a_shared_session_is_refused(database_url: str, mode: str) -> None:
    """Silent wrong statements are the worst ending; any first connection must find the pooler."""
    with pgbouncer(database_url, *SHARED[mode]) as url, closing(Database(url)) as database:
        for use in (
            database.require_sessions,
            lambda: KeyStore(database).live(),
            lambda: ChangeFeed(database).wait(1),
            lambda: Leadership(database, TableLock.LEADER_ENGINES).is_mine(),
        ):
            with pytest.raises(UnsuitableDatabase, match=r"direct address.*session mode"):
                use()


@needs_pgbouncer
@pytest.mark.parametrize("command", ["check", "upgrade", "doctor", "apply", "serve", "report"])
def test_commands_name_the_pooler_and_the_remedy(
    database_url: str, cli_at: Callable[[str], Cli], tmp_path: Path, command: str
) -> None:
    """`policy apply` ended in a traceback, and `report spend` stated a wrong time."""
    file = tmp_path / "policy.yaml"
    file.write_text(EXAMPLE)
    arguments = {
        "check": ("db", "check"),
        "upgrade": ("db", "upgrade"),
        "doctor": ("doctor",),
        "apply": ("policy", "apply", str(file), "--yes"),
        "serve": ("serve",),
        "report": ("report", "spend"),
    }[command]
    direct = cli_at(database_url)
    direct.ok("db", "upgrade")
    (tmp_path / "home" / "logins").unlink()  # of the direct address
    with pgbouncer(database_url, "pool_mode = transaction") as url:
        ran = serve(url, tmp_path) if command == "serve" else cli_at(url)(*arguments)
    assert ran.code == (1 if command == "doctor" else 2), ran
    assert "is a pooler in transaction or statement mode" in f"{ran.out}{ran.err}"
    assert "Traceback" not in ran.err


@needs_pgbouncer
def test_a_pooler_in_session_mode_is_served(database_url: str) -> None:
    """Poolers refuse or drop a login's options, so the settings must not travel by them."""
    for more in ((), ("ignore_startup_parameters = options",)):
        with (
            pgbouncer(database_url, "pool_mode = session", *more) as url,
            closing(Database(url, role="tollgate_gateway", statement_limit_s=7)) as database,
        ):
            database.require_sessions()
            database.require_primary()
            with database.connect() as session:
                shown = session.execute(
                    "SELECT current_user, current_setting('statement_timeout'), "
                    "current_setting('timezone'), current_setting('synchronous_commit')"
                ).fetchone()
            assert shown == ("tollgate_gateway", "7s", "UTC", "on")


@needs_pgbouncer
def test_a_pooler_that_leaves_session_mode_is_named(database_url: str) -> None:
    """Attack of 2026-11-29: it was "the schema is missing or older than this Tollgate"."""
    user = conninfo_to_dict(database_url)["user"]
    with (
        pgbouncer(database_url, "pool_mode = session", f"admin_users = {user}") as url,
        closing(Database(url)) as database,
    ):
        with database.begin() as connection:
            connection.execute(text("SELECT FROM tollgate.policies"))
        console = make_conninfo(**conninfo_to_dict(url) | {"dbname": "pgbouncer"})
        with psycopg.connect(console, autocommit=True) as pooler:
            pooler.execute("SET pool_mode = transaction")
        database.close()
        with (
            pytest.raises(UnsuitableDatabase, match="is a pooler in transaction"),
            database.begin() as connection,
        ):
            connection.execute(text("SELECT FROM none_such"))


def test_a_server_that_takes_no_writes_is_named(
    database_url: str, cli_at: Callable[[str], Cli], tmp_path: Path
) -> None:
    """The neighbour: its address answers every question, and no write. A primary is no standby:
    hosts set it read-only while its disk is full.
    """
    cli = cli_at(database_url)
    cli.ok("db", "upgrade")
    name = conninfo_to_dict(database_url)["dbname"]
    with psycopg.connect(database_url, autocommit=True) as owner:
        owner.execute(f'ALTER DATABASE "{name}" SET default_transaction_read_only = on'.encode())
    with closing(Database(database_url)) as database:
        database.require_sessions()
        with pytest.raises(ReadOnlyDatabase, match=r"primary, and read-only"):
            database.require_primary()
    for code, ran in (
        (2, cli("db", "check")),
        (2, serve(database_url, tmp_path)),
        (1, cli("doctor")),
    ):
        assert ran.code == code, ran
        shown = " ".join(f"{ran.out}{ran.err}".split())
        assert "is a primary, and read-only by its setting" in shown
        assert "RESET default_transaction_read_only" in shown


def serve(url: str, folder: Path) -> Ran:
    """Run `tollgate serve` on a database until it ends by itself."""
    ended = subprocess.run(
        [sys.executable, "-m", "gateway.main", "serve", "--port", str(free_port())],
        env=dict(os.environ, TOLLGATE_HOME=str(folder / "home"), TOLLGATE_DATABASE_URL=url),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return Ran(ended.returncode, ended.stdout, ended.stderr)
