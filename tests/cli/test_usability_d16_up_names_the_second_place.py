"""Usability D16: as root the database lies outside of the home, and `up` claimed that everything
is in the home.
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

import pytest

from gateway.storage.postgres.embedded import SYSTEM_DIR, EmbeddedPostgres
from tests.gateway_process import REPOSITORY, FakeUpstreamProcess, free_port


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that others may pass through."""
    path = Path(tempfile.mkdtemp(prefix="tollgate-place-", dir="/tmp"))
    path.chmod(0o711)
    yield path
    shutil.rmtree(path)


@pytest.mark.skipif(
    os.geteuid() != 0, reason="needs root, which alone keeps the database elsewhere"
)
def test_the_first_line_of_up_names_the_place_of_the_database(
    folder: Path, fake_upstream: FakeUpstreamProcess
) -> None:
    """A copied home is no backup then, and a removed home leaves the data."""
    home = folder / "home"
    ports = {f"TOLLGATE_{name}PORT": str(free_port()) for name in ("", "METRICS_", "DASHBOARD_")}
    with subprocess.Popen(
        [
            sys.executable,
            "-m",
            "gateway.main",
            "up",
            "--engine-url",
            fake_upstream.url,
            "--no-demo-data",
        ],
        env={**os.environ, **ports, "TOLLGATE_HOME": str(home)},
        cwd=REPOSITORY,
        stdout=subprocess.PIPE,
        text=True,
    ) as up:
        assert up.stdout is not None
        first = up.stdout.readline()
        up.send_signal(signal.SIGTERM)
        up.communicate(timeout=120)
    assert (
        f"Tollgate keeps everything in {home} (TOLLGATE_HOME), and the database in {SYSTEM_DIR}"
        in first
    )
    data = (home / "pg" / "data").resolve() if (home / "pg" / "data").is_symlink() else None
    if data is not None:
        assert EmbeddedPostgres(home).place() == data
        shutil.rmtree(data)
        shutil.rmtree(data.with_name(data.name.replace("pg-", "run-")), ignore_errors=True)


def test_in_a_home_that_the_server_can_enter_there_is_one_place(folder: Path) -> None:
    """Then the first line is true as it was."""
    server = EmbeddedPostgres(folder / "home")
    assert server.place() == folder / "home" / "pg" / "data"
    with server:
        assert server.place() == folder / "home" / "pg" / "data"
