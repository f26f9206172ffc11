"""A provider that runs its tools in as many rounds as it may, and bills each one honestly: it reads
the whole window, writes the whole maximum and calls a tool.

The address names the limits that it obeys: `max_tool_calls`, `max_turns`, `max_uses`; `deaf` obeys
none. Its ledger has its bills.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

WINDOW = 1000
DEAF_ROUNDS = 30  # its own limit, if it obeys no other
LOOP_ROUNDS = 10  # Anthropic's own limit
PARALLEL_CALLS = 3  # in one turn, unless they are off
OF_CALLER = ("function", "custom", "computer", "local_shell", "namespace")
CREATED = 1_764_000_000
_ANNOTATION = {"type": "url_citation", "url_citation": {"url": "https://example.org"}}


@dataclass
class Bill:
    """One answered request: the body and the bill for it."""

    path: str
    body: dict[str, Any]
    input_tokens: int
    output_tokens: int
    calls: int


@dataclass
class Provider:
    """A running provider."""

    port: int
    bills: list[Bill] = field(default_factory=list)

    def url(self, *modes: str) -> str:
        """Return the address at which it obeys these limits."""
        return f"http://127.0.0.1:{self.port}/{'+'.join(modes)}/v1"


@contextmanager
def running_provider() -> Iterator[Provider]:
    """Serve a provider until the end of the block."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    server.daemon_threads = True
    server.provider = Provider(server.server_port)  # type: ignore[attr-defined]
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield server.provider  # type: ignore[attr-defined]
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        mode, _, path = self.path[1:].partition("/v1/")
        bill = _bill(path.partition("?")[0], body, mode.split("+"))
        self.server.provider.bills.append(bill)  # type: ignore[attr-defined]
        answer = _answer(bill)
        kind = "text/event-stream" if body.get("stream") else "application/json"
        self.send_response(200)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *arguments: Any) -> None:
        """Print nothing."""


def _bill(path: str, body: dict[str, Any], modes: list[str]) -> Bill:
    """Return the bill of a request that runs all rounds that its limits allow."""
    rounds, calls = _rounds(path, body, modes)
    maximum = {"responses": "max_output_tokens", "messages": "max_tokens"}.get(
        path, "max_completion_tokens"
    )
    asked = body.get(maximum)
    most = asked if isinstance(asked, int) else WINDOW
    output = most if path == "responses" and "max_tool_calls" in modes else most * (rounds + 1)
    return Bill(path, body, WINDOW * (rounds + 1), output, calls)


def _rounds(path: str, body: dict[str, Any], modes: list[str]) -> tuple[int, int]:
    """Return the rounds of a request, and the calls in them."""
    tools = [one for one in body.get("tools") or () if one["type"] not in OF_CALLER]
    if path == "chat/completions":
        return (1, 1) if "web_search_options" in body or "search" in body["model"] else (0, 0)
    if not tools:
        return 0, 0
    if "max_tool_calls" in modes:
        rounds = min(body.get("max_tool_calls") or DEAF_ROUNDS, DEAF_ROUNDS)
        return rounds, rounds
    if "max_turns" in modes:
        rounds = min(body.get("max_turns") or DEAF_ROUNDS, DEAF_ROUNDS)
        return rounds, rounds * (1 if body.get("parallel_tool_calls") is False else PARALLEL_CALLS)
    if "max_uses" in modes:
        uses = sum(one.get("max_uses") or LOOP_ROUNDS for one in tools)
        return min(uses, LOOP_ROUNDS), min(uses, LOOP_ROUNDS)
    return DEAF_ROUNDS, DEAF_ROUNDS


def _answer(bill: Bill) -> bytes:
    """Return the answer to a billed request, in its dialect."""
    is_stream = bool(bill.body.get("stream"))
    if bill.path == "messages":
        return _message(bill, is_stream=is_stream)
    if bill.path == "responses":
        return _response(bill, is_stream=is_stream)
    usage = {"prompt_tokens": bill.input_tokens, "completion_tokens": bill.output_tokens}
    usage["total_tokens"] = sum(usage.values())
    annotations = [_ANNOTATION] if bill.calls else []
    message = {"role": "assistant", "content": "found", "annotations": annotations}
    choice = {"index": 0, "finish_reason": "stop", "logprobs": None}
    frame = {"id": "c-1", "created": CREATED, "model": "m"}
    if not is_stream:
        whole = {**frame, "object": "chat.completion", "usage": usage}
        return json.dumps({**whole, "choices": [{**choice, "message": message}]}).encode()
    frame["object"] = "chat.completion.chunk"
    chunks = [
        {**frame, "choices": [{**choice, "delta": message}]},
        {**frame, "choices": [], "usage": usage},
    ]
    return (
        b"".join(b"data: %b\n\n" % json.dumps(chunk).encode() for chunk in chunks)
        + b"data: [DONE]\n\n"
    )


def _response(bill: Bill, *, is_stream: bool) -> bytes:
    """Return a response, with an item for each call."""
    usage = {"input_tokens": bill.input_tokens, "output_tokens": bill.output_tokens}
    items = [
        {
            "type": "web_search_call",
            "id": f"ws_{number}",
            "status": "completed",
            "action": {"type": "search", "query": "q"},
        }
        for number in range(bill.calls)
    ]
    part = {"type": "output_text", "text": "found", "annotations": []}
    message = {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed"}
    response = {
        "id": "resp_1",
        "object": "response",
        "created_at": CREATED,
        "model": "m",
        "status": "completed",
        "output": [*items, {**message, "content": [part]}],
        "usage": {**usage, "total_tokens": sum(usage.values())},
    }
    if not is_stream:
        return json.dumps(response).encode()
    event = {"type": "response.completed", "sequence_number": 0, "response": response}
    return f"event: response.completed\ndata: {json.dumps(event)}\n\n".encode()


def _message(bill: Bill, *, is_stream: bool) -> bytes:
    """Return an answer in Anthropic's dialect, which counts the searches in its usage."""
    usage: dict[str, Any] = {
        "input_tokens": bill.input_tokens,
        "output_tokens": bill.output_tokens,
        "server_tool_use": {"web_search_requests": bill.calls, "web_fetch_requests": 0},
    }
    text = {"type": "text", "text": "found"}
    end = {"stop_reason": "end_turn", "stop_sequence": None}
    message = {"id": "msg_1", "type": "message", "role": "assistant", "model": "m"}
    if not is_stream:
        return json.dumps({**message, "content": [text], **end, "usage": usage}).encode()
    begun = {**message, "content": [], "stop_reason": None, "stop_sequence": None}
    events: list[dict[str, Any]] = [
        {"type": "message_start", "message": {**begun, "usage": {**usage, "output_tokens": 1}}},
        {"type": "content_block_start", "index": 0, "content_block": {**text, "text": ""}},
        {"type": "content_block_delta", "index": 0, "delta": {**text, "type": "text_delta"}},
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": end, "usage": usage},
        {"type": "message_stop"},
    ]
    return b"".join(
        b"event: %b\ndata: %b\n\n" % (event["type"].encode(), json.dumps(event).encode())
        for event in events
    )
