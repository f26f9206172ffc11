"""Pytest fixtures on a real Postgres: one embedded server per session, one cloned database per
test.

Named in `pytest_plugins` of the root `conftest.py`. `TOLLGATE_TEST_DATABASE_URL` names another
server, whose login must be allowed CREATEDB and CREATEROLE.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import psycopg
import pytest
from psycopg import sql

from gateway.storage.postgres import migrations
from gateway.storage.postgres.database import Database
from gateway.storage.postgres.embedded import EmbeddedPostgres
from tests.waiting import eventually

_numbers = count(1)
ROOM_BYTES = 4 * 2**30  # a server's log alone may grow to 1 GiB between two checkpoints


@pytest.fixture(scope="session")
def postgres_url() -> Iterator[str]:
    """Start a server with only its login's own objects."""
    given = os.environ.get("TOLLGATE_TEST_DATABASE_URL")
    if given:
        yield given
        return
    with home_of_server() as home, EmbeddedPostgres(home) as server:
        url = server.start()
        _verify_passwords_cheaply(url)
        yield url


@pytest.fixture(scope="session")
def empty_template(postgres_url: str) -> Iterator[str]:
    """The name of a database without the schema."""
    name = f"tollgate_empty_{os.getpid()}"
    with _Database(postgres_url, name, template="template0"):
        yield name


@pytest.fixture(scope="session")
def migrated_template(postgres_url: str) -> Iterator[str]:
    """The name of a database with the schema, migrated once."""
    name = f"tollgate_template_{os.getpid()}"
    with _Database(postgres_url, name, template="template0") as url:
        database = Database(url)
        migrations.upgrade(database)
        database.close()  # a template may have no connections
        yield name


@pytest.fixture
def empty_database_url(postgres_url: str, empty_template: str) -> Iterator[str]:
    """A database without the schema, for this test alone."""
    with _Database(
        postgres_url, f"tollgate_test_{os.getpid()}_{next(_numbers)}", template=empty_template
    ) as url:
        yield url


@pytest.fixture
def database_url(postgres_url: str, migrated_template: str) -> Iterator[str]:
    """A migrated database for this test alone."""
    with _Database(
        postgres_url, f"tollgate_test_{os.getpid()}_{next(_numbers)}", template=migrated_template
    ) as url:
        yield url


@pytest.fixture
def database(database_url: str) -> Iterator[Database]:
    """An open `Database` as the owner of the schema."""
    database = Database(database_url)
    yield database
    database.close()


@contextmanager
def separate_server() -> Iterator[str]:
    """A migrated server of its own: its processes may be stopped and its disk filled without harm
    to other tests.
    """
    with home_of_server() as home, EmbeddedPostgres(home) as server:
        url = server.start()
        migrated = Database(url)
        migrations.upgrade(migrated)
        migrated.close()
        yield url


def _verify_passwords_cheaply(url: str) -> None:
    """Let each connection of this login, and of the logins that it makes, hash its password once.

    SCRAM's 4,096 rounds protect weak passwords. They take a client milliseconds of CPU, and tests
    open some ten thousands of connections.
    """
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("ALTER ROLE CURRENT_USER SET scram_iterations = 1")
    with psycopg.connect(url, autocommit=True) as connection:
        password = urlsplit(url).password
        connection.execute(sql.SQL("ALTER ROLE CURRENT_USER PASSWORD {}").format(password))


@contextmanager
def home_of_server() -> Iterator[Path]:
    """Return the folder of a server's files: in memory if there is enough, because a database per
    test takes 0.06 s there and 0.3 on a disk.

    Passable: as root, pytest's own directories are closed to the server's user.
    """
    memory = Path("/dev/shm")
    has_room = os.access(memory, os.W_OK) and shutil.disk_usage(memory).free >= ROOM_BYTES
    home = Path(tempfile.mkdtemp(prefix="tollgate-test-", dir=memory if has_room else "/tmp"))
    home.chmod(0o711)
    try:
        yield home
    finally:
        shutil.rmtree(home)


def drop_database(server_url: str, name: str) -> None:
    """Drop a test's database, whoever is still connected.

    FORCE is refused while an autovacuum worker, which is the superuser's, looks at the database: it
    goes by itself.
    """

    def is_dropped() -> bool:
        try:
            connection.execute(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')
        except psycopg.errors.InsufficientPrivilege:
            return False
        return True

    with psycopg.connect(server_url, autocommit=True) as connection:
        eventually(is_dropped, f"the end of database {name}")


class _Database:
    """A database that exists within a `with` block; its URL is the value."""

    def __init__(self, server_url: str, name: str, *, template: str) -> None:
        self._server_url = server_url
        self._name = name
        self._template = template

    def __enter__(self) -> str:
        with psycopg.connect(self._server_url, autocommit=True) as connection:
            connection.execute(
                # To copy the files takes a quarter less time than to log each page.
                f'CREATE DATABASE "{self._name}" TEMPLATE "{self._template}" ENCODING \'UTF8\' '
                "STRATEGY file_copy"
            )
        return urlunsplit(urlsplit(self._server_url)._replace(path=f"/{self._name}"))

    def __exit__(self, *_: object) -> None:
        drop_database(self._server_url, self._name)
