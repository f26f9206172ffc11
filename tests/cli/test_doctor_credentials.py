"""`doctor` looks at the credentials that no request has used yet: keys that are exchanged for
tokens, and the platform's identity; `policy plan` reads the keys.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from gateway.domain.policy.policy import AMBIENT
from gateway.providers.credential_checks import CredentialChecks
from tests import factories
from tests.cli.conftest import Cli
from tests.factories import NOW
from tests.token_host import TokenHost, listening

TOKEN, KEY_ID, SECRET = "eyJ-the-token", "AKIA-THE-KEY-ID", "the-secret-access-key"
AWAY = "http://127.0.0.1:9"  # reach checks fail there at once
VARIABLES = (
    "AWS_PROFILE",
    "AWS_ACCESS_KEY_ID",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AZURE_CLIENT_ID",
    "AZURE_FEDERATED_TOKEN_FILE",
    "AZURE_POD_IDENTITY_AUTHORITY_HOST",
)
POLICY = """\
version: 1
regions: {{eu: [eu-de]}}
classes: {{internal: {{regions: [any]}}}}
deployments:
  - {{name: sent, provider: vertex, model: m, region: eu-de, base_url: "{away}", price: {price},
     api_key: "file:{key}"}}
  - {{name: google, provider: vertex, model: m, region: eu-de, base_url: "{away}", price: {price},
     credentials: ambient}}
  - {{name: azure, provider: azure_openai, model: m, region: eu-de, base_url: "{away}/openai/v1",
     price: {price}, credentials: ambient}}
  - {{name: other, provider: azure_openai, model: n, region: eu-de, base_url: "{away}/openai/v1",
     price: {price}, credentials: ambient}}
  - {{name: aws, provider: bedrock, model: m, region: eu-de, base_url: "{away}", price: {price},
     credentials: ambient}}
routes: [{{name: all, deployments: [sent, google, azure, other, aws]}}]
teams: [{{name: payments, cost_centre: CC-1, data_class: internal, routes: [all]}}]
"""
PRICE = "{input_usd_per_mtok: 1, output_usd_per_mtok: 1}"


@pytest.fixture
def host() -> Iterator[TokenHost]:
    with listening() as one:
        yield one


@pytest.fixture
def folder(tmp_path: Path, host: TokenHost, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine with no identity but that of the token host, and a file for each other one."""
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_CONFIG_FILE", "/nonexistent")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "aws"))
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "google"))
    monkeypatch.setenv("IDENTITY_ENDPOINT", host.url)
    monkeypatch.setenv("IDENTITY_HEADER", "the-header")
    return tmp_path


def service_account(**changes: Any) -> str:
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()
    return json.dumps({"type": "service_account", "private_key": pem} | changes)


def document(folder: Path) -> Path:
    file = folder / "policy.yaml"
    file.write_text(POLICY.format(away=AWAY, price=PRICE, key=folder / "sent"))
    return file


def findings(cli: Cli, folder: Path) -> tuple[str, dict[str, tuple[str, str]]]:
    """Apply the policy; return doctor's output, and status and finding of each credential."""
    cli.ok("policy", "apply", str(document(folder)), "--yes")
    out = cli("doctor", "--format", "json").out
    rows = {row["check"]: (row["status"], row["finding"]) for row in json.loads(out)}
    names = ("secret sent", *(f"identity {one}" for one in ("google", "azure", "other", "aws")))
    return out, {name: rows[name] for name in names}


def test_each_credential_that_works_is_named_and_not_shown(
    cli: Cli, folder: Path, host: TokenHost
) -> None:
    """One token for two deployments at one host; the output has no part of a secret."""
    (folder / "sent").write_text(service_account())
    (folder / "aws").write_text(
        f"[default]\naws_access_key_id = {KEY_ID}\naws_secret_access_key = {SECRET}\n"
    )
    host.grant(TOKEN)
    out, found = findings(cli, folder)
    assert found["secret sent"] == ("ok", f"file:{folder / 'sent'} is set here")
    good = ("ok", "the platform gives this machine its identity")
    assert [found[f"identity {one}"] for one in ("azure", "other", "aws")] == [good] * 3
    assert len(host.seen) == 1
    for secret in (TOKEN, KEY_ID, SECRET, "the-header", "PRIVATE KEY"):
        assert secret not in out


def test_each_credential_that_fails_has_the_systems_reason(
    cli: Cli, folder: Path, host: TokenHost
) -> None:
    """The first request found it, in the night; doctor had reported nothing."""
    (folder / "sent").write_text(service_account(private_key="cut off"))
    host.otherwise = (400, b'{"error":"invalid_request"}')
    _, found = findings(cli, folder)
    assert {status for status, _ in found.values()} == {"fail"}
    reasons = {name: finding for name, (_, finding) in found.items()}
    assert reasons["secret sent"] == f"file:{folder / 'sent'} has no readable private key"
    assert reasons["identity google"] == (
        "the identity names a file in GOOGLE_APPLICATION_CREDENTIALS that cannot be read "
        "(No such file or directory)"
    )
    refused = "the identity was refused by 127.0.0.1 (HTTP 400, invalid_request)"
    assert reasons["identity azure"] == reasons["identity other"] == refused
    assert "cannot be had: botocore finds none" in reasons["identity aws"]


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("a key of AI Studio", "is not a service account's key in JSON"),
        ('{"type": "authorized_user"}', "is neither a service account's key nor a workload"),
        (service_account(token_uri="https://evil.example/"), "names another token host"),
        (None, "cannot be read (No such file or directory)"),
    ],
    ids=["no JSON", "of a person", "of another host", "missing"],
)
def test_the_plan_reads_a_key_that_is_exchanged(
    cli: Cli, folder: Path, host: TokenHost, content: str | None, reason: str
) -> None:
    """It needs no network for that, and asks for no token."""
    if content is not None:
        (folder / "sent").write_text(content)
    out = cli.ok("policy", "plan", str(document(folder)))
    expected = f"deployment sent cannot be used on this machine: file:{folder / 'sent'} {reason}"
    assert expected in out
    assert host.seen == []


@pytest.mark.usefixtures("folder")
def test_a_source_that_hangs_is_left_after_a_while(host: TokenHost) -> None:
    """A name lookup has no limit of its own, so the check has one."""
    host.may_answer.clear()
    one = replace(factories.deployment(provider="azure_openai"), credentials=AMBIENT)
    problem = CredentialChecks(lambda: NOW, limit_s=0.05).identity_problem(one)
    assert problem == "cannot be had: its source did not answer in 0.05 s"
    host.may_answer.set()
