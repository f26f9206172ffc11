"""A real PgBouncer before a test's Postgres, in the pool mode that a test asks for."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from psycopg.conninfo import conninfo_to_dict

from gateway.storage.postgres.server_account import ServerAccount
from tests.gateway_process import free_port
from tests.waiting import eventually

BINARY = shutil.which("pgbouncer", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
SETTINGS = """
[databases]
{dbname} = host={host} port={port} user={user} password={password}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {listen_port}
unix_socket_dir =
auth_type = plain
auth_file = {folder}/users
default_pool_size = 8
{more}
"""


@contextmanager
def pgbouncer(database_url: str, *settings: str) -> Iterator[str]:
    """Yield the address of a database behind PgBouncer; `settings` are lines of its file."""
    assert BINARY is not None, "the test is skipped without it"
    server = conninfo_to_dict(database_url)
    account, listen_port = ServerAccount.current(), free_port()
    folder = Path(tempfile.mkdtemp(prefix="tollgate-pgbouncer-", dir="/tmp"))
    try:
        file = folder / "pgbouncer.ini"
        (folder / "users").write_text(f'"{server["user"]}" "{server["password"]}"\n')
        file.write_text(
            SETTINGS.format(
                **server, folder=folder, listen_port=listen_port, more="\n".join(settings)
            )
        )
        for path in (folder, *folder.iterdir()):
            if account.is_other:
                os.chown(path, account.uid, account.gid)
        process = subprocess.Popen(
            [BINARY, "--quiet", str(file)],
            stderr=(folder / "log").open("wb"),
            **account.process_options(),
        )
        try:
            eventually(lambda: _answers(listen_port), "PgBouncer")
            user = f"{server['user']}:{server['password']}"
            yield f"postgresql://{user}@127.0.0.1:{listen_port}/{server['dbname']}"
        finally:
            process.terminate()
            process.wait(20)
    finally:
        shutil.rmtree(folder)


def _answers(port: int) -> bool:
    """Return True if a program listens at a port."""
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True
