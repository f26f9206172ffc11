"""The error that a caller sees for an upstream's error answer."""

from __future__ import annotations

import pytest

from gateway.domain.providers.own_members import SWITCHES
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


def refused(body: bytes, *, sent: bytes, asked: bytes) -> RequestError:
    """Return the caller's error for a 422 to a request that was sent in another form."""
    call = UpstreamRequest(url="http://127.0.0.1:9/v1", headers={}, body=sent)
    return caller_error(
        OpenAI(), factories.deployment("d"), call, (422, {}), body=body, asked=asked
    )


OPTIONS = b'{"stream":true,"stream_options":{"include_usage":true}}'
FASTAPI = b"""{"detail": [{"type": "extra_forbidden", "loc": ["body", "stream_options"],
    "msg": "Extra inputs are not permitted"}]}"""
MESSAGE = b'{"error": {"message": "Unrecognized request argument supplied: stream_options"}}'


@pytest.mark.parametrize("body", [FASTAPI, MESSAGE], ids=["by its place", "in words"])
def test_a_member_that_the_gateway_added_is_named_as_its_own(body: bytes) -> None:
    """The caller never sent it and cannot correct it."""
    error = refused(body, sent=OPTIONS, asked=b'{"stream":true}')
    assert isinstance(error, InvalidRequest)
    assert "The gateway added 'stream_options'" in error.message
    assert "`stream_usage: unasked`" in error.message
    assert error.param is None
    assert str(error) == error.message
    own = refused(body, sent=OPTIONS, asked=OPTIONS)
    assert "The gateway added" not in own.message


@pytest.mark.parametrize("name", SWITCHES)
def test_each_member_of_the_gateway_has_its_switch_in_the_error(name: str) -> None:
    """Also the part that the caller did not send of a member that it did."""
    body = b'{"error": {"message": "Not permitted.", "param": "options.%b"}}' % name.encode()
    sent = b'{"options":{"%b":1}}' % name.encode()
    assert SWITCHES[name] in refused(body, sent=sent, asked=b'{"options":{}}').message
    assert SWITCHES[name] not in refused(body, sent=b"{}", asked=b"{}").message


def test_an_unsupported_maximum_is_no_long_prompt() -> None:
    """OpenAI refuses `max_tokens` by this code for models that take the other member."""
    body = b'{"error": {"message": "m", "param": "max_tokens", "code": "unsupported_parameter"}}'
    sent = b'{"max_tokens":5,"max_completion_tokens":5}'
    call = UpstreamRequest(url="http://127.0.0.1:9/v1", headers={}, body=sent)
    asked = b'{"max_completion_tokens":9}'
    error = caller_error(
        OpenAI(), factories.deployment("d"), call, (400, {}), body=body, asked=asked
    )
    assert isinstance(error, InvalidRequest)
    assert "`output_limit`" in error.message


def test_a_callers_wish_by_another_word_is_its_own() -> None:
    """A message's wish becomes a member of the chat that it is sent as."""
    body = b'{"error": {"message": "Unknown parameter: parallel_tool_calls"}}'
    sent = b'{"parallel_tool_calls":false}'
    wished = b'{"tool_choice":{"type":"auto","disable_parallel_tool_use":true}}'
    assert "The gateway added" in refused(body, sent=sent, asked=b"{}").message
    assert "The gateway added" not in refused(body, sent=sent, asked=wished).message
