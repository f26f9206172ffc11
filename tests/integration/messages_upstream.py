"""A small upstream of Anthropic's messages. The model's name selects the answer; each request is
kept as it came.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from msgspec import Struct

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


class Received(Struct, frozen=True):
    """One request; header names are in lower case."""

    path: str
    headers: dict[str, str]
    body: bytes


class MessagesUpstream:
    """The server."""

    def __init__(self) -> None:
        self.received: list[Received] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                headers = {name.lower(): value for name, value in self.headers.items()}
                outer.received.append(Received(self.path, headers, body))
                status, kind, content = answer_to(self.path, json.loads(body))
                self.send_response(status)
                self.send_header("content-type", kind)
                if kind != "text/event-stream":
                    self.send_header("content-length", str(len(content)))
                self.send_header("connection", "close")
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, format: str, *args: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/v1"
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop listening."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(5)


def answer_to(path: str, asked: Mapping[str, Any]) -> tuple[int, str, bytes]:
    """Return status, content type and body of an answer."""
    model = asked["model"]
    if "/count_tokens" in path:
        return 200, "application/json", b'{"input_tokens":2095}'
    if model.isdigit():
        return int(model), "application/json", json.dumps(ERROR).encode()
    if asked.get("stream"):
        return 200, "text/event-stream", STREAMS[model]
    return 200, "application/json", json.dumps(MESSAGE).encode()


def messages_upstream() -> Iterator[MessagesUpstream]:
    """Yield a running upstream until the fixture ends."""
    upstream = MessagesUpstream()
    yield upstream
    upstream.close()
