"""Sign-in through an OpenID provider, in the environment that `tollgate dashboard` leaves to the
app.

The app gets an allow-list of variables (security F9). Sign-in needs two of them: HOME, which has
the secrets, and the provider's address in those.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

import httpx2
import pytest
from joserfc import jwt
from joserfc.jwk import KeySet, OctKey, RSAKey

from gateway.cli.dashboard import (
    BOUND_VARIABLE,
    FINANCE_VARIABLE,
    HOSTS_VARIABLE,
    SIGN_IN_VARIABLE,
)
from tests import plain_http
from tests.deploy.dockerfile import REPOSITORY
from tests.gateway_process import free_port
from tests.waiting import eventually

COOKIE_SECRET = "c" * 40
CLIENT, SECRET = "tollgate", "client-secret"
KEY = RSAKey.generate_key(2048, {"kid": "one", "use": "sig", "alg": "RS256"})
ALLOWED = {"PATH", "HOME", "LANG", "TZ", "TOLLGATE_REPORTS_URL"}
OWN = {SIGN_IN_VARIABLE, BOUND_VARIABLE, HOSTS_VARIABLE, FINANCE_VARIABLE}


class Provider(BaseHTTPRequestHandler):
    """Whoever comes is ada. The code carries the nonce that must come back in the token."""

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        given = {name: values[0] for name, values in parse_qs(url.query).items()}
        if url.path == "/.well-known/openid-configuration":
            self._answer(
                {
                    "issuer": self._issuer,
                    "authorization_endpoint": f"{self._issuer}/authorize",
                    "token_endpoint": f"{self._issuer}/token",
                    "jwks_uri": f"{self._issuer}/keys",
                    "id_token_signing_alg_values_supported": ["RS256"],
                }
            )
        elif url.path == "/authorize":
            back = urlencode({"code": given.get("nonce", "none"), "state": given["state"]})
            self.send_response(302)
            self.send_header("location", f"{given['redirect_uri']}?{back}")
            self.end_headers()
        else:
            self._answer(KeySet([KEY]).as_dict(private=False))

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"])).decode()
        code = parse_qs(body)["code"][0]
        now_s = int(time.time())
        claims: dict[str, Any] = {
            "iss": self._issuer,
            "aud": CLIENT,
            "sub": "ada",
            "email": "ada@example.org",
            "groups": ["finops"],
        }
        claims |= {"iat": now_s, "exp": now_s + 600, "nonce": code}
        token = jwt.encode({"alg": "RS256", "kid": "one"}, claims, KEY)
        self._answer(
            {"access_token": "a", "token_type": "Bearer", "expires_in": 600, "id_token": token}
        )

    @property
    def _issuer(self) -> str:
        return f"http://127.0.0.1:{self.server.server_port}"  # type: ignore[attr-defined]

    def _answer(self, value: object) -> None:
        body = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *arguments: Any) -> None:
        """Print nothing."""


@pytest.fixture
def provider() -> Iterator[str]:
    """The address of a running provider."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Provider)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_people_sign_in_when_the_app_has_only_the_allowed_variables(
    provider: str, database_url: str, tmp_path: Path
) -> None:
    """From the button's address through the provider and back, until the app knows who it is."""
    port = free_port()
    secrets = tmp_path / ".streamlit" / "secrets.toml"
    secrets.parent.mkdir()
    secrets.write_text(
        f'[auth]\nredirect_uri = "http://127.0.0.1:{port}/oauth2callback"\ncookie_secret = '
        f'"{COOKIE_SECRET}"\n'
        f'client_id = "{CLIENT}"\nclient_secret = "{SECRET}"\n'
        f'server_metadata_url = "{provider}/.well-known/openid-configuration"\n'
    )
    variables = {
        "PATH": os.environ["PATH"],
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
            eventually(lambda: _is_healthy(browser), "the dashboard", within_s=60)
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
