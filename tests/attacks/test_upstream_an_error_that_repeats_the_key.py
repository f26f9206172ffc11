"""A server or a proxy that repeats the headers of a request in its error: the message, with the
gateway's own credential, was the caller's.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gateway.domain.policy.policy import Credentials, Deployment
from gateway.domain.providers.table import PROVIDERS
from gateway.errors import RequestError
from gateway.wire.sent_credentials import REMOVED, without_credentials
from tests.factories import deployment
from tests.fakes import FakeUpstreamAnswer
from tests.unit.request.test_request_service import body, once

SECRET = "sk-live-0123456789"
ERRORS = {
    "openai_compatible": {"error": {"message": f"bad header: Bearer {SECRET}", "type": "x"}},
    "anthropic": {"type": "error", "error": {"type": "x", "message": f"x-api-key: {SECRET}"}},
    "gemini": {"error": {"code": 400, "status": "INVALID_ARGUMENT", "message": f"key {SECRET}"}},
    "bedrock": {"message": f"Authorization: Bearer {SECRET}"},
}


@pytest.fixture
def key(tmp_path: Path) -> Path:
    """Return the file with the deployment's key."""
    path = tmp_path / "key"
    path.write_text(f"{SECRET}\n")
    return path


async def message_of(provider: str, sent: bytes, key: Path, status: int = 400) -> str:
    """Return the caller's message for an upstream's error."""
    at = deployment(provider=provider, native=PROVIDERS[provider].native, api_key=f"file:{key}")
    return await message_at(at, sent, status)


async def message_at(at: Deployment, sent: bytes, status: int = 400) -> str:
    """Return the caller's message for the error of a deployment."""
    asked = body(messages=[{"role": "user", "content": "x"}], max_tokens=5)
    with pytest.raises(RequestError) as failed:
        await once(FakeUpstreamAnswer([sent], status=status)).answer(asked, at)
    assert str(failed.value) == failed.value.message
    return failed.value.message


@pytest.mark.parametrize("provider", ERRORS)
@pytest.mark.parametrize("status", [400, 413, 422])
async def test_a_message_has_no_credential(provider: str, status: int, key: Path) -> None:
    sent = json.dumps(ERRORS[provider]).encode()
    message = await message_of(provider, sent, key, status)
    assert SECRET not in message
    assert REMOVED in message


async def test_the_parts_of_a_signing_key_are_credentials(key: Path) -> None:
    """Its secret part is never sent. The other one names the key in the header."""
    reference = f"file:{key}"
    credentials = Credentials(access_key_id=reference, secret_access_key=reference)
    at = deployment(provider="bedrock", native=frozenset(), credentials=credentials)
    message = await message_at(at, json.dumps(ERRORS["bedrock"]).encode())
    assert SECRET not in message
    assert REMOVED in message


def test_a_signature_is_a_credential() -> None:
    header = (
        "AWS4-HMAC-SHA256 Credential=AKIDEXAMPLE/20261126/eu-central-1/bedrock/aws4_request, "
        "SignedHeaders=content-type;host;x-amz-date, Signature=0123456789abcdef"
    )
    said = b"key AKIDEXAMPLE, signature 0123456789abcdef"
    answer = without_credentials(said, {"authorization": header})
    assert answer == f"key {REMOVED}, signature {REMOVED}".encode()


async def test_a_credential_behind_escapes_is_one_too(key: Path) -> None:
    """The message is decoded before it is searched."""
    escaped = "".join(f"\\u{ord(letter):04x}" for letter in SECRET)
    sent = f'{{"error": {{"message": "bad key {escaped}", "type": "x"}}}}'.encode()
    message = await message_of("openai_compatible", sent, key)
    assert message.endswith(f"bad key {REMOVED}")


async def test_an_upstream_without_a_credential_says_what_it_said(key: Path) -> None:
    sent = b'{"error": {"message": "max_tokens is too large", "type": "x"}}'
    message = await message_of("openai_compatible", sent, key)
    assert "max_tokens is too large" in message
