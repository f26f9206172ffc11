"""A model server that speaks chat completions, responses and messages, with tools and streams, and
writes down each answer that it gave.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

from tests.clients.wording import PATHS, Dialect, Reply, Usage, events, reply_to, whole

COUNT_TOKENS = "/v1/messages/count_tokens"


@dataclass(slots=True, kw_only=True)
class Answered:
    """An answer as the backend gave it. `request_id` is the gateway's own id of the request."""

    request_id: str
    dialect: Dialect
    asked: dict[str, Any]
    headers: dict[str, str]
    usage: Usage
    tool: str | None
    is_stream: bool
    is_over: bool = False


@dataclass(slots=True)
class Backend:
    """The server at one place, with its own ledger."""

    url: str
    answers: list[Answered] = field(default_factory=list)
    others: list[str] = field(default_factory=list)  # paths that it does not serve

    def since(self, mark: int) -> list[Answered]:
        """Return the answers from number `mark` on."""
        return self.answers[mark:]


@contextmanager
def serving() -> Iterator[Backend]:
    """Serve on a free port, in threads of this process, until the block ends."""

    class Handler(_Handler):
        backend: Backend

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    backend = Backend(f"http://127.0.0.1:{server.server_port}")
    Handler.backend = backend
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield backend
    finally:
        server.shutdown()
        server.server_close()
        thread.join(10)


class _Handler(BaseHTTPRequestHandler):
    """Answers one connection."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    backend: Backend

    def do_POST(self) -> None:
        """Answer a request of one of the dialects, or count its tokens."""
        body = self.rfile.read(int(self.headers.get("content-length") or 0))
        asked: dict[str, Any] = json.loads(body)
        path = urlsplit(self.path).path
        if path == COUNT_TOKENS:
            self._send_json(200, {"input_tokens": 20 + len(body) // 8})
        elif path in PATHS:
            self._answer(PATHS[path], asked, len(body))
        else:
            self.backend.others.append(path)
            self._send_json(404, {"error": {"message": f"no such path: {path}", "code": 404}})

    def do_GET(self) -> None:
        """Answer that there is no such page."""
        self.backend.others.append(self.path)
        self._send_json(404, {"error": {"message": "no such page", "code": 404}})

    def log_message(self, format: str, *args: object) -> None:
        """Print nothing."""

    def _answer(self, dialect: Dialect, asked: dict[str, Any], body_bytes: int) -> None:
        number = len(self.backend.answers) + 1
        reply = reply_to(dialect, asked, number=number, body_bytes=body_bytes)
        answered = Answered(
            request_id=self.headers.get("x-request-id") or "",
            dialect=dialect,
            asked=asked,
            headers={name.lower(): value for name, value in self.headers.items()},
            usage=reply.usage,
            tool=reply.tool,
            is_stream=bool(asked.get("stream")),
        )
        self.backend.answers.append(answered)
        try:
            if answered.is_stream:
                self._send_events(dialect, reply, asked)
            else:
                self._send_json(200, whole(dialect, reply))
        finally:
            answered.is_over = True

    def _send_json(self, status: int, value: Any) -> None:
        body = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _send_events(self, dialect: Dialect, reply: Reply, asked: dict[str, Any]) -> None:
        self.send_response(200)
        self.send_header("content-type", "text/event-stream; charset=utf-8")
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        for event in events(dialect, reply, asked=asked):
            self.wfile.write(b"%x\r\n%b\r\n" % (len(event), event))
            self.wfile.flush()
        self.wfile.write(b"0\r\n\r\n")
