"""Gemini's addresses, headers and errors, on AI Studio and on Vertex AI."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from gateway.domain.operation import Operation
from gateway.domain.policy.policy import Deployment
from gateway.domain.providers.facts import facts_of
from gateway.domain.providers.known_hosts import known_place
from gateway.domain.providers.table import provider_at
from gateway.errors import (
    InvalidRequest,
    ModelMissing,
    ModelNotFound,
    Overloaded,
    QuotaExhausted,
    RateLimited,
    RequestError,
    Untranslatable,
    UpstreamAuth,
    UpstreamError,
    UpstreamTimeout,
)
from gateway.providers.google.gemini import Gemini, Vertex
from gateway.providers.google.google_tokens import GoogleTokens
from gateway.wire.dialect import Translation
from tests import factories
from tests.answers import at_once

AI_STUDIO = "https://generativelanguage.googleapis.com/v1beta"
VERTEX = "https://europe-west4-aiplatform.googleapis.com/v1/projects/p/locations/europe-west4"
BODY = {"contents": [], "generationConfig": {"temperature": 1}}


def gemini(**changes: Any) -> Deployment:
    values = {"provider": "gemini", "base_url": AI_STUDIO, "model": "gemini-3.8-flash"}
    return factories.deployment(**values | changes)


def request(**body: Any) -> Any:
    content = {"model": "assistant", "messages": [{"role": "user", "content": "Hi"}], **body}
    return factories.request(factories.read(json.dumps(content).encode(), Operation.CHAT))


TRANSLATION = Translation(sent_as="generateContent", body=BODY)


@pytest.mark.parametrize(
    ("body", "cap", "sent"),
    [({}, None, None), ({"max_tokens": 9}, None, 9), ({"max_tokens": 9}, 5, 5), ({}, 7, 7)],
)
def test_the_maximum_bounds_thoughts_too(body: Any, cap: int | None, sent: int | None) -> None:
    """`maxOutputTokens` is the sum of thoughts and text: googleapis/python-genai issue 2062
    measured it for Gemini 3, and Google's forum (thread 198148) for Gemini 4.
    """
    call = at_once(
        Gemini().call(gemini(), request(**body), output_cap_tokens=cap, translation=TRANSLATION)
    )
    config = msgspec.json.decode(call.body)["generationConfig"]
    assert config.get("maxOutputTokens") == sent
    assert config["temperature"] == 1
    assert BODY["generationConfig"] == {"temperature": 1}


def test_the_address_holds_model_and_method(monkeypatch: pytest.MonkeyPatch) -> None:
    """A model's name cannot leave its place in the path; the key goes in Google's header."""
    monkeypatch.setenv("GEMINI_KEY", "k-1")
    one = gemini(model="a/../b?c", api_key="env:GEMINI_KEY")
    plain = at_once(Gemini().call(one, request(), translation=TRANSLATION))
    streamed = at_once(Gemini().call(one, request(stream=True), translation=TRANSLATION))
    assert plain.url == f"{AI_STUDIO}/models/a%2F..%2Fb%3Fc:generateContent"
    assert streamed.url == f"{AI_STUDIO}/models/a%2F..%2Fb%3Fc:streamGenerateContent?alt=sse"
    assert (plain.is_streamed, streamed.is_streamed) == (False, True)
    assert plain.headers["x-goog-api-key"] == "k-1"
    assert "authorization" not in plain.headers
    probe = at_once(Gemini().probe(one, factories.request(factories.read()).request_id))
    assert msgspec.json.decode(probe.body)["generationConfig"] == {"maxOutputTokens": 1}


async def test_vertex_sends_a_token() -> None:
    """Its models stand under the publisher; without a credential nothing is sent."""
    one = gemini(provider="vertex", base_url=VERTEX, api_key="env:NO_SUCH_VARIABLE")
    vertex = Vertex(GoogleTokens(lambda: datetime.now(UTC)))
    with pytest.raises(UpstreamAuth, match="env:NO_SUCH_VARIABLE"):
        await vertex.call(one, request(), translation=TRANSLATION)
    assert vertex._url(one, is_stream=False) == (
        f"{VERTEX}/publishers/google/models/gemini-3.8-flash:generateContent"
    )


def test_other_operations_have_no_place() -> None:
    """A deployment that wrongly lists them refuses by name."""
    read = factories.read(b'{"model":"assistant","input":"a"}', Operation.EMBEDDINGS)
    with pytest.raises(Untranslatable, match="embeddings"):
        Gemini().translate(gemini(), read)
    with pytest.raises(AssertionError):
        Gemini().assembler(read, limit_bytes=1)


def error(code: int, /, **members: Any) -> bytes:
    return json.dumps({"error": {"code": code, "message": "m", **members}}).encode()


@pytest.mark.parametrize(
    ("status", "body", "kind"),
    [
        (400, error(400, status="INVALID_ARGUMENT"), InvalidRequest),
        (400, error(400, details=[{"reason": "API_KEY_INVALID"}]), UpstreamAuth),
        (400, error(400, status="FAILED_PRECONDITION"), UpstreamAuth),
        (401, error(401, status="UNAUTHENTICATED"), UpstreamAuth),
        (402, error(402), QuotaExhausted),
        (403, error(403, status="PERMISSION_DENIED"), UpstreamAuth),
        (404, error(404, status="NOT_FOUND"), ModelMissing),
        (429, error(429, status="RESOURCE_EXHAUSTED"), RateLimited),
        (500, error(500, status="INTERNAL"), UpstreamError),
        (503, error(503, status="UNAVAILABLE"), Overloaded),
        (504, error(504, status="DEADLINE_EXCEEDED"), UpstreamTimeout),
        (502, b"<html>", UpstreamError),
    ],
)
def test_errors_map_by_status_and_type(status: int, body: bytes, kind: type[RequestError]) -> None:
    """Never by the text of their message."""
    found = Gemini().error(gemini(), status, {}, body=body)
    assert type(found) is kind
    assert not isinstance(found, ModelNotFound)


@pytest.mark.parametrize(
    ("status", "reason", "cause"),
    [
        (400, "API_KEY_INVALID", "key is unknown"),
        (400, "BILLING_DISABLED", "billing is disabled"),
        (403, "API_KEY_SERVICE_BLOCKED", "restrictions leave out this API"),
        (403, "CONSUMER_INVALID", "project is unknown or deleted"),
        (403, "CONSUMER_SUSPENDED", "suspended the project"),
        (403, "SERVICE_DISABLED", "API is disabled in the project"),
    ],
)
def test_a_refused_account_names_its_cause(status: int, reason: str, cause: str) -> None:
    """No prompt causes one, so the breaker opens at once; the operator reads Google's reason."""
    details = [{"@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": reason}]
    body = error(status, status="PERMISSION_DENIED", details=details)
    found = Gemini().error(gemini(), status, {}, body=body)
    assert type(found) is UpstreamAuth
    assert not found.may_be_this_request
    assert reason in found.message
    assert cause in found.message


def test_a_permission_may_be_one_requests_fault() -> None:
    """A prompt can name a file that the account may not read, so other requests are still sent."""
    details = [{"reason": "IAM_PERMISSION_DENIED", "domain": "aiplatform.googleapis.com"}]
    body = error(403, status="PERMISSION_DENIED", details=details)
    found = Gemini().error(gemini(), 403, {}, body=body)
    assert isinstance(found, UpstreamAuth)
    assert found.may_be_this_request


def test_the_wait_of_an_error_is_handed_on() -> None:
    """`RetryInfo` counts as a `retry-after`, which wins if both are there."""
    body = error(429, details=[{"@type": "…/google.rpc.RetryInfo", "retryDelay": "34.5s"}])
    assert Gemini().error(gemini(), 429, {}, body=body).asked_wait_s == 34.5
    assert Gemini().error(gemini(), 429, {"retry-after": "2"}, body=body).asked_wait_s == 2


@pytest.mark.parametrize(
    ("base_url", "processing"),
    [
        (AI_STUDIO, "global"),
        (VERTEX, "unknown"),
        ("https://aiplatform.googleapis.com/v1/projects/p/locations/global", "global"),
        ("https://aiplatform.eu.rep.googleapis.com/v1/projects/p/locations/eu", "eu"),
        ("https://aiplatform.us.rep.googleapis.com/v1/projects/p/locations/us", "us"),
    ],
)
def test_places_of_googles_hosts(base_url: str, processing: str) -> None:
    """A multi-region's host names its place; `google` denies both products."""
    host = base_url.split("/")[2]
    place, entry = known_place(host), provider_at(host)
    assert place is not None
    assert entry is not None
    assert place.processing == processing
    assert place.statement.source
    assert place.statement.as_of is not None
    facts = facts_of(entry.name, base_url, "eu-de", False, None)
    assert facts.providers >= {entry.name, "google"}


def test_a_proxy_before_google_is_google_too() -> None:
    """`deny_providers: [google]` follows the provider where the host says nothing."""
    assert "google" in facts_of("vertex", "https://proxy.example/v1", "eu", False, None).providers
