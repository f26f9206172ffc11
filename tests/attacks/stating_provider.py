"""A provider that states its service tier and its place as the case in its address says: in a
header, in the body, in one event of a stream, twice, or nowhere.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tests.running_server import address_of, running

INPUT, OUTPUT = 1000, 100
TIER_HEADER = "x-gemini-service-tier"


@dataclass(frozen=True, slots=True, kw_only=True)
class Statement:
    """The statements of one case beside its counts: headers, members of the usage, and members of
    the answer, or of its first event alone.
    """

    headers: Mapping[str, str] = field(default_factory=dict)
    usage: Mapping[str, Any] = field(default_factory=dict)
    members: Mapping[str, Any] = field(default_factory=dict)
    in_first_event: bool = False


NOTHING = Statement()
CASES: Mapping[str, Statement] = {
    "silent": NOTHING,
    "header-standard": Statement(headers={TIER_HEADER: "standard"}),
    "header-flex": Statement(headers={TIER_HEADER: "flex"}),
    "header-priority": Statement(headers={TIER_HEADER: "PRIORITY"}),
    "body-standard": Statement(usage={"serviceTier": "standard"}),
    "traffic-standard": Statement(usage={"trafficType": "ON_DEMAND"}),
    "two-words": Statement(headers={TIER_HEADER: "standard"}, usage={"serviceTier": "priority"}),
    "one-word-twice": Statement(headers={TIER_HEADER: "flex"}, usage={"serviceTier": "FLEX"}),
    "first-default": Statement(members={"service_tier": "default"}, in_first_event=True),
    "last-flex": Statement(members={"service_tier": "flex"}),
    "untimed-writes": Statement(
        usage={"cache_creation_input_tokens": 500, "inference_geo": "global"}
    ),
    "tier-twice": Statement(members={"service_tier": "flex"}, usage={"service_tier": "default"}),
    "tier-object": Statement(members={"service_tier": {"name": "flex"}}),
    "tier-in-usage": Statement(usage={"service_tier": "flex"}),
    "traffic-else": Statement(
        usage={"serviceTier": "standard", "trafficType": "ON_DEMAND_PRIORITY"}
    ),
    "geo-us": Statement(usage={"inference_geo": "us"}),
    "geo-global": Statement(usage={"inference_geo": "global"}),
    "geo-none": Statement(usage={"inference_geo": "not_available"}),
    "geo-eu": Statement(usage={"inference_geo": "eu"}),
    "geo-us-fast": Statement(usage={"inference_geo": "us", "speed": "fast"}),
}


def _gemini(stated: Statement) -> list[dict[str, Any]]:
    counts = {"promptTokenCount": INPUT, "candidatesTokenCount": OUTPUT}
    part = {"content": {"role": "model", "parts": [{"text": "hey"}]}, "index": 0}
    usage = {**counts, "totalTokenCount": INPUT + OUTPUT, **stated.usage}
    last = {"candidates": [{**part, "finishReason": "STOP"}], "usageMetadata": usage}
    return [{"responseId": "r1", **last, **stated.members}]


def _chat(stated: Statement) -> list[dict[str, Any]]:
    usage = {"prompt_tokens": INPUT, "completion_tokens": OUTPUT, **stated.usage}
    head = {"id": "c1", "object": "chat.completion.chunk", "created": 1, "model": "m"}
    said = {"index": 0, "delta": {"role": "assistant", "content": "hey"}, "finish_reason": None}
    end = {"index": 0, "delta": {}, "finish_reason": "stop"}
    first, last = ({**head, "choices": [one]} for one in (said, end))
    own = first if stated.in_first_event else last
    own.update(stated.members)
    return [first, last, {**head, "choices": [], "usage": usage}]


def _messages(stated: Statement) -> list[dict[str, Any]]:
    usage = {"input_tokens": INPUT, "output_tokens": OUTPUT, **stated.usage}
    message = {"id": "m1", "type": "message", "role": "assistant", "model": "m", "content": []}
    start = {**message, "usage": {**usage, "output_tokens": 1}}
    text = {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "a"}}
    block = {
        "type": "content_block_start",
        "index": 0,
        "content_block": {"type": "text", "text": ""},
    }
    end = {"stop_reason": "end_turn", "stop_sequence": None}
    return [
        {"type": "message_start", "message": start},
        block,
        text,
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": end, "usage": {"output_tokens": OUTPUT}},
        {"type": "message_stop"},
    ]


def _whole(path: str, stated: Statement) -> dict[str, Any]:
    """Return the plain answer of the dialect that a path belongs to."""
    if path.endswith("/messages"):
        usage = {"input_tokens": INPUT, "output_tokens": OUTPUT, **stated.usage}
        content = [{"type": "text", "text": "hey"}]
        head = {"id": "m1", "type": "message", "role": "assistant", "model": "m"}
        return {**head, "content": content, "stop_reason": "end_turn", "usage": usage}
    if path.endswith("/chat/completions"):
        usage = {"prompt_tokens": INPUT, "completion_tokens": OUTPUT, **stated.usage}
        message = {"role": "assistant", "content": "hey"}
        choices = [{"index": 0, "message": message, "finish_reason": "stop"}]
        head = {"id": "c1", "object": "chat.completion", "created": 1, "model": "m"}
        return {**head, "choices": choices, "usage": usage, **stated.members}
    return _gemini(stated)[0]


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        """Answer as the first part of the path says, in the dialect of the rest."""
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        path = self.path.split("?")[0]
        stated = CASES[path.split("/")[1]]
        if body.get("stream") or path.endswith(":streamGenerateContent"):
            kind, answer = "text/event-stream", _events(path, stated)
        else:
            kind, answer = "application/json", json.dumps(_whole(path, stated)).encode()
        self.send_response(200)
        length = {"content-type": kind, "content-length": str(len(answer))}
        for name, value in {**stated.headers, **length}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, format: str, *values: Any) -> None:
        """Print nothing."""


def _events(path: str, stated: Statement) -> bytes:
    """Return the streamed answer of the dialect that a path belongs to."""
    if path.endswith("/messages"):
        return b"".join(
            f"event: {one['type']}\ndata: {json.dumps(one)}\n\n".encode()
            for one in _messages(stated)
        )
    is_chat = path.endswith("/chat/completions")
    events = _chat(stated) if is_chat else _gemini(stated)
    sent = b"".join(f"data: {json.dumps(one)}\n\n".encode() for one in events)
    return sent + b"data: [DONE]\n\n" if is_chat else sent


@contextmanager
def stating() -> Iterator[str]:
    """Yield the address of a running provider; a path begins with the name of a case."""
    with running(ThreadingHTTPServer(("127.0.0.1", 0), _Handler)) as server:
        yield address_of(server)
