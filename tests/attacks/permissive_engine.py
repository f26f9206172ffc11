"""An upstream that accepts everything and bills as much as it can: the adversary of a hold.

Each endpoint honours exactly one maximum, which the address names. It ignores every other member,
as compatible servers do. It answers each prompt of a list `n` times. One byte is one token, and a
picture costs as much as a provider charges for a large one. It may read a text in one of Unicode's
normal forms, and reads a query again with each document. `thinks` thinks as Claude between tools:
a budget that is not below the maximum makes the window the maximum. Tools are written into the
prompt as indented JSON, and rejected predicted tokens are billed. Its ledger has its bills.
"""

from __future__ import annotations

import json
import re
import threading
import unicodedata
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

WINDOW = 1024  # tokens, for addresses that name a window
UNBOUNDED = 4000  # tokens of an answer without any limit
PICTURE_TOKENS = 1500
FORMS = {"NFC", "NFD", "NFKC", "NFKD"}
WITHOUT_OUTPUT = ("embeddings", "rerank", "score")
TOOL_PREFACE = 400
# Other servers' names of the number of answers: llama.cpp's, and two that no schema lists.
OTHER_CHOICES = ("n_cmpl", "num_completions", "num_generations")
CREATED = 1_764_000_000
_PIECES = re.compile(r"\s+|\w|[^\w\s]")


@dataclass
class Bill:
    """One answered request: the body and the engine's counts."""

    path: str
    body: dict[str, Any]
    input_tokens: int
    output_tokens: int


@dataclass
class Engine:
    """A running engine. `url` takes modes: `url("max_tokens", "window", "NFKC")` honours that
    member, has a window and reads texts in that form.
    """

    port: int
    bills: list[Bill] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)

    def url(self, member: str, *modes: str) -> str:
        """Return the address of an engine whose chats honour `member`; `strict` refuses both
        members.
        """
        return f"http://127.0.0.1:{self.port}/{'+'.join((member, *modes))}/v1"

    def forget(self) -> None:
        """Empty its ledger."""
        self.bills, self.refused = [], []


@contextmanager
def running_engine() -> Iterator[Engine]:
    """Serve an engine until the end of the block."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    server.daemon_threads = True
    server.engine = Engine(server.server_port)  # type: ignore[attr-defined]
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield server.engine  # type: ignore[attr-defined]
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        engine: Engine = self.server.engine  # type: ignore[attr-defined]
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        mode, _, path = self.path[1:].partition("/v1/")
        modes = mode.split("+")
        both = {"max_tokens", "max_completion_tokens"}
        if (
            "strict" in modes
            and path.startswith("chat")
            and (len(both & body.keys()) > 1 or (both & body.keys()) - {modes[0]})
        ):
            engine.refused.append(self.path)
            self._send(400, json.dumps({"error": {"message": "one maximum alone"}}).encode())
            return
        bill = _bill(path, body, modes)
        engine.bills.append(bill)
        answers = [_answer(path, bill, is_stream=bool(body.get("stream")))]
        kind = "text/event-stream" if body.get("stream") else "application/json"
        self._send(200, b"".join(answers), kind)

    def _send(self, status: int, body: bytes, kind: str = "application/json") -> None:
        self.send_response(status)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *arguments: Any) -> None:
        """Print nothing."""


def _bill(path: str, body: dict[str, Any], modes: list[str]) -> Bill:
    window = WINDOW if "window" in modes else None
    for form in FORMS & set(modes):
        body = _in_form(body, form)
    member = {"chat/completions": modes[0], "responses": "max_output_tokens"}.get(
        path, "max_tokens"
    )
    prompts = _prompts(path, body)
    read = [_tokens(prompt) + _rendered(body) for prompt in prompts]
    if window is not None:
        read = [min(tokens, window) for tokens in read]
    if path in WITHOUT_OUTPUT:
        return Bill(path, body, sum(read), 0)
    asked = body.get(member)
    each = asked if isinstance(asked, int) and asked > 0 else (window or UNBOUNDED)
    if window is not None:
        each = min(each, window)
    if "thinks" in modes and _budget(body) >= each:
        each = WINDOW
    each += _tokens((body.get("prediction") or {}).get("content", ""))
    others = [body.get(name) or 1 for name in OTHER_CHOICES]
    times = max(body.get("n") or 1, body.get("best_of") or 1, *others)
    return Bill(path, body, sum(read), each * times * len(prompts))


def _budget(body: dict[str, Any]) -> int:
    """Return the budget of thinking, 0 without one."""
    return int((body.get("thinking") or {}).get("budget_tokens") or 0)


def _prompts(path: str, body: dict[str, Any]) -> list[Any]:
    """Return the prompts, each of which is answered separately."""
    if path in ("chat/completions", "messages"):
        return [[body.get("system"), body.get("messages")]]
    if path in ("rerank", "score"):
        first, second = ("query", "documents") if path == "rerank" else ("text_1", "text_2")
        return [[body[first], text] for text in body.get(second) or body["texts"]]
    names = ("prompt",) if path == "completions" else ("input", "inputs", "content")
    prompt = next((body[name] for name in names if body.get(name)), None)
    if isinstance(prompt, list) and prompt and not isinstance(prompt[0], int):
        return [prompt] if isinstance(prompt[0], dict) else prompt
    return [prompt]


def _in_form(value: Any, form: str) -> Any:
    """Return a value with each of its texts in one of Unicode's normal forms."""
    if isinstance(value, str):
        return unicodedata.normalize(form, value)  # type: ignore[arg-type]
    if isinstance(value, list):
        return [_in_form(one, form) for one in value]
    if isinstance(value, dict):
        return {_in_form(name, form): _in_form(one, form) for name, one in value.items()}
    return value


def _tokens(value: Any) -> int:
    """Return one token for each byte of text and each token id; a picture counts as a provider
    charges it.
    """
    if isinstance(value, str):
        return len(value.encode())
    if isinstance(value, int):
        return 1
    if isinstance(value, list):
        return sum(map(_tokens, value)) + 2
    if isinstance(value, dict):
        if "image_url" in value or "file" in value or "file_data" in value:
            return PICTURE_TOKENS
        if value.get("type") in ("image", "document"):  # Anthropic's
            return PICTURE_TOKENS
        if value.get("type") == "tool_use":
            return len(_PIECES.findall(json.dumps(value, indent=4)))
        if "tool_calls" in value:
            return len(_PIECES.findall(json.dumps(value["tool_calls"])))
        return sum(map(_tokens, value.values()))
    return 0


def _rendered(body: dict[str, Any]) -> int:
    """Return a chat template's rendering of the tools."""
    if not body.get("tools"):
        return 0
    return TOOL_PREFACE + len(_PIECES.findall(json.dumps(body["tools"], indent=4)))


def _answer(path: str, bill: Bill, *, is_stream: bool) -> bytes:
    usage: dict[str, Any]
    if path == "messages":
        return _message(bill, is_stream=is_stream)
    if path == "responses":
        usage = {"input_tokens": bill.input_tokens, "output_tokens": bill.output_tokens}
        usage["total_tokens"] = sum(usage.values())
        response = {
            "id": "resp_1",
            "object": "response",
            "created_at": CREATED,
            "model": "m",
            "status": "completed",
            "output": [],
            "usage": usage,
        }
        if not is_stream:
            return json.dumps(response).encode()
        event = {"type": "response.completed", "sequence_number": 0, "response": response}
        return f"event: response.completed\ndata: {json.dumps(event)}\n\n".encode()
    usage = {"prompt_tokens": bill.input_tokens, "completion_tokens": bill.output_tokens}
    usage["total_tokens"] = sum(usage.values())
    if path == "embeddings":
        data = [{"object": "embedding", "index": 0, "embedding": [0.5]}]
        return json.dumps({"object": "list", "model": "m", "data": data, "usage": usage}).encode()
    if path == "score":
        scores = [{"object": "score", "index": 0, "score": 0.5}]
        return json.dumps({"object": "list", "model": "m", "data": scores, "usage": usage}).encode()
    if path == "rerank":
        results = [{"index": 0, "document": {"text": "t"}, "relevance_score": 0.5}]
        return json.dumps({"id": "r-1", "model": "m", "results": results, "usage": usage}).encode()
    is_chat = path == "chat/completions"
    frame = {"id": "c-1", "created": CREATED, "model": "m"}
    if not is_stream:
        choice: dict[str, Any] = {"index": 0, "finish_reason": "length", "logprobs": None}
        choice |= {"message": {"role": "assistant", "content": "t"}} if is_chat else {"text": "t"}
        kind = "chat.completion" if is_chat else "text_completion"
        whole = {**frame, "object": kind, "choices": [choice], "usage": usage}
        return json.dumps(whole).encode()
    part: dict[str, Any] = {"delta": {"content": "t"}} if is_chat else {"text": "t"}
    choice = {"index": 0, "finish_reason": "length", **part}
    frame["object"] = "chat.completion.chunk" if is_chat else "text_completion"
    chunks = [{**frame, "choices": [choice]}, {**frame, "choices": [], "usage": usage}]
    return (
        b"".join(b"data: %b\n\n" % json.dumps(chunk).encode() for chunk in chunks)
        + b"data: [DONE]\n\n"
    )


def _message(bill: Bill, *, is_stream: bool) -> bytes:
    """Return an answer in Anthropic's dialect."""
    usage = {"input_tokens": bill.input_tokens, "output_tokens": bill.output_tokens}
    text = {"type": "text", "text": "t"}
    end = {"stop_reason": "max_tokens", "stop_sequence": None}
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
