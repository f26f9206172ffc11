"""The embedded Postgres: shared, durable, and never an obstacle to the next start."""

from __future__ import annotations

import os
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import psycopg
import pytest
from sqlalchemy import text

from gateway.errors import BadUsage, DatabaseUnavailable
from gateway.storage.postgres import embedded
from gateway.storage.postgres.database import Database
from gateway.storage.postgres.embedded import EmbeddedPostgres
from gateway.storage.postgres.server_account import ServerAccount

AS_ROOT = os.geteuid() == 0


@pytest.fixture
def home() -> Iterator[Path]:
    """Yield a home that other users may pass through, as ordinary homes often allow."""
    path = Path(tempfile.mkdtemp(prefix="tollgate-home-", dir="/tmp"))
    path.chmod(0o711)
    yield path
    if (path / "pg/data/postmaster.pid").exists():
        with EmbeddedPostgres(path):
            pass  # the last user stops a server that a failed test left running
    shutil.rmtree(path)


def _pid(home: Path) -> int:
    return int((home / "pg/data/postmaster.pid").read_text().split()[0])


def _is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def _children(pid: int) -> list[int]:
    return [
        int(number)
        for task in Path(f"/proc/{pid}/task").iterdir()
        for number in (task / "children").read_text().split()
    ]


def _until(is_so: Callable[[], bool]) -> None:
    end = time.monotonic() + 20
    while not is_so():
        assert time.monotonic() < end, "did not happen within 20 s"
        time.sleep(0.01)


def _other_user(home: Path) -> subprocess.Popen[str]:
    """Start another process that uses the server until its standard input ends."""
    program = (
        "import sys; from pathlib import Path; from gateway.storage.postgres.embedded import "
        "EmbeddedPostgres\n"
        "with EmbeddedPostgres(Path(sys.argv[1])) as server:\n"
        "    print(server.start(), flush=True); sys.stdin.read()"
    )
    return subprocess.Popen(
        [sys.executable, "-c", program, str(home)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def _leave(other: subprocess.Popen[str]) -> None:
    other.communicate(timeout=40)
    assert other.returncode == 0


def test_the_login_is_the_products_own_and_no_superuser(home: Path) -> None:
    """With a superuser's URL, an attacker could read and write the machine's files through COPY
    PROGRAM.
    """
    with EmbeddedPostgres(home) as server, psycopg.connect(server.start()) as connection:
        row = connection.execute(
            "SELECT rolname, rolsuper, rolcreatedb, rolcreaterole, current_database() FROM "
            "pg_roles WHERE rolname = current_user"
        ).fetchone()
        durable = connection.execute(
            "SELECT current_setting('fsync'), current_setting('synchronous_commit'), "
            "current_setting('listen_addresses')"
        ).fetchone()
    assert row == ("tollgate", False, True, True, "tollgate")
    assert durable == ("on", "on", "")


def test_a_login_without_the_password_is_refused(home: Path) -> None:
    """Otherwise another local user who reaches the socket would get in."""
    with EmbeddedPostgres(home) as server:
        url = server.start()
        for wrong in (
            url.replace(":" + url.split(":")[2].split("@")[0], ""),
            url.replace("@/", "x@/"),
        ):
            with pytest.raises(psycopg.OperationalError):
                psycopg.connect(wrong)
    assert stat.S_IMODE((home / "pg/password").stat().st_mode) == 0o600
    assert stat.S_IMODE((home / "pg/run").stat().st_mode) == 0o700
    assert stat.S_IMODE((home / "pg/data").stat().st_mode) == 0o700
    assert stat.S_IMODE((home / "pg/server.log").stat().st_mode) == 0o600


def test_libpqs_environment_leads_nowhere_else(
    home: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """`PGHOSTADDR` or `PGSERVICE` of another project led commands, and the password, to its server;
    `PGOPTIONS` changed their sessions.
    """
    (tmp_path / "services").write_text("[other]\nhost=127.0.0.1\nport=1\n")
    hostile = dict.fromkeys(embedded.libpq_variables(), "hostile") | {
        "PGSERVICEFILE": str(tmp_path / "services"),
        "PGSERVICE": "other",
        "PGHOSTADDR": "127.0.0.1",
        "PGOPTIONS": "-c geqo=off",
    }
    assert {"PGPASSFILE", "PGSSLMODE", "PGTARGETSESSIONATTRS", "PGCONNECT_TIMEOUT"} <= set(hostile)
    with EmbeddedPostgres(home) as server:
        for changed in [hostile, *({name: value} for name, value in hostile.items())]:
            for name, value in changed.items():
                monkeypatch.setenv(name, value)
            with psycopg.connect(server.start(), autocommit=True) as connection:
                assert connection.info.host == str(home / "pg/run")
                assert connection.execute("SHOW geqo").fetchone() == ("on",)
            assert not set(os.environ) & set(hostile), changed


def test_an_address_of_ones_own_keeps_libpqs_environment(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An operator gives certificates and options of a Postgres by libpq's variables."""
    monkeypatch.setenv("PGOPTIONS", "-c geqo=off")
    with closing(Database(database_url)) as database, database.begin() as connection:
        assert connection.execute(text("SHOW geqo")).scalar_one() == "off"
    monkeypatch.setenv("PGSSLROOTCERT", "system")
    monkeypatch.setenv("PGSSLMODE", "require")
    with pytest.raises(psycopg.OperationalError, match="sslmode"):
        psycopg.connect("postgresql://x@127.0.0.1:1/x")


def test_a_second_process_joins_and_the_last_one_stops_the_server(home: Path) -> None:
    """`tollgate up` and a command beside it share one server, in any order of their ends."""
    server = EmbeddedPostgres(home)
    url = server.start()
    pid = _pid(home)
    other = _other_user(home)
    assert other.stdout is not None
    assert other.stdout.readline().strip() == url
    server.stop()
    assert _is_running(pid)
    psycopg.connect(url).close()
    _leave(other)
    assert not _is_running(pid)
    assert not (home / "pg/data/postmaster.pid").exists()


def test_many_first_starts_at_once_make_one_server(home: Path) -> None:
    """A supervisor may start everything at once on an empty machine."""
    others = [_other_user(home) for _ in range(4)]
    urls = {other.stdout.readline() for other in others if other.stdout is not None}
    pid = _pid(home)
    assert len(urls) == 1
    assert urls != {""}
    for other in others:
        _leave(other)
    assert not _is_running(pid)


def test_data_survives_a_kill_of_the_server(home: Path) -> None:
    """Committed data survives kill -9, and the next start needs no manual step."""
    with EmbeddedPostgres(home) as server:
        url = server.start()
        with psycopg.connect(url) as connection:
            connection.execute("CREATE TABLE kept (n int)")
            connection.execute("INSERT INTO kept VALUES (7)")
        killed = _pid(home)
        os.kill(killed, signal.SIGKILL)
        _until(lambda: not _is_running(killed))
        assert server.start() == url
        assert _pid(home) != killed
        with psycopg.connect(url) as connection:
            assert connection.execute("SELECT n FROM kept").fetchall() == [(7,)]


def test_a_server_with_killed_users_is_joined_and_then_stopped(home: Path) -> None:
    """kill -9 of `tollgate up` leaves the server running; the next command must not start a
    second one.
    """
    other = _other_user(home)
    assert other.stdout is not None
    url = other.stdout.readline().strip()
    pid = _pid(home)
    other.kill()
    other.communicate()
    assert _is_running(pid)
    with EmbeddedPostgres(home) as server:
        assert server.start() == url
        assert _pid(home) == pid
    assert not _is_running(pid)


def test_a_server_that_answers_nothing_is_named_with_its_remedies(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each command gave up without a remedy."""
    for limit in ("CONNECT_LIMIT_S", "STOP_LIMIT_S", "QUIT_LIMIT_S"):
        monkeypatch.setattr(embedded, limit, 2)
    with EmbeddedPostgres(home):
        pid = _pid(home)
        stopped = [pid, *_children(pid)]
        for one in stopped:
            os.kill(one, signal.SIGSTOP)
        try:
            with pytest.raises(DatabaseUnavailable) as caught:
                EmbeddedPostgres(home).start()
        finally:
            for one in stopped:
                with suppress(ProcessLookupError):
                    os.kill(one, signal.SIGCONT)
        assert f"kill -CONT {pid}" in caught.value.message
        assert str(home / "pg/server.log") in caught.value.message


def as_server() -> dict[str, Any]:
    """Return the options by which a test runs a program as the server's own user."""
    account = ServerAccount.current()
    return (
        {"user": account.uid, "group": account.gid, "extra_groups": []} if account.is_other else {}
    )


def test_a_pid_file_that_names_a_living_stranger_does_not_block_the_start(home: Path) -> None:
    """After a reboot any process may have the old number, and Postgres alone would refuse to
    start.
    """
    with EmbeddedPostgres(home):
        pass
    options = as_server()
    with subprocess.Popen(["sleep", "60"], **options) as stranger:
        lines = [
            str(stranger.pid),
            str(home / "pg/data"),
            "1795867200",
            "5432",
            str(home / "pg/run"),
            "",
            "",
            "ready",
        ]
        (home / "pg/data/postmaster.pid").write_text("\n".join(lines) + "\n")
        with EmbeddedPostgres(home) as server:
            psycopg.connect(server.start()).close()
        assert stranger.poll() is None
        stranger.kill()


def test_a_server_started_by_hand_is_left_alone(home: Path) -> None:
    """Two servers on one data directory would destroy the data."""
    with EmbeddedPostgres(home):
        command = Path(f"/proc/{_pid(home)}/cmdline").read_text().split("\0")[:-1]
    options = as_server()
    with subprocess.Popen(command, stderr=subprocess.DEVNULL, **options) as by_hand:
        _until(lambda: (home / "pg/data/postmaster.pid").exists() and "ready" in _text(home))
        with pytest.raises(
            DatabaseUnavailable, match=rf"Process {by_hand.pid} serves .* not started by tollgate"
        ):
            EmbeddedPostgres(home).start()
        by_hand.send_signal(signal.SIGINT)
        by_hand.wait(20)


def _text(home: Path) -> str:
    return (home / "pg/data/postmaster.pid").read_text()


def test_data_of_another_major_version_is_refused_and_kept(home: Path) -> None:
    """An upgrade of the wheel must not lose the data, nor crash with a page of log."""
    with EmbeddedPostgres(home):
        pass
    version = home / "pg/data/PG_VERSION"
    ours = version.read_text()
    version.write_text("14\n")
    with pytest.raises(
        BadUsage, match="made by PostgreSQL 14, the installed wheel is PostgreSQL 18"
    ):
        EmbeddedPostgres(home).start()
    version.write_text(ours)


def test_an_incomplete_data_directory_is_created_again(home: Path) -> None:
    """A first start that was killed must not leave a data directory that looks complete."""
    (home / "pg/data.partial/base").mkdir(parents=True)
    (home / "pg").chmod(0o711)
    with EmbeddedPostgres(home) as server:
        psycopg.connect(server.start()).close()


def test_a_home_too_deep_for_a_socket_works(home: Path) -> None:
    """The path of a Unix socket has at most 107 bytes."""
    deep = home / ("d" * 60) / ("é" * 30)
    with EmbeddedPostgres(deep) as server:
        url = server.start()
        psycopg.connect(url).close()
    assert "host=%2Ftmp%2Ftollgate-" in url
    shutil.rmtree(Path("/tmp") / url.split("%2Ftmp%2F")[1].split("&")[0])


@pytest.mark.skipif(not AS_ROOT, reason="needs root, which alone runs the server as another user")
def test_below_roots_closed_home_the_data_is_in_a_reachable_folder(
    home: Path,
) -> None:
    """The server's user cannot enter /root, and Tollgate must not loosen its permissions."""
    closed = home / "root"
    closed.mkdir(mode=0o700)
    system_dir = home / "var"
    with EmbeddedPostgres(closed / ".tollgate", system_dir=system_dir) as server:
        psycopg.connect(server.start()).close()
    link = closed / ".tollgate/pg/data"
    assert link.is_symlink()
    assert link.resolve().parent == system_dir
    assert stat.S_IMODE(closed.stat().st_mode) == 0o700
    shutil.rmtree(link.resolve())
    with pytest.raises(BadUsage, match=r"which is gone\. Restore it from a backup"):
        EmbeddedPostgres(closed / ".tollgate", system_dir=system_dir).start()


@pytest.mark.skipif(not AS_ROOT, reason="needs root, which alone runs the server as another user")
def test_a_home_closed_after_its_database_was_made_gives_the_next_step(home: Path) -> None:
    """The error used to be four old lines of a log, and every command of root failed with it."""
    EmbeddedPostgres(home).__enter__().stop()
    home.chmod(0o700)
    with pytest.raises(DatabaseUnavailable) as refused:
        EmbeddedPostgres(home).start()
    assert f"may not enter {home}" in refused.value.message
    assert f"Run: chmod 711 {home} " in refused.value.message
    home.chmod(0o711)
    EmbeddedPostgres(home).__enter__().stop()


def test_ctrl_c_does_not_reach_the_server(home: Path) -> None:
    """A terminal sends the signal to the whole process group, but the server must still store
    the gateway's settlements.
    """
    with EmbeddedPostgres(home):
        assert os.getsid(_pid(home)) == _pid(home)


def test_the_server_does_not_know_our_secrets(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server does not need the provider keys in the environment."""
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    with EmbeddedPostgres(home):
        assert b"sk-secret" not in Path(f"/proc/{_pid(home)}/environ").read_bytes()


def test_stopping_twice_is_stopping_once(home: Path) -> None:
    """Cleanup also runs after a start that failed halfway."""
    server = EmbeddedPostgres(home)
    server.start()
    server.stop()
    server.stop()
    EmbeddedPostgres(home).stop()


def test_no_defunct_server_stays_behind(home: Path) -> None:
    """In a container without an init no other process reaps it."""
    server = EmbeddedPostgres(home)
    server.start()
    pid = _pid(home)
    server.stop()
    _until(lambda: not Path(f"/proc/{pid}").exists())


def test_an_unusable_home_is_reported_in_one_line(home: Path) -> None:
    """An operator needs the path and the remedy, not a traceback."""
    (home / "file").write_text("")
    with pytest.raises(DatabaseUnavailable, match=r"cannot use .*/file.*: .*TOLLGATE_HOME"):
        EmbeddedPostgres(home / "file").start()
