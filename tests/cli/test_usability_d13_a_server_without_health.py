"""`doctor` believes a compatible server that has no `/health`, if it lists its models (usability
D13).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from gateway.cli.up.demo_policy import Demo, document
from tests.cli.conftest import Cli
from tests.providers.authority import Authority
from tests.running_server import running

KEY = "the-key-of-the-engine"


class Compatible(BaseHTTPRequestHandler):
    """Plays llama.cpp behind a proxy: models for who has the key, and its slots if it shows
    them.
    """

    models_status = 200
    slots = b""

    def do_GET(self) -> None:
        knows_key = self.headers["authorization"] == f"Bearer {KEY}"
        status = 404 if self.path != "/v1/models" else self.models_status if knows_key else 401
        body = self.slots if self.path == "/slots" else b""
        self.send_response(200 if body else status)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *arguments: object) -> None:
        """Keep the test's output clean."""


@pytest.fixture
def server() -> Iterator[HTTPServer]:
    with running(HTTPServer(("127.0.0.1", 0), type("Handler", (Compatible,), {}))) as listening:
        yield listening


def reach(cli: Cli, server: HTTPServer, folder: Path, *, scheme: str = "http") -> dict[str, str]:
    """Apply the policy that `up --engine-url` applies, and return doctor's check of the engine."""
    return checks_of_engine(cli, server, folder, scheme=scheme)["reach tiny-local"]


def checks_of_engine(
    cli: Cli, server: HTTPServer, folder: Path, *, scheme: str = "http"
) -> dict[str, dict[str, str]]:
    """Apply the policy that `up --engine-url` applies, and return doctor's checks by name."""
    key, policy = folder / "engine-key", folder / "demo.yaml"
    key.write_text(KEY)
    demo = Demo(
        engine_url=f"{scheme}://127.0.0.1:{server.server_address[1]}",
        engine_model="fake",
        engine_key=f"file:{key}",
        context_window=4096,
        has_external=False,
        may_fall_back=False,
    )
    policy.write_text(document(demo))
    cli.ok("policy", "apply", str(policy), "--yes")
    rows = json.loads(cli("doctor", "--format", "json").out)
    return {row["check"]: {name: str(row[name]) for name in ("status", "finding")} for row in rows}


def test_a_server_without_health_that_lists_its_models_is_reachable(
    cli: Cli, server: HTTPServer, tmp_path: Path
) -> None:
    """Many compatible servers have no /health; doctor failed after the documented `up
    --engine-url`.
    """
    host = f"127.0.0.1:{server.server_address[1]}"
    assert reach(cli, server, tmp_path) == {
        "status": "ok",
        "finding": f"{host} lists its models; it has no /health",
    }


def test_a_server_that_lists_no_models_either_is_not(
    cli: Cli, server: HTTPServer, tmp_path: Path
) -> None:
    """A wrong address answers 404 to everything; an engine that loads answers 503."""
    server.RequestHandlerClass.models_status = 503  # type: ignore[attr-defined]  # the class made above
    assert reach(cli, server, tmp_path)["status"] == "fail"


def test_an_https_engine_behind_a_private_authority_is_reachable(
    cli: Cli, server: HTTPServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The gateway trusts SSL_CERT_FILE; doctor ignored it and called a healthy engine broken."""
    authority = Authority(tmp_path)
    monkeypatch.setenv("SSL_CERT_FILE", str(authority.path))
    server.socket = authority.server("good").wrap_socket(server.socket, server_side=True)
    assert reach(cli, server, tmp_path, scheme="https")["status"] == "ok"


def test_an_engine_that_hides_its_load_is_a_warning(
    cli: Cli, server: HTTPServer, tmp_path: Path
) -> None:
    """Its requests were routed without its queue, and no command showed it."""
    found = checks_of_engine(cli, server, tmp_path)["load tiny-local"]
    assert found["status"] == "warn"
    assert "not routed by them (/metrics, " in found["finding"]


def test_an_engine_that_shows_its_load_names_the_page(
    cli: Cli, server: HTTPServer, tmp_path: Path
) -> None:
    slots = json.dumps([{"is_processing": False, "n_ctx": 4096}]).encode()
    server.RequestHandlerClass.slots = slots  # type: ignore[attr-defined]  # the class made above
    found = checks_of_engine(cli, server, tmp_path)["load tiny-local"]
    assert found == {"status": "ok", "finding": "its load is read from /slots"}


def test_an_engine_out_of_reach_is_not_asked_for_its_load(
    cli: Cli, server: HTTPServer, tmp_path: Path
) -> None:
    server.RequestHandlerClass.models_status = 503  # type: ignore[attr-defined]  # the class made above
    assert "load tiny-local" not in checks_of_engine(cli, server, tmp_path)
