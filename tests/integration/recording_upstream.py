"""A small upstream that keeps each request as it came, and answers with the bytes that its subclass
chooses.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from msgspec import Struct


class Received(Struct, frozen=True):
    """One request; header names are in lower case."""

    path: str
    headers: dict[str, str]
    body: bytes


class Answer(Struct, frozen=True):
    """Status, headers and body of one answer. A `content-length` is added unless it is streamed."""

    status: int
    content_type: str
    body: bytes
    headers: Mapping[str, str] = {}


class RecordingUpstream(ABC):
    """The server, on a free port of this machine."""

    def __init__(self) -> None:
        self.received: list[Received] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                headers = {name.lower(): value for name, value in self.headers.items()}
                request = Received(self.path, headers, body)
                outer.received.append(request)
                answer = outer.answer_to(request)
                self.send_response(answer.status)
                self.send_header("content-type", answer.content_type)
                for name, value in answer.headers.items():
                    self.send_header(name, value)
                if "stream" not in answer.content_type:
                    self.send_header("content-length", str(len(answer.body)))
                self.send_header("connection", "close")
                self.end_headers()
                self.wfile.write(answer.body)

            def log_message(self, format: str, *args: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    @abstractmethod
    def answer_to(self, request: Received) -> Answer:
        """Return the answer to a request."""

    def close(self) -> None:
        """Stop listening."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(5)
