"""Audit 9: a Postgres set to `synchronous_commit = off` lost confirmed events, and a revoked key
worked again, because no session asked for more.
"""

from __future__ import annotations

import ast
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from gateway.reports.scope import WHOLE_ORGANISATION
from gateway.reports.sources.connection import Reader
from gateway.storage.ledger.ledger import Ledger
from gateway.storage.policy.keys import KeyStore
from gateway.storage.postgres import migrations
from gateway.storage.postgres.change_notifications import ChangeFeed
from gateway.storage.postgres.database import Database
from gateway.storage.postgres.embedded import EmbeddedPostgres
from tests.gateway_process import REPOSITORY
from tests.postgres import home_of_server
from tests.storage.factories import event, key
from tests.waiting import eventually

EVENTS = 50
# Every place of the product that opens a connection, and why it may.
OPENED_IN = {
    ("gateway/storage/postgres/database.py", "_opened"): "the session function sets all settings",
    ("gateway/storage/postgres/database.py", "__init__"): "the pool, which opens by that function",
    ("gateway/storage/postgres/logins.py", "_refusal"): "runs no statement",
    ("gateway/storage/postgres/embedded.py", "_ensure_login"): "runs no statement",
    ("gateway/storage/postgres/embedded.py", "_superuser"): "asks for durable commits itself",
}


@pytest.fixture
def careless_url(database_url: str) -> str:
    """Return a database, and a login in it, that are set not to wait for the disk."""
    name = conninfo_to_dict(database_url)["dbname"]
    with psycopg.connect(database_url, autocommit=True) as owner:
        owner.execute(f'ALTER DATABASE "{name}" SET synchronous_commit = off'.encode())
        owner.execute(
            f'ALTER ROLE CURRENT_USER IN DATABASE "{name}" SET synchronous_commit = off'.encode()
        )
    return f"{database_url}&options=-c%20synchronous_commit%3Doff"


OPENED: dict[str, Callable[[str], Database]] = {
    "owner": Database,
    "gateway": lambda url: Database(url, role="tollgate_gateway"),
    "admin": lambda url: Database(url, role_if_member="tollgate_admin", operator="ada"),
    "finance": lambda url: Database(url, role_if_member="tollgate_finance", person="ada"),
    "with a limit": lambda url: Database(url, statement_limit_s=5),
}


@pytest.mark.parametrize("login", OPENED)
def test_every_session_asks_for_durable_commits(careless_url: str, login: str) -> None:
    """The journal lets go of an event when Postgres confirms it, whoever set up the server."""
    with closing(OPENED[login](careless_url)) as database, database.connect() as session:
        assert session.execute("SHOW synchronous_commit").fetchone() == ("on",)
        assert session.execute("SHOW timezone").fetchone() == ("UTC",)


def test_readers_and_listeners_ask_too(careless_url: str) -> None:
    """An export's watermark is written by a reader, and no kind of connection is an exception."""
    with closing(Reader(careless_url)) as reader, reader.snapshot(WHOLE_ORGANISATION) as snapshot:
        assert snapshot.row("SHOW synchronous_commit") == {"synchronous_commit": "on"}
    with closing(Database(careless_url)) as database, closing(ChangeFeed(database)) as feed:
        assert feed.wait(5)


def test_what_was_confirmed_survives_a_crash() -> None:
    """The audit lost 300 of 300 events; a revoked key worked again."""
    with home_of_server() as home:
        with EmbeddedPostgres(home) as server:
            database = Database(server.start())
            migrations.upgrade(database)
            _make_careless(server, database)
            KeyStore(database).create(key(), created_by="ada")
            Ledger(database).write([event(n) for n in range(EVENTS)])
            assert KeyStore(database).revoke("k123456789", revoked_by="ada")
            _kill(server.data)
            database.close()
        with EmbeddedPostgres(home) as server, closing(Database(server.start())) as database:
            with database.connect() as session:
                (events,) = session.execute("SELECT count(*) FROM tollgate.usage_events")
            assert events == (EVENTS,)
            assert KeyStore(database).live() == []


def test_each_connection_passes_through_the_session_function() -> None:
    """A second place that connects would be the next one without the settings."""
    found = {
        (str(path.relative_to(REPOSITORY)), name)
        for package in ("gateway", "dashboard", "engine", "migrations")
        for path in sorted((REPOSITORY / package).rglob("*.py"))
        for name in _openers(ast.parse(path.read_text()))
    }
    assert found == set(OPENED_IN)


def _openers(tree: ast.Module) -> Iterator[str]:
    """Yield the innermost function of each call that opens a connection to Postgres."""
    for function in ast.walk(tree):
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            for node in ast.walk(function):
                if isinstance(node, ast.Call) and _opens(node.func):
                    yield function.name


def _opens(called: ast.expr) -> bool:
    """Return True for `psycopg.connect`, `Session.connect` and the like, and for engines."""
    name = ast.unparse(called)
    owner, _, method = name.rpartition(".")
    return method == "create_engine" or (
        method == "connect"
        and owner.rpartition(".")[2] in ("psycopg", "Session", "Connection", "AsyncConnection")
    )


def _make_careless(server: EmbeddedPostgres, database: Database) -> None:
    """Let commits wait for the writer of the log, and that for ten seconds: the crash comes
    before.
    """
    host = str(conninfo_to_dict(server.start())["host"])
    with psycopg.connect(host=host, user="postgres", dbname="postgres", autocommit=True) as admin:
        admin.execute("ALTER SYSTEM SET wal_writer_delay = '10s'")
        admin.execute("ALTER DATABASE tollgate SET synchronous_commit = off")
        admin.execute("SELECT pg_reload_conf()")
    database.close()  # later sessions have the database's setting


def _kill(data: Path) -> None:
    """End the server as a power cut does, but for the operating system."""
    pid = int((data / "postmaster.pid").read_text().splitlines()[0])
    os.kill(pid, signal.SIGKILL)
    eventually(lambda: not Path(f"/proc/{pid}").exists(), "the end of the server")
