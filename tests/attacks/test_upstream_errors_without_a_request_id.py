"""The error event of a stream of messages had no request id if the upstream's error had ended it,
as every other error of the gateway has: a caller could not name the request.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.domain.ids import text_of
from gateway.domain.operation import Operation
from tests.attacks.every_target import ASKED, target
from tests.fakes import FakeUpstreamAnswer
from tests.unit.request.test_request_service import once, rest_of

WORD = {"type": "text_delta", "text": "word"}
STREAMS: dict[str, list[dict[str, Any]]] = {
    "anthropic": [
        {"type": "content_block_delta", "index": 0, "delta": WORD},
        {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}},
    ],
    "groq": [
        {"choices": [{"index": 0, "delta": {"content": "word"}}]},
        {"error": {"message": "boom", "type": "server_error"}},
    ],
    "gemini": [
        {"candidates": [{"index": 0, "content": {"parts": [{"text": "word"}]}}]},
        {"error": {"code": 503, "message": "boom", "status": "UNAVAILABLE"}},
    ],
}


@pytest.mark.parametrize("provider", STREAMS)
async def test_an_error_event_names_the_request(provider: str, tmp_path: Any) -> None:
    """Of the same dialect and translated."""
    sent = [b"data: " + json.dumps(one).encode() + b"\n\n" for one in STREAMS[provider]]
    on = once(FakeUpstreamAnswer(sent))
    asked = json.dumps({"model": "assistant", "stream": True, **ASKED[Operation.MESSAGES]}).encode()
    one = target(provider, tmp_path)
    answer = await on.answer(asked, one, operation=Operation.MESSAGES)
    lines = (await rest_of(answer)).splitlines()
    events = [json.loads(line[6:]) for line in lines if line.startswith(b"data: {")]
    (error,) = [event for event in events if event["type"] == "error"]
    assert error["request_id"] == text_of(on.event.request_id)
