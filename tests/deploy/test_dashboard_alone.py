"""`tollgate dashboard` on a Postgres that it only knows by URL."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import httpx2

from tests import plain_http
from tests.bare_environment import BARE
from tests.deploy.dockerfile import REPOSITORY
from tests.gateway_process import free_port
from tests.waiting import eventually

DASHBOARD = [sys.executable, "-m", "gateway.main", "dashboard"]


def test_the_dashboard_starts_and_ends_by_itself(database_url: str, tmp_path: Path) -> None:
    """In compose it is a container of its own, beside a gateway it never talks to."""
    port = free_port()
    log = tmp_path / "dashboard.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            DASHBOARD,
            env=_variables(tmp_path, database_url, TOLLGATE_DASHBOARD_PORT=str(port)),
            cwd=REPOSITORY,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
        )
    try:
        eventually(lambda: _is_healthy(port), "the dashboard", within_s=300)
    finally:
        process.send_signal(signal.SIGTERM)
        code = process.wait(60)
    assert code == 0, log.read_text()
    assert not _is_healthy(port)


def test_it_refuses_to_show_itself_to_a_network_without_sign_in(
    database_url: str, tmp_path: Path
) -> None:
    """It shows every team's spend: whoever opens it to others says so, or signs people in."""
    done = subprocess.run(
        DASHBOARD,
        env=_variables(tmp_path, database_url, TOLLGATE_DASHBOARD_HOST="0.0.0.0"),
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 2
    assert "--insecure-local" in done.stderr


def test_it_listens_beyond_loopback_when_configured(database_url: str, tmp_path: Path) -> None:
    """As the compose file does: inside a container loopback is unreachable."""
    port = free_port()
    process = subprocess.Popen(
        [*DASHBOARD, "--insecure-local"],
        cwd=REPOSITORY,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=_variables(
            tmp_path,
            database_url,
            TOLLGATE_DASHBOARD_HOST="0.0.0.0",
            TOLLGATE_DASHBOARD_PORT=str(port),
        ),
    )
    try:
        eventually(lambda: _is_healthy(port), "the dashboard", within_s=300)
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)


def _variables(home: Path, database_url: str, **own: str) -> dict[str, str]:
    """Return a separate home, so that no sign-in secrets are found."""
    return {
        **BARE,
        "HOME": str(home),
        "TOLLGATE_HOME": str(home / "tollgate"),
        "TOLLGATE_DATABASE_URL": database_url,
        **own,
    }


def _is_healthy(port: int) -> bool:
    try:
        return (
            plain_http.get(
                f"http://127.0.0.1:{port}/_stcore/health", timeout=5, trust_env=False
            ).status_code
            == 200
        )
    except httpx2.HTTPError:
        return False
