"""Azure OpenAI's addresses, credentials and errors, at the adapter that the registry builds."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import pytest

from gateway.domain.operation import Operation
from gateway.domain.policy.policy import AMBIENT, Deployment
from gateway.domain.request.stored_response import StoredResponseAction
from gateway.providers.azure.azure_openai import AzureOpenAI
from gateway.providers.azure.azure_tokens import AzureTokens
from gateway.providers.openai import OpenAI
from gateway.providers.registry import build_providers
from tests.answers import at_once
from tests.factories import NOW, deployment, read, request

V1 = "https://one.openai.azure.com/openai/v1"
OLDER = "https://one.openai.azure.com/openai/deployments/gpt"


class FixedTokens(AzureTokens):
    """Access tokens that need no exchange."""

    async def token(self, deployment: Deployment) -> str:
        return "eyJ.token"


def adapter() -> OpenAI:
    found = build_providers(salt_key=b"")["azure_openai"]
    assert isinstance(found, AzureOpenAI)
    return found


def azure(base_url: str = V1, **changes: Any) -> Deployment:
    return deployment(
        provider="azure_openai", base_url=base_url, **{"api_key": "env:AZURE_KEY", **changes}
    )


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AZURE_KEY", "secret")


def test_a_key_goes_in_its_own_header() -> None:
    headers = at_once(adapter().call(azure(), request())).headers
    assert headers["api-key"] == "secret"
    assert "authorization" not in headers


def test_an_identitys_token_goes_as_a_bearer_in_every_call() -> None:
    """With both headers Azure would have to choose."""
    own = AzureOpenAI(FixedTokens(lambda: NOW))
    one = azure(api_key=None, credentials=AMBIENT)
    calls = (
        at_once(own.call(one, request())),
        at_once(own.probe(one, uuid4())),
        at_once(
            own.stored_response(
                one, uuid4(), action=StoredResponseAction.READ, response_id="resp_1", query=""
            )
        ),
    )
    for call in calls:
        assert call.headers["authorization"] == "Bearer eyJ.token"
        assert "api-key" not in call.headers
        assert call.headers["user-agent"] == "tollgate"


@pytest.mark.parametrize(
    ("base_url", "version", "expected"),
    [
        (V1, None, f"{V1}/chat/completions"),
        (V1 + "/", "preview", f"{V1}/chat/completions?api-version=preview"),
        (OLDER, "2024-10-21", f"{OLDER}/chat/completions?api-version=2024-10-21"),
    ],
)
def test_the_version_goes_in_the_query(base_url: str, version: str | None, expected: str) -> None:
    """Of a request, and of a probe too: Azure answers 404 below the older address without it."""
    one = azure(base_url, api_version=version)
    assert at_once(adapter().call(one, request())).url == expected
    assert at_once(adapter().probe(one, uuid4())).url == expected


def test_each_operation_has_the_version() -> None:
    for operation, path in (
        (Operation.RESPONSES, "responses"),
        (Operation.EMBEDDINGS, "embeddings"),
        (Operation.COMPLETIONS, "completions"),
    ):
        body = read(b'{"model":"m","input":"Hi","prompt":"Hi"}', operation)
        call = at_once(adapter().call(azure(api_version="v1"), request(body)))
        assert call.url == f"{V1}/{path}?api-version=v1"


@pytest.mark.parametrize(
    ("query", "expected"),
    [("", "?api-version=v1"), ("?include%5B%5D=a.b", "?include%5B%5D=a.b&api-version=v1")],
)
def test_a_stored_response_keeps_its_query(query: str, expected: str) -> None:
    call = at_once(
        adapter().stored_response(
            azure(api_version="v1"),
            uuid4(),
            action=StoredResponseAction.CANCEL,
            response_id="resp_1",
            query=query,
        )
    )
    assert call.url == f"{V1}/responses/resp_1/cancel{expected}"
