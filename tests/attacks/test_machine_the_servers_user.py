"""As root without a user `postgres` the embedded database ran as `nobody`: every process of that
user, and of the machine's own Postgres, was superuser of the ledger.
"""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from gateway.errors import BadUsage
from gateway.storage.postgres import system_user
from gateway.storage.postgres.embedded import EmbeddedPostgres
from gateway.storage.postgres.server_account import ServerAccount

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root runs the server as another")
# As a process of some user: connect as the superuser of the server at this socket.
SUPERUSER = """
import os, sys
import psycopg
os.setgroups([]); os.setgid(int(sys.argv[2])); os.setuid(int(sys.argv[2]))
try:
    with psycopg.connect(host=sys.argv[1], user="postgres", dbname="postgres") as connection:
        print(connection.execute("SELECT usesuper FROM pg_user WHERE usename = current_user").fetchone())
except psycopg.OperationalError:
    print("refused")
"""  # noqa: E501


@pytest.fixture
def home() -> Iterator[Path]:
    """Yield a home that every user may pass through."""
    place = Path(tempfile.mkdtemp(prefix="tollgate-user-", dir="/tmp"))
    place.chmod(0o711)
    yield place / "home"
    shutil.rmtree(place)


def as_superuser(server: EmbeddedPostgres, uid: int) -> str:
    """Return the answer to a process of a user that connects as the superuser."""
    with psycopg.connect(server.start()) as connection:
        host = connection.info.host
    done = subprocess.run(
        [sys.executable, "-c", SUPERUSER, host, str(uid)],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return done.stdout.strip()


def owners(data: Path) -> set[int]:
    """Return the owners of a database's files."""
    return {path.lstat().st_uid for path in (data, *data.rglob("*"))}


@needs_root
def test_no_shared_user_is_superuser_of_the_ledger(home: Path) -> None:
    """`nobody` is what squashed network users, daemons and containers run as."""
    account = ServerAccount.current()
    assert account.name == system_user.NAME
    shared = [user.pw_uid for user in pwd.getpwall() if user.pw_name in ("nobody", "postgres")]
    with EmbeddedPostgres(home) as server:
        assert owners(server.data) == {account.uid}
        assert [as_superuser(server, uid) for uid in shared] == ["refused"] * len(shared)
        assert as_superuser(server, account.uid) == "(True,)"


@needs_root
@pytest.mark.parametrize("is_cut", [False, True])
def test_data_of_a_shared_user_is_taken_over(home: Path, is_cut: bool) -> None:
    """Data of an earlier release stays; a take-over that was killed goes on; no link is followed,
    because the former owner could have planted one.
    """
    nobody = pwd.getpwnam("nobody").pw_uid
    with EmbeddedPostgres(home) as server, psycopg.connect(server.start()) as connection:
        connection.execute("CREATE TABLE kept AS SELECT 7 AS figure")
    outside = home.with_name("outside")
    outside.write_text("root's")
    for path in (server.data, *server.data.rglob("*")):
        os.chown(path, nobody, nobody)
    (server.data / "planted").symlink_to(outside)
    (server.data / "pg_ident.conf").unlink()
    (server.data / "pg_ident.conf").symlink_to(outside)
    if is_cut:
        os.chown(server.data, 0, 0)
    with EmbeddedPostgres(home) as server:
        assert owners(server.data) == {ServerAccount.current().uid}
        assert as_superuser(server, nobody) == "refused"
        with psycopg.connect(server.start()) as connection:
            assert connection.execute("SELECT figure FROM kept").fetchone() == (7,)
    assert (outside.stat().st_uid, outside.read_text()) == (0, "root's")


def test_a_machine_that_can_make_no_user_says_so() -> None:
    """A refusal with the remedy is better than an account that others run as."""
    with pytest.raises(BadUsage, match=r"useradd --system --user-group tollgate-none"):
        system_user.found_or_made("tollgate-none", shared="tollgate-none-too", path="")


def test_a_machine_with_a_postgres_alone_goes_on() -> None:
    """An image without useradd and with a user for Postgres was served, and still is."""
    present = pwd.getpwuid(os.geteuid()).pw_name
    found = system_user.found_or_made("tollgate-none", shared=present, path="")
    assert found.pw_name == present
