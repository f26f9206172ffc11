"""The conditions under which `serve` refuses to start, with readable messages instead of stack
traces.
"""

from __future__ import annotations

import os
import secrets
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from gateway.domain.policy.api_keys import RANDOM_BYTES, KeyRecord, Pepper, key_id_of, mint
from gateway.storage.policy import pepper
from gateway.storage.policy.keys import KeyStore
from gateway.storage.postgres.database import Database
from tests.gateway_process import REPOSITORY, free_port


def serve(database_url: str, home: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run `tollgate serve` and return its result; it is expected to end by itself."""
    settings = {
        "TOLLGATE_HOME": str(home),
        "TOLLGATE_DATABASE_URL": database_url,
        "TOLLGATE_PORT": str(free_port()),
        "TOLLGATE_METRICS_PORT": str(free_port()),
    }
    return subprocess.run(
        [sys.executable, "-m", "gateway.main", "serve", *arguments],
        env={**os.environ, **settings},
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """Return a home with its own pepper."""
    pepper.create(tmp_path / "pepper")
    return tmp_path


def test_without_a_pepper_it_does_not_start(database_url: str, tmp_path: Path) -> None:
    """Without a pepper every key would look wrong; the message names the command that makes one."""
    ended = serve(database_url, tmp_path)
    assert ended.returncode == 2
    assert "tollgate db upgrade" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_with_the_pepper_of_another_database_it_does_not_start(
    database: Database, database_url: str, home: Path
) -> None:
    """With that pepper, every key would be refused as unknown."""
    theirs, key = Pepper(secrets.token_bytes(32)), mint(secrets.token_bytes(RANDOM_BYTES))
    key_id = key_id_of(key)
    assert key_id is not None
    pepper.register(database, (theirs,))
    record = KeyRecord(
        key_id=key_id,
        team="payments",
        project=None,
        digest=theirs.digest(key),
        pepper_id=theirs.pepper_id,
    )
    KeyStore(database).create(record, created_by="test")
    ended = serve(database_url, home)
    assert ended.returncode == 2
    assert "belongs to another database" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_host_and_port_on_the_command_line_win_over_the_settings(
    database_url: str, home: Path
) -> None:
    """The settings of these tests name a free port, so the port on the command line must replace
    it.
    """
    with socket.create_server(("127.0.0.2", 0)) as held:
        port = held.getsockname()[1]
        ended = serve(database_url, home, "--host", "127.0.0.2", "--port", str(port))
    assert ended.returncode == 2
    assert f"Cannot listen on 127.0.0.2:{port}: Address already in use" in ended.stderr
    assert "Choose another port with --port or TOLLGATE_PORT" in ended.stderr


@pytest.mark.parametrize("host", ["203.0.113.9", "no-such-host.invalid"])
def test_an_address_of_another_machine_is_not_answered_with_another_port(
    database_url: str, home: Path, host: str
) -> None:
    """No port would have helped."""
    ended = serve(database_url, home, "--host", host)
    assert ended.returncode == 2
    assert ended.stderr.rstrip().endswith("Choose another address with --host or TOLLGATE_HOST.")
