"""Error bodies: four members always, every upstream's shape read, no message ever trusted."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.wire.openai.error import (
    MAX_MESSAGE_CHARS,
    ErrorBody,
    error_body,
    error_event,
    read_error,
)


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (
            b'{"error":{"message":"m","type":"t","param":"p","code":"c"}}',
            ErrorBody("m", "t", "p", "c"),
        ),
        (
            b'{"error":{"message":"m","type":"NotFoundError","param":"model","code":404}}',
            ErrorBody("m", "NotFoundError", "model", "404"),
        ),
        (
            b'{"object":"error","message":"m","type":"t","param":null,"code":400}',
            ErrorBody("m", "t", None, "400"),
        ),
        (b'{"error":"Unauthorized"}', ErrorBody("Unauthorized", None, None, None)),
        (b'{"error":{}}', ErrorBody("The upstream gave no reason.", None, None, None)),
        (b"[1]", ErrorBody("[1]", None, None, None)),
        (b"<html>", ErrorBody("The upstream gave no readable reason.", None, None, None)),
        (b"", ErrorBody("The upstream gave no readable reason.", None, None, None)),
    ],
)
def test_every_shape_of_an_error_is_read(body: bytes, expected: ErrorBody) -> None:
    """OpenAI nests it, TensorRT-LLM sends it flat, vLLM's key check sends a word and its code is a
    number.
    """
    assert read_error(body) == expected


@given(st.binary(max_size=60))
def test_reading_an_error_never_fails(body: bytes) -> None:
    """An upstream that fails may say anything."""
    assert len(read_error(body).message) <= MAX_MESSAGE_CHARS


def test_an_error_body_has_all_four_members() -> None:
    """Official SDKs show `message`, `type`, `param` and `code`; one that is missing loses the
    text.
    """
    assert json.loads(error_body("model_not_found", "m", param="model")) == {
        "error": {
            "message": "m",
            "type": "invalid_request_error",
            "param": "model",
            "code": "model_not_found",
        }
    }
    assert json.loads(error_body("overloaded", "m"))["error"]["type"] == "server_error"


def test_the_event_that_ends_a_broken_stream() -> None:
    """Official clients raise on a member `error`, in a chunk as in an event of responses."""
    assert (
        json.loads(error_event("upstream_error", "m", is_responses=False)[6:])["error"]["code"]
        == "upstream_error"
    )
    name, data = error_event("upstream_error", "m", is_responses=True).split(b"\n")[:2]
    assert name == b"event: error"
    assert json.loads(data[6:]) == {
        "type": "error",
        "code": "upstream_error",
        "message": "m",
        "param": None,
        "error": {
            "message": "m",
            "type": "upstream_error",
            "param": None,
            "code": "upstream_error",
        },
        "sequence_number": 0,
    }
