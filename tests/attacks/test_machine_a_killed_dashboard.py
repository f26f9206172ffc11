"""After a `kill -9` of `tollgate dashboard` its web application served on, with the old sign-in and
finance's address of the database, and the next start found its port taken.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import httpx2
import pytest

from tests.bare_environment import BARE
from tests.gateway_process import free_port
from tests.waiting import eventually

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks for processes in /proc")


def answers(port: int) -> bool:
    """Return True if something answers on the port."""
    try:
        return httpx2.get(f"http://127.0.0.1:{port}/", timeout=5).status_code == 200
    except httpx2.HTTPError:
        return False


def test_the_application_ends_with_its_command(module_database_url: str) -> None:
    port = free_port()
    with tempfile.TemporaryDirectory(prefix="tollgate-home-") as home:
        variables = {
            "TOLLGATE_HOME": home,
            "TOLLGATE_DATABASE_URL": module_database_url,
            "TOLLGATE_DASHBOARD_PORT": str(port),
        }
        command = subprocess.Popen(
            [sys.executable, "-m", "gateway.main", "dashboard"],
            env={**BARE, "HOME": home, **variables},
            cwd=ROOT,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            eventually(lambda: answers(port), "the dashboard", within_s=120)
        finally:
            os.kill(command.pid, signal.SIGKILL)
            command.wait()
        eventually(lambda: not answers(port), "its end")
