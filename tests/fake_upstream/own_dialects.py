"""A fake upstream of the dialects that no caller speaks: Gemini, Ollama's own, Triton's generate.

The model's name selects its behaviour: `plain`, `tools`, `cut` (after its first piece), `error`. It
keeps what it generated for each request, so that a ledger can be reconciled to the token.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

PROMPT_TOKENS, THOUGHT_TOKENS = 11, 5
WORDS = ("one", " two", " three")


@dataclass
class OwnDialects:
    """A running fake. `asked` are the paths and bodies in their order; `generated` the tokens of
    prompt and answer that it generated for each.
    """

    url: str
    asked: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    generated: list[tuple[int, int]] = field(default_factory=list)


def gemini(model: str) -> list[dict[str, Any]]:
    """Return the pieces of an answer: thoughts, text, and a call if the model is `tools`."""
    pieces: list[dict[str, Any]] = []
    for at, word in enumerate(WORDS):
        usage = {
            "promptTokenCount": PROMPT_TOKENS,
            "cachedContentTokenCount": 4,
            "thoughtsTokenCount": THOUGHT_TOKENS,
            "candidatesTokenCount": at + 1,
            "totalTokenCount": PROMPT_TOKENS + THOUGHT_TOKENS + at + 1,
        }
        candidate: dict[str, Any] = {"index": 0, "content": {"parts": [{"text": word}]}}
        if at == len(WORDS) - 1:
            candidate["finishReason"] = "STOP"
            if model == "tools":
                call = {"functionCall": {"name": "f", "args": {"a": 1}}, "thoughtSignature": "S+/="}
                candidate["content"]["parts"] = [call]
        pieces.append({"candidates": [candidate], "usageMetadata": usage, "responseId": "resp"})
    return pieces


def ollama() -> list[dict[str, Any]]:
    """Return the lines of an answer."""
    words = [{"message": {"role": "assistant", "content": word}, "done": False} for word in WORDS]
    end = {
        "message": {"role": "assistant", "content": ""},
        "done": True,
        "done_reason": "stop",
        "total_duration": 9,
        "prompt_eval_count": PROMPT_TOKENS,
        "eval_count": len(WORDS),
    }
    return [{"created_at": "2026-11-24T10:00:00Z", **one} for one in (*words, end)]


def triton() -> list[dict[str, Any]]:
    """Return the pieces of an answer, with the counts of each."""
    return [
        {"text_output": word, "num_input_tokens": PROMPT_TOKENS, "num_output_tokens": 1}
        for word in WORDS
    ]


class _Handler(BaseHTTPRequestHandler):
    """Answers in the dialect of the path."""

    protocol_version = "HTTP/1.1"
    fake: OwnDialects

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.fake.asked.append((self.path, body))
        if "/api/chat" in self.path:
            self._answer(str(body["model"]), ollama(), body["stream"], b"%b\n")
        elif "/v2/models/" in self.path:
            model = self.path.split("/")[3]
            self._answer(model, triton(), body["stream"], b"data: %b\n\n")
        else:
            model = self.path.rpartition("/")[2].partition(":")[0]
            self._answer(model, gemini(model), "stream" in self.path, b"data: %b\r\n\r\n")

    def _answer(
        self, model: str, pieces: list[dict[str, Any]], is_stream: bool, framing: bytes
    ) -> None:
        if model == "error":
            detail = {"@type": "google.rpc.RetryInfo", "retryDelay": "7s"}
            error = {"code": 429, "message": "m", "details": [detail]}
            self.fake.generated.append((0, 0))
            self._send(429, json.dumps({"error": error}).encode())
            return
        sent = pieces[:1] if model == "cut" else pieces
        words = min(len(sent), len(WORDS))
        thoughts = THOUGHT_TOKENS if "usageMetadata" in pieces[0] else 0
        self.fake.generated.append((PROMPT_TOKENS, words + thoughts))
        if not is_stream:
            self._send(200, json.dumps(_joined(pieces)).encode())
            return
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        for one in sent:
            data = framing % json.dumps(one).encode()
            self.wfile.write(b"%x\r\n%b\r\n" % (len(data), data))
        self.wfile.write(b"" if model == "cut" else b"0\r\n\r\n")
        self.close_connection = model == "cut"

    def _send(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Print nothing."""


def _joined(pieces: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the whole answer of an answer's pieces."""
    last = pieces[-1]
    if "message" in last:
        return {**last, "message": {"role": "assistant", "content": "".join(WORDS)}}
    if "text_output" in last:
        return {**last, "text_output": "".join(WORDS), "num_output_tokens": len(WORDS)}
    parts = [part for one in pieces for part in one["candidates"][0]["content"]["parts"]]
    return {**last, "candidates": [{**last["candidates"][0], "content": {"parts": parts}}]}


@contextmanager
def own_dialects() -> Iterator[OwnDialects]:
    """Run the fake on a free port of this machine."""

    class Handler(_Handler):
        """Answers for this fake alone."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    fake = Handler.fake = OwnDialects(f"http://127.0.0.1:{server.server_port}")
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield fake
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
