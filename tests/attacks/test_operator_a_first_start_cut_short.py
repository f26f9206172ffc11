"""A full disk or a kill at the first start lost a login's password, or was reported as a defect of
Tollgate.

Found by an attacker who simulated an operator of a failing system, on 2026-11-23.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from gateway.domain.logins import LoginPurpose
from gateway.errors import DatabaseUnavailable
from gateway.main import build_toolbox
from gateway.settings import Settings
from gateway.storage.postgres import logins
from gateway.storage.postgres.database import Database
from gateway.storage.postgres.embedded import EmbeddedPostgres
from tests.cli.conftest import Cli
from tests.gateway_process import REPOSITORY

REJECTS_ALL = "local all all reject\n"


@pytest.fixture
def home() -> Iterator[Path]:
    """Yield a home that Postgres's user may pass through."""
    path = Path(tempfile.mkdtemp(prefix="tollgate-home-", dir="/tmp"))
    path.chmod(0o711)
    yield path
    shutil.rmtree(path)


def test_no_login_is_made_before_its_password_is_kept(
    database: Database, database_url: str, home: Path
) -> None:
    """Postgres never shows the password again. The next start continued as the owner, and `up`
    did not report it.
    """
    code = (
        "import resource, signal, sys; from pathlib import Path\n"
        "from gateway.storage.postgres import logins; from gateway.storage.postgres.database "
        "import Database\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN); "
        "resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))\n"
        "logins.ensure_logins(Database(sys.argv[1]), sys.argv[1], Path(sys.argv[2]), given={})"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, database_url, str(home)],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert "File too large" in done.stderr
    made = logins.ensure_logins(database, database_url, home, given={})
    assert (len(made.ready), made.notes, made.sql) == (len(LoginPurpose), (), ())


def test_a_server_that_takes_no_login_is_no_fault_of_tollgate(home: Path) -> None:
    """A full disk at the first start ended with "please report it"."""
    with EmbeddedPostgres(home):
        rules = home / "pg" / "data" / "pg_hba.conf"
        before = rules.read_text()
        rules.write_text(REJECTS_ALL)
    with (
        pytest.raises(DatabaseUnavailable, match=r"cannot make its login.*server.log"),
        EmbeddedPostgres(home),
    ):
        pass
    rules.write_text(before)
    os.kill(int((home / "pg" / "data" / "postmaster.pid").read_text().split()[0]), signal.SIGHUP)
    server = EmbeddedPostgres(home)
    with psycopg.connect(server.start()) as connection:
        assert connection.execute("SELECT 1").fetchone() == (1,)
    server.stop()


def test_a_home_that_cannot_be_made_is_no_fault_of_tollgate(home: Path) -> None:
    """An ordinary user's directory may belong to root, or be a file."""
    (home / "file").touch()
    cli = Cli(build_toolbox(Settings(home=home / "file" / "home")))
    done = cli("up")
    assert done.code == 2
    assert "is a file" in done.out + done.err
    assert "please report" not in done.out + done.err
