"""A server or a proxy that repeats the headers of a request in its error: the message, with the
gateway's own credential, was the caller's.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gateway.domain.policy.policy import Credentials
from gateway.providers.registry import build_providers
from tests.factories import deployment

ADAPTERS = build_providers(salt_key=bytes(32))
SECRET = "sk-live-0123456789"
ERRORS = {
    "openai": {"error": {"message": f"bad header: Bearer {SECRET}", "type": "x"}},
    "anthropic": {"type": "error", "error": {"type": "x", "message": f"x-api-key: {SECRET}"}},
    "gemini": {"error": {"code": 400, "status": "INVALID_ARGUMENT", "message": f"key {SECRET}"}},
    "bedrock": {"message": f"Authorization: Bearer {SECRET}"},
}


@pytest.mark.parametrize("provider", ERRORS)
@pytest.mark.parametrize("status", [400, 413, 422])
def test_a_message_has_no_credential(provider: str, status: int, tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_text(f"{SECRET}\n")
    at = deployment(provider=provider, api_key=f"file:{key}")
    body = json.dumps(ERRORS[provider]).encode()
    error = ADAPTERS[provider].error(at, status, {}, body=body)
    assert SECRET not in str(error)
    assert "a credential of the gateway" in str(error)


def test_the_parts_of_a_signing_key_are_credentials(tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_text(SECRET)
    reference = f"file:{key}"
    credentials = Credentials(access_key_id=reference, secret_access_key=reference)
    at = deployment(provider="bedrock", credentials=credentials)
    body = json.dumps(ERRORS["bedrock"]).encode()
    assert SECRET not in str(ADAPTERS["bedrock"].error(at, 400, {}, body=body))


def test_an_upstream_without_a_credential_says_what_it_said() -> None:
    body = json.dumps({"error": {"message": "max_tokens is too large", "type": "x"}}).encode()
    at = deployment(api_key="file:/nowhere")
    assert "max_tokens is too large" in str(ADAPTERS[at.provider].error(at, 400, {}, body=body))
