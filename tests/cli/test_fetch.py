"""A command's GET: cheap where it is repeated, and never past a certificate that is not valid."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import httpx2
import pytest

from gateway.cli.terminal.fetch import fetch
from gateway.cli.up.children import Children
from gateway.cli.up.readiness import wait_for
from gateway.errors import OperatorError
from tests.providers.authority import Authority
from tests.running_server import running


class Healthy(BaseHTTPRequestHandler):
    """Answers 503 twice, then 200."""

    waits = 2

    def do_GET(self) -> None:
        answered = type(self)
        self.send_response(503 if answered.waits else 200)
        answered.waits = max(answered.waits - 1, 0)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, format: str, *arguments: object) -> None:
        """Keep the test's output clean."""


@pytest.fixture
def server() -> Iterator[HTTPServer]:
    with running(HTTPServer(("127.0.0.1", 0), type("Handler", (Healthy,), {}))) as listening:
        yield listening


def test_waiting_for_a_server_without_tls_loads_no_certificates(
    server: HTTPServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It took 20 ms of CPU at each of five looks a second, beside an engine that compiles."""
    loaded: list[object] = []
    monkeypatch.setattr(
        ssl.SSLContext, "load_default_certs", lambda *arguments: loaded.append(arguments)
    )
    monkeypatch.setattr(
        ssl.SSLContext, "load_verify_locations", lambda *arguments: loaded.append(arguments)
    )
    wait_for(f"http://127.0.0.1:{server.server_address[1]}/healthz", Children(tmp_path / "logs"))
    assert loaded == []


def test_a_server_that_does_not_get_ready_is_an_error_with_the_next_step(
    server: HTTPServer, tmp_path: Path
) -> None:
    """Its process runs, so nothing else would name the log that has the reason."""
    server.RequestHandlerClass.waits = 1000  # type: ignore[attr-defined]  # the class made above
    url = f"http://127.0.0.1:{server.server_address[1]}/healthz"
    with pytest.raises(OperatorError) as raised:
        wait_for(url, Children(tmp_path / "logs"), within_s=0.1)
    assert raised.value.message == (
        f"{url} was not ready in 0.1 s: HTTP 503. The logs in {tmp_path / 'logs'} have the reason; "
        "remove it and run tollgate up again."
    )


@pytest.mark.parametrize("kind", ["expired", "wrong-host", "self-signed"])
def test_a_bad_certificate_is_an_error(
    server: HTTPServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """TLS is never downgraded, whatever is saved where there is none."""
    authority = Authority(tmp_path)
    monkeypatch.setenv("SSL_CERT_FILE", str(authority.path))
    server.socket = authority.server(kind).wrap_socket(server.socket, server_side=True)
    with pytest.raises(httpx2.ConnectError, match="CERTIFICATE_VERIFY_FAILED"):
        fetch(f"https://localhost:{server.server_address[1]}/", timeout_s=5)
