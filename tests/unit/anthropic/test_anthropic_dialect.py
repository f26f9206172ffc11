"""Requests and errors in the form of Anthropic's clients."""

from __future__ import annotations

import json

from gateway.domain.operation import Operation
from gateway.wire.anthropic.dialect import AnthropicDialect

DIALECT = AnthropicDialect()


def test_an_error_names_the_member_and_the_request() -> None:
    """Anthropic's SDKs show the type and the request id; the code and the member are ours."""
    body = DIALECT.error_body("invalid_request", "No.", param="max_tokens", request_id="r-1")
    assert json.loads(body) == {
        "type": "error",
        "error": {
            "type": "invalid_request_error",
            "message": "No.",
            "code": "invalid_request",
            "param": "max_tokens",
        },
        "request_id": "r-1",
    }


def test_an_error_event_ends_a_stream() -> None:
    """The SDKs raise for an event with this name."""
    event = DIALECT.error_event(Operation.MESSAGES, "overloaded", "Later.", request_id="r-1")
    name, data = event.removesuffix(b"\n\n").split(b"\n")
    assert name == b"event: error"
    assert json.loads(data.removeprefix(b"data: ")) == {
        "type": "error",
        "error": {"type": "overloaded_error", "message": "Later.", "code": "overloaded"},
        "request_id": "r-1",
    }
