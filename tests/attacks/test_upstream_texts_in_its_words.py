"""Upstreams that put a text into the words that are stored beside an answer: its finish reason, its
id, its service tier.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.fakes import FakeUpstreamAnswer
from tests.unit.request.test_request_service import body, rest_of, stage

TEXT = "Here is the patient's file: born 1970"
USAGE = {"prompt_tokens": 10, "completion_tokens": 5}


def answer(*, finish: str = "stop", **members: Any) -> bytes:
    """Return a whole answer, with more members."""
    choice = {"index": 0, "message": {"content": "Hi"}, "finish_reason": finish}
    return json.dumps({"model": "m-1", "choices": [choice], "usage": USAGE, **members}).encode()


@pytest.mark.parametrize("is_stream", [True, False])
async def test_no_text_is_stored_as_a_word(is_stream: bool) -> None:
    whole = answer(id=TEXT, finish=TEXT, service_tier=TEXT)
    if is_stream:
        whole = b"data: " + whole.replace(b'"message"', b'"delta"') + b"\n\ndata: [DONE]\n\n"
    on = stage(FakeUpstreamAnswer([whole]))
    got = await on.answer(body(stream=is_stream))
    if is_stream:
        await rest_of(got)
    event = on.event
    assert (event.upstream_request_id, event.finish_reason, event.service_tier) == (None, "?", "?")


@pytest.mark.parametrize(
    "given",
    [
        "chatcmpl-BxY1234567890abcdef",
        "chatcmpl-1c0d5a0e-7f8e-4b0b-9d0a-1a2b3c4d5e6f",
        "gen-1732000000-AbCdEfGh",
        "msg_01XFDUDYJgAACzvnptvVoYEL",
        "resp_67ccd2bed1ec8190b14f964abc0542670bb6a6b452d3795b",
        "resp_bGl0ZWxsbTpjdXN0b20=",
        "0195f0b9c1e07d4e9f4c",
        "nv2zTfL-4Yz4Ld-8f1a2b3c4d5e6f70",
    ],
)
async def test_the_ids_of_providers_stay(given: str) -> None:
    on = stage(FakeUpstreamAnswer([answer(id=given, finish="model_context_window_exceeded")]))
    await on.answer(body())
    assert on.event.upstream_request_id == given
    assert on.event.finish_reason == "model_context_window_exceeded"
