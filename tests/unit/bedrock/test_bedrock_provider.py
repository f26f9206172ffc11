"""The adapter of Bedrock: its address, its signature, its errors."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest

from gateway.domain.policy.policy import Credentials
from gateway.errors import (
    InvalidRequest,
    ModelMissing,
    Overloaded,
    RateLimited,
    RequestError,
    UpstreamAuth,
    UpstreamError,
    UpstreamTimeout,
)
from gateway.providers.aws.bedrock import Bedrock, region_of
from tests import factories
from tests.answers import at_once

HOST = "https://bedrock-runtime.eu-central-1.amazonaws.com"
MODEL = "eu.anthropic.claude-sonnet-4-5-20250929-v1:0"
CHAT = b'{"model":"assistant","messages":[{"role":"user","content":"Hi"}],"max_tokens":50%s}'


def deployment(**changes: Any) -> Any:
    """Return a deployment at Bedrock."""
    return factories.deployment(
        **{"provider": "bedrock", "base_url": HOST, "model": MODEL, "native": frozenset()} | changes
    )


def called(one: Any, *, more: bytes = b"", cap: int | None = None) -> Any:
    """Return the upstream request of a chat."""
    read = factories.read(CHAT % more)
    provider = Bedrock()
    translation = provider.translate(one, read)
    return at_once(
        provider.call(one, factories.request(read), output_cap_tokens=cap, translation=translation)
    )


def test_the_address_has_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its letters are escaped, and the caller's maximum or the gateway's is sent."""
    monkeypatch.setenv("BEDROCK_KEY", "bedrock-api-key-1")
    one = deployment(api_key="env:BEDROCK_KEY")
    plain, stream = called(one), called(one, more=b',"stream":true', cap=20)
    escaped = MODEL.replace(":", "%3A")
    assert plain.url == f"{HOST}/model/{escaped}/converse"
    assert stream.url == f"{HOST}/model/{escaped}/converse-stream"
    assert plain.headers["authorization"] == "Bearer bedrock-api-key-1"
    assert stream.headers["accept"] == "application/vnd.amazon.eventstream"
    assert json.loads(plain.body)["inferenceConfig"] == {"maxTokens": 50}
    assert json.loads(stream.body)["inferenceConfig"] == {"maxTokens": 20}


def test_a_signed_request(monkeypatch: pytest.MonkeyPatch) -> None:
    """The signature is AWS's own of the same request, and the secret is nowhere in it."""
    from botocore.auth import SigV4Auth
    from botocore.awsrequest import AWSRequest
    from botocore.credentials import Credentials as Keys

    monkeypatch.setenv("AWS_ID", "AKIDEXAMPLE")
    monkeypatch.setenv("AWS_SECRET", "a-secret-key")
    monkeypatch.setenv("AWS_TOKEN", "a-session-token")
    one = deployment(
        credentials=Credentials(
            access_key_id="env:AWS_ID",
            secret_access_key="env:AWS_SECRET",
            session_token="env:AWS_TOKEN",
        )
    )
    call = called(one)
    signed_at = call.headers["x-amz-date"]
    at = datetime.strptime(signed_at, "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC)
    scope = f"AKIDEXAMPLE/{at:%Y%m%d}/eu-central-1/bedrock/aws4_request"
    assert call.headers["authorization"].startswith(f"AWS4-HMAC-SHA256 Credential={scope}")
    assert call.headers["x-amz-security-token"] == "a-session-token"
    again = AWSRequest(
        method="POST",
        url=call.url,
        data=call.body,
        headers={"content-type": "application/json", "x-amz-security-token": "a-session-token"},
    )
    again.context["timestamp"] = signed_at
    again.headers["X-Amz-Date"] = signed_at
    signer = SigV4Auth(
        Keys("AKIDEXAMPLE", "a-secret-key", "a-session-token"), "bedrock", "eu-central-1"
    )
    canonical = signer.canonical_request(again)
    signature = signer.signature(signer.string_to_sign(again, canonical), again)
    assert call.headers["authorization"].endswith(f"Signature={signature}")
    assert "a-secret-key" not in str(call.headers)


def test_the_region_of_a_private_address() -> None:
    """A proxy's host names no region, so the deployment's own one signs."""
    assert region_of(deployment()) == "eu-central-1"
    assert region_of(deployment(base_url="http://127.0.0.1:9", region="eu-west-1")) == "eu-west-1"


@pytest.mark.parametrize(
    ("status", "kind", "expected"),
    [
        (400, "ValidationException:http://internal", InvalidRequest),
        (400, "ServiceQuotaExceededException", RateLimited),
        (400, "ThrottlingException", RateLimited),
        (403, "AccessDeniedException", UpstreamAuth),
        (404, "ResourceNotFoundException", ModelMissing),
        (408, "ModelTimeoutException", UpstreamTimeout),
        (424, "ModelErrorException", UpstreamError),
        (429, "ThrottlingException", RateLimited),
        (429, "ModelNotReadyException", RateLimited),
        (500, "InternalServerException", UpstreamError),
        (503, "ServiceUnavailableException", Overloaded),
    ],
)
def test_errors_by_status_and_type(status: int, kind: str, expected: type[RequestError]) -> None:
    """Another deployment may answer, unless the request is at fault."""
    error = Bedrock().error(
        deployment(), status, {"x-amzn-errortype": kind}, body=b'{"message":"Sorry."}'
    )
    assert type(error) is expected


@pytest.mark.parametrize(
    ("status", "kind", "cause"),
    [
        (403, "InvalidSignatureException", "clock or the secret key is wrong"),
        (400, "RequestExpiredException", "clock or the secret key is wrong"),
        (403, "RequestTimeTooSkewed", "clock or the secret key is wrong"),
        (403, "SignatureDoesNotMatch", "clock or the secret key is wrong"),
        (400, "IncompleteSignature", "IncompleteSignature"),
        (403, "MissingAuthenticationToken", "MissingAuthenticationToken"),
        (403, "AccessDeniedException", "may not use the model"),
        (403, "ExpiredTokenException", "ExpiredTokenException"),
        (401, "NotAuthorized", "NotAuthorized"),
    ],
)
def test_a_refused_credential_names_its_cause(status: int, kind: str, cause: str) -> None:
    """The operator reads AWS's type and the next step. No prompt causes one, so the breaker opens
    at once and other teams' requests do not try it.
    """
    headers = {"x-amzn-errortype": f"{kind}:http://internal.amazon.com/coral/"}
    error = Bedrock().error(deployment(), status, headers, body=b'{"message":"Sorry."}')
    assert type(error) is UpstreamAuth
    assert cause in error.message
    assert not error.may_be_this_request


def test_a_probe_generates_one_token(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has no content of a caller."""
    monkeypatch.setenv("BEDROCK_KEY", "k")
    one = deployment(api_key="env:BEDROCK_KEY")
    call = at_once(Bedrock().probe(one, factories.REQUEST_ID))
    assert json.loads(call.body) == {
        "messages": [{"role": "user", "content": [{"text": "."}]}],
        "inferenceConfig": {"maxTokens": 1},
    }


async def test_an_identity_of_the_platform(monkeypatch: pytest.MonkeyPatch) -> None:
    """botocore's chain finds it, here in the environment; without one nothing is sent."""
    from gateway.providers.aws.keys import AwsKeys

    one = deployment(credentials=Credentials(is_ambient=True))
    for name in ("AWS_PROFILE", "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/nonexistent")
    monkeypatch.setenv("AWS_CONFIG_FILE", "/nonexistent")
    with pytest.raises(UpstreamAuth, match="no identity"):
        await AwsKeys().key_of(one)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKID")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    assert await AwsKeys().key_of(one) == ("AKID", "secret", None)
