"""Usability D10: `up --engine-url` with a dead address made everything first and blamed the list of
models.

That the option is without effect under a policy of one's own is tested in
`tests/e2e/test_own_engine.py`.
"""

from __future__ import annotations

import http.server
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.gateway_process import REPOSITORY, free_port
from tests.running_server import running


class Locked(http.server.BaseHTTPRequestHandler):
    """Plays an engine that wants a key."""

    def do_GET(self) -> None:
        self.send_response(401)
        self.end_headers()

    def log_message(self, format: str, *arguments: object) -> None:
        """Keep the test's output clean."""


@pytest.fixture
def locked_url() -> Iterator[str]:
    with running(http.server.ThreadingHTTPServer(("127.0.0.1", 0), Locked)) as server:
        yield f"http://127.0.0.1:{server.server_address[1]}"


def up(home: Path, engine_url: str) -> subprocess.CompletedProcess[str]:
    ports = {f"TOLLGATE_{name}PORT": str(free_port()) for name in ("", "METRICS_", "DASHBOARD_")}
    return subprocess.run(
        [sys.executable, "-m", "gateway.main", "up", "--engine-url", engine_url],
        env={**os.environ, **ports, "TOLLGATE_HOME": str(home)},
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_a_dead_address_is_named_before_anything_is_made(tmp_path: Path) -> None:
    """A typing error must not cost a home, a database and half a minute."""
    url = f"http://127.0.0.1:{free_port()}"
    ended = up(tmp_path / "home", url + "/v1/")
    assert (ended.returncode, ended.stdout) == (2, "")
    assert f"No engine answers at {url}: " in ended.stderr
    assert not (tmp_path / "home").exists()


def test_an_address_of_another_kind_is_refused(tmp_path: Path) -> None:
    """`ftp://` ended like a dead server."""
    ended = up(tmp_path / "home", "ftp://x")
    assert ended.returncode == 2
    assert "--engine-url ftp://x must begin with http:// or https://" in ended.stderr
    assert not (tmp_path / "home").exists()


def test_an_engine_that_wants_a_key_leads_to_its_option(tmp_path: Path, locked_url: str) -> None:
    """It does answer; only `--engine-key` is missing."""
    ended = up(tmp_path / "home", locked_url)
    assert ended.returncode == 2
    assert (
        f"The engine at {locked_url} wants another key (401). Name it with --engine-key."
        in ended.stderr
    )
