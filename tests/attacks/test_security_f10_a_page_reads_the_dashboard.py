"""Security F10: a web page could read dashboard and metrics through a name that resolves to this
machine.
"""

from __future__ import annotations

import http.client
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gateway.domain.allowed_hosts import answers_to
from tests.bare_environment import BARE
from tests.dashboard.raw_visitor import signed_in_cookie
from tests.gateway_process import FakeUpstreamProcess, StartGateway, free_port
from tests.integration.money.test_gateway_budgets import policy
from tests.waiting import eventually

UPGRADE = {
    "upgrade": "websocket",
    "connection": "Upgrade",
    "sec-websocket-version": "13",
    "sec-websocket-key": "dGhlIHNhbXBsZSBub25jZQ==",
}
AUTH = """\
[auth]
redirect_uri = "http://127.0.0.1/oauth2callback"
cookie_secret = "a test's secret"
client_id = "x"
client_secret = "x"
server_metadata_url = "http://127.0.0.1:1/.well-known/openid-configuration"
"""

Ask = Callable[..., int]


def status(port: int, path: str, host: str, **headers: str) -> int:
    """Return the status of one GET with its own Host header; 0 without a listener."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    try:
        connection.putrequest("GET", path, skip_host=True)
        for name, value in {"host": host, **headers}.items():
            connection.putheader(name, value)
        connection.endheaders()
        return connection.getresponse().status
    except ConnectionError:
        return 0
    finally:
        connection.close()


@contextmanager
def dashboard(url: str, home: Path, bound: str, *more: str, hosts: str = "[]") -> Iterator[int]:
    """Yield the port of a real `tollgate dashboard`."""
    port = free_port()
    home.mkdir(exist_ok=True)
    (home / ".streamlit").mkdir(exist_ok=True)
    (home / ".streamlit" / "secrets.toml").write_text(AUTH)
    (home / ".streamlit" / "secrets.toml").chmod(0o600)
    variables = {
        **BARE,
        "HOME": str(home),
        "TOLLGATE_HOME": str(home),
        "TOLLGATE_DATABASE_URL": url,
        "TOLLGATE_DASHBOARD_PORT": str(port),
        "TOLLGATE_DASHBOARD_HOST": bound,
        "TOLLGATE_DASHBOARD_HOSTS": hosts,
    }
    process = subprocess.Popen(
        [sys.executable, "-m", "gateway.main", "dashboard", *more],
        env=variables,
        stdin=subprocess.DEVNULL,
        cwd=Path(__file__).parents[2],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        eventually(
            lambda: status(port, "/_stcore/health", f"127.0.0.1:{port}") == 200,
            "the dashboard",
            within_s=120,
        )
        yield port
    finally:
        process.terminate()
        process.wait(30)


def test_a_loopback_dashboard_answers_to_loopback_names_alone(
    database_url: str, tmp_path: Path
) -> None:
    """This includes the WebSocket: its Origin equals its Host, so Streamlit's own check accepts
    it.
    """
    with dashboard(
        database_url, tmp_path / "home", "127.0.0.1", hosts='["tollgate.example"]'
    ) as port:
        for host in ("127.0.0.1", "localhost", "[::1]", "tollgate.example"):
            assert status(port, "/", f"{host}:{port}") == 200
        for host in ("evil.example", "10.0.0.7", "localhost.evil.example"):
            assert status(port, "/", f"{host}:{port}") == 400
        origins = {"origin": f"http://evil.example:{port}"}
        assert status(port, "/_stcore/stream", f"evil.example:{port}", **UPGRADE, **origins) in (
            400,
            403,
        )
        origins = {
            "origin": f"http://localhost:{port}",
            "cookie": signed_in_cookie("a test's secret"),
        }
        assert status(port, "/_stcore/stream", f"localhost:{port}", **UPGRADE, **origins) == 101


def test_an_open_dashboard_with_sign_in_starts_and_wants_names_listed(
    database_url: str, tmp_path: Path
) -> None:
    """A name that is not listed is refused on any bind, and the variables' allow-list still lets
    the dashboard start.
    """
    with dashboard(database_url, tmp_path / "home", "0.0.0.0") as port:
        assert status(port, "/", f"127.0.0.1:{port}") == 200
        assert status(port, "/", f"10.1.2.3:{port}") == 200
        assert status(port, "/", f"evil.example:{port}") == 400


@pytest.mark.parametrize("bound", ["127.0.0.1", "0.0.0.0"])
def test_metrics_answer_to_no_name_that_is_not_listed(
    start_gateway: StartGateway, fake_upstream: FakeUpstreamProcess, bound: str
) -> None:
    """A scrape by pod address must work if the listener is not on loopback."""
    gateway = start_gateway(
        policy(fake_upstream.url), metrics_host=bound, metrics_hosts='["metrics.example"]'
    )
    port = gateway.metrics_port
    assert status(port, "/metrics", f"127.0.0.1:{port}") == 200
    assert status(port, "/metrics", f"metrics.example:{port}") == 200
    assert status(port, "/metrics", f"evil.example:{port}") == 400
    assert status(port, "/metrics", f"10.1.2.3:{port}") == (400 if bound == "127.0.0.1" else 200)


@pytest.mark.parametrize(
    ("host", "bound", "is_answered"),
    [
        ("LOCALHOST:1", "127.0.0.1", True),
        ("localhost.", "::1", True),
        ("127.0.0.2", "localhost", True),
        ("[::1]:80", "127.0.0.1", True),
        ("tollgate.example:1", "0.0.0.0", True),
        ("Tollgate.Example", "127.0.0.1", True),
        ("[fe80::1]:80", "::", True),
        ("[fe80::1]:80", "::1", False),
        ("evil.example", "0.0.0.0", False),
        ("127.0.0.1.evil.example", "0.0.0.0", False),
        ("", "127.0.0.1", False),
        (None, "127.0.0.1", False),
        ("localhost, evil.example", "127.0.0.1", False),
        ("evil@localhost", "127.0.0.1", False),
        ("2130706433", "0.0.0.0", False),
        ("10.0.0.7", "gateway.example", True),
    ],
)
def test_a_name_must_be_local_or_listed(host: str | None, bound: str, is_answered: bool) -> None:
    """IP literals pass on other binds, because DNS rebinding needs a name."""
    assert answers_to(host, bound=bound, listed=("tollgate.example",)) == is_answered
