"""Sign-in through an OpenID provider, in the environment that `tollgate dashboard` leaves to the
app.

The app gets an allow-list of variables (security F9). Sign-in needs two of them: HOME, which has
the secrets, and the provider's address in those.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from joserfc import jwt
from joserfc.jwk import OctKey

from gateway.cli.dashboard import (
    BOUND_VARIABLE,
    FINANCE_VARIABLE,
    HOSTS_VARIABLE,
    SIGN_IN_VARIABLE,
)
from tests import plain_http
from tests.bare_environment import BARE
from tests.deploy.dockerfile import REPOSITORY
from tests.deploy.openid_provider import COOKIE_SECRET, sign_in_server, write_secrets
from tests.gateway_process import free_port
from tests.waiting import eventually

ALLOWED = {"PATH", "HOME", "LANG", "TZ", "TOLLGATE_REPORTS_URL"}
OWN = {SIGN_IN_VARIABLE, BOUND_VARIABLE, HOSTS_VARIABLE, FINANCE_VARIABLE}


@pytest.fixture
def provider() -> Iterator[str]:
    """The address of a running provider."""
    with sign_in_server() as server:
        yield server.address


def test_people_sign_in_when_the_app_has_only_the_allowed_variables(
    provider: str, database_url: str, tmp_path: Path
) -> None:
    """From the button's address through the provider and back, until the app knows who it is."""
    port = free_port()
    write_secrets(tmp_path, dashboard_port=port, provider=provider)
    variables = {
        **BARE,
        "HOME": str(tmp_path),
        "TOLLGATE_HOME": str(tmp_path / "tollgate"),
        "TOLLGATE_DATABASE_URL": database_url,
        "TOLLGATE_DASHBOARD_HOST": "0.0.0.0",
        "TOLLGATE_DASHBOARD_PORT": str(port),
        "OPENAI_API_KEY": "sk-not-for-the-dashboard",
    }
    process = subprocess.Popen(
        [sys.executable, "-m", "gateway.main", "dashboard"],
        env=variables,
        cwd=REPOSITORY,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        with httpx2.Client(
            verify=plain_http.NO_CERTIFICATES,
            base_url=f"http://127.0.0.1:{port}",
            timeout=30,
            trust_env=False,
        ) as browser:
            eventually(lambda: _is_healthy(browser), "the dashboard", within_s=300)
            button = {
                "provider": jwt.encode(
                    {"alg": "HS256"}, _button(), OctKey.import_key(COOKIE_SECRET)
                )
            }
            signed_in = browser.get("/auth/login", params=button, follow_redirects=True)
        passed = _variables_of_the_app(process.pid)
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)
    places = [str(answer.url).partition("?")[0] for answer in signed_in.history]
    assert f"{provider}/authorize" in places
    assert f"http://127.0.0.1:{port}/oauth2callback" in places
    assert any(name.startswith("_streamlit_user") for name in browser.cookies)
    assert {
        name for name in passed if not name.startswith(("STREAMLIT_", "SSL_CERT_"))
    } <= ALLOWED | OWN
    assert "OPENAI_API_KEY" not in passed


def _button() -> dict[str, Any]:
    """Return the address of the button: Streamlit signs it with the secret of its cookies."""
    return {"provider": "default", "exp": int(time.time()) + 60}


def _is_healthy(browser: httpx2.Client) -> bool:
    try:
        return browser.get("/_stcore/health").status_code == 200
    except httpx2.HTTPError:
        return False


def _variables_of_the_app(command_pid: int) -> set[str]:
    (child,) = Path(f"/proc/{command_pid}/task/{command_pid}/children").read_text().split()
    content = Path(f"/proc/{child}/environ").read_bytes()
    return {pair.partition(b"=")[0].decode() for pair in content.split(b"\0") if pair}
