"""The error that a caller sees for an upstream's error answer."""

from __future__ import annotations

from gateway.errors import ContextLengthExceeded, InvalidRequest, RequestError
from gateway.providers.openai import OpenAI
from gateway.services.upstream_error import caller_error
from gateway.wire.dialect import UpstreamRequest
from gateway.wire.sent_credentials import REMOVED
from tests import factories

SECRET = "sk-live-0123456789"
ERROR = b'{"error": {"message": "bad header: Bearer sk-live-0123456789", "code": "%s"}}'


def error_of(code: bytes) -> RequestError:
    """Return the caller's error for an upstream's 400 that repeats the gateway's key."""
    call = UpstreamRequest(
        url="http://127.0.0.1:9/v1/chat/completions",
        headers={"authorization": f"Bearer {SECRET}"},
        body=b"{}",
        is_streamed=False,
    )
    return caller_error(OpenAI(), factories.deployment("d"), call, (400, {}), body=ERROR % code)


def test_an_error_keeps_its_type_and_loses_the_credential() -> None:
    """One function does both, so no new caller of a provider can forget the second."""
    error = error_of(b"x")
    assert isinstance(error, InvalidRequest)
    assert REMOVED in error.message
    assert SECRET not in str(error)
    assert isinstance(error_of(b"context_length_exceeded"), ContextLengthExceeded)
