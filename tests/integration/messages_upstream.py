"""A small upstream of Anthropic's messages. The model's name selects the answer; each request is
kept as it came.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tests.integration.recording_upstream import Answer, Received, RecordingUpstream

GOLDEN = Path(__file__).parents[1] / "golden" / "anthropic"
USAGE = {
    "input_tokens": 10,
    "cache_creation_input_tokens": 500,
    "cache_read_input_tokens": 1000,
    "cache_creation": {"ephemeral_5m_input_tokens": 200, "ephemeral_1h_input_tokens": 300},
    "service_tier": "standard",
    "output_tokens": 1,
}
FINAL = {**USAGE, "output_tokens": 12, "output_tokens_details": {"thinking_tokens": 5}}
THINKING = {"type": "thinking", "thinking": "hm", "signature": "EqQB+/="}
MESSAGE = {
    "id": "msg_01",
    "type": "message",
    "role": "assistant",
    "model": "claude-real",
    "content": [THINKING, {"type": "text", "text": "Hi you"}],
    "stop_reason": "end_turn",
    "stop_sequence": None,
    "usage": FINAL,
}
ERROR = {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}


def named(*events: Mapping[str, Any]) -> bytes:
    """Return events as Anthropic sends them."""
    return b"".join(
        b"event: %s\ndata: %s\n\n" % (event["type"].encode(), json.dumps(event).encode())
        for event in events
    )


START = {"type": "message_start", "message": {**MESSAGE, "content": [], "usage": USAGE}}
TEXT = [
    {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
    {"type": "ping"},
    {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "Hi you"}},
]
END = [
    {"type": "content_block_stop", "index": 0},
    {
        "type": "message_delta",
        "delta": {"stop_reason": "end_turn", "stop_sequence": None},
        "usage": {"output_tokens": 12, "output_tokens_details": {"thinking_tokens": 5}},
    },
    {"type": "message_stop"},
]
STREAMS = {
    "claude": named(START, *TEXT, *END),
    "cut": named(START, *TEXT),
    "cut-early": named(START),
    "error": named(START, *TEXT, ERROR),
    "tools": (GOLDEN / "chat-stream-tools" / "upstream.sse").read_bytes(),
}


class MessagesUpstream(RecordingUpstream):
    """The server."""

    def __init__(self) -> None:
        super().__init__()
        self.url += "/v1"

    def answer_to(self, request: Received) -> Answer:
        """Return the answer of the model in the body."""
        asked = json.loads(request.body)
        model = asked["model"]
        if "/count_tokens" in request.path:
            return Answer(200, "application/json", b'{"input_tokens":2095}')
        if model.isdigit():
            return Answer(int(model), "application/json", json.dumps(ERROR).encode())
        if asked.get("stream"):
            return Answer(200, "text/event-stream", STREAMS[model])
        return Answer(200, "application/json", json.dumps(MESSAGE).encode())


def messages_upstream() -> Iterator[MessagesUpstream]:
    """Yield a running upstream until the fixture ends."""
    upstream = MessagesUpstream()
    yield upstream
    upstream.close()
