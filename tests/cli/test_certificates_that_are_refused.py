"""`doctor` called all well when each request failed with `SSLCertVerificationError`: it only opened
a connection, and OpenSSL ignores an `SSL_CERT_FILE` that it cannot read.

Found on 2026-11-24 by an attacker who simulated an operator of a failing system.
"""

from __future__ import annotations

import json
import ssl
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from tests.cli.conftest import Cli
from tests.providers.authority import Authority
from tests.running_server import running

POLICY = """version: 1
regions: {{eu: [eu-de]}}
classes: {{internal: {{regions: [eu]}}}}
deployments:
  - {{name: partner, provider: openai_compatible, model: m-1,
     base_url: "https://127.0.0.1:{port}/v1", region: eu-de,
     price: {{input_usd_per_mtok: 1, output_usd_per_mtok: 2}}}}
routes: [{{name: assistant, deployments: [partner]}}]
teams: [{{name: payments, cost_centre: CC-1, data_class: internal, routes: [assistant]}}]
"""


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@pytest.fixture
def provider(authority: Authority) -> Iterator[int]:
    """Yield the port of a provider with a certificate of that authority."""
    listening = HTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler)
    listening.socket = authority.server("good").wrap_socket(listening.socket, server_side=True)
    listening.handle_error = lambda *_: None  # type: ignore[method-assign]  # clients that hang up
    with running(listening):
        yield listening.server_address[1]


def checks(cli: Cli) -> dict[str, tuple[str, str]]:
    """Return doctor's status and finding of each check."""
    rows = json.loads(cli("doctor", "--format", "json").out)
    return {row["check"]: (row["status"], row["finding"]) for row in rows}


def test_doctor_refuses_the_certificate_that_requests_will_refuse(
    cli: Cli,
    provider: int,
    authority: Authority,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each request got 502, and doctor found nothing broken."""
    monkeypatch.delenv("SSL_CERT_FILE", raising=False)
    policy = tmp_path / "policy.yaml"
    policy.write_text(POLICY.format(port=provider))
    cli.ok("policy", "apply", str(policy), "--yes")
    found = checks(cli)
    assert "certificates" not in found
    status, finding = found["reach partner"]
    assert status == "fail"
    assert finding.startswith(f"the certificate of 127.0.0.1:{provider} is refused here: ")
    monkeypatch.setenv("SSL_CERT_FILE", str(authority.path))
    found = checks(cli)
    assert found["reach partner"] == ("ok", f"127.0.0.1:{provider} takes connections")
    assert found["certificates"][0] == "ok"


@pytest.mark.parametrize("content", [None, "no certificate\n"])
def test_doctor_names_a_file_of_certificates_that_openssl_ignores(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str | None
) -> None:
    """Without its authorities certificates are refused, and OpenSSL does not say why."""
    file = tmp_path / "trusted.pem"
    if content is not None:
        file.write_text(content)
    monkeypatch.setenv("SSL_CERT_FILE", str(file))
    assert not ssl.create_default_context().get_ca_certs()
    status, finding = checks(cli)["certificates"]
    assert status == "fail"
    assert finding.startswith(f"SSL_CERT_FILE names {file}: ")
