"""An upstream that keeps responses: it answers `POST /v1/responses`, and reads, deletes and cancels
what it kept. Its ids are its own name and a number.
"""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tests.canary import COMPLETION

USAGE = {
    "input_tokens": 1000,
    "input_tokens_details": {"cached_tokens": 0},
    "output_tokens": 10,
    "output_tokens_details": {"reasoning_tokens": 0},
    "total_tokens": 1010,
}


class ResponseServer:
    """A server on loopback. `asked` are the method, path, headers and body of each request."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.kept: dict[str, dict[str, Any]] = {}
        self.asked: list[tuple[str, str, dict[str, str], bytes]] = []
        self.made = 0
        self.next_id: str | None = None  # for the next response
        self.headers: dict[str, str] = {}  # of each answer
        self.may_answer = threading.Event()
        self.may_answer.set()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        """Return its base URL."""
        return f"http://127.0.0.1:{self._server.server_port}/v1"

    def close(self) -> None:
        """Stop the server."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def answer(self, method: str, path: str, body: bytes) -> tuple[int, dict[str, Any]]:
        """Return status and body for one request."""
        path = path.partition("?")[0]
        if (method, path) == ("POST", "/v1/responses"):
            return self._create(json.loads(body))
        response_id, _, rest = path.removeprefix("/v1/responses/").partition("/")
        kept = self.kept.get(response_id)
        if kept is None:
            return 404, {"error": {"message": "no such response", "type": "invalid_request_error"}}
        if (method, rest) == ("GET", ""):
            return 200, kept
        if (method, rest) == ("DELETE", ""):
            del self.kept[response_id]
            return 200, {"id": response_id, "object": "response", "deleted": True}
        if (method, rest) == ("POST", "cancel"):
            message = "Only a background response can be cancelled."
            return 400, {"error": {"message": message, "type": "invalid_request_error"}}
        return 405, {"error": {"message": "not here"}}

    def _create(self, asked: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        previous = asked.get("previous_response_id")
        if previous is not None and previous not in self.kept:
            return 400, {"error": {"message": "no such previous response"}}
        self.made += 1
        response_id = self.next_id or f"resp_{self.name}_{self.made}"
        self.next_id = None
        text = {"type": "output_text", "text": COMPLETION, "annotations": []}
        message = {
            "id": f"msg_{self.made}",
            "type": "message",
            "role": "assistant",
            "status": "completed",
            "content": [text],
        }
        made = {
            "id": response_id,
            "object": "response",
            "created_at": 1_764_000_000,
            "status": "completed",
            "model": "real-model",
            "output": [message],
            "parallel_tool_calls": True,
            "tool_choice": "auto",
            "tools": [],
            "previous_response_id": previous,
            "usage": USAGE,
        }
        if asked.get("store", True):
            self.kept[response_id] = made
        return 200, made


def _handler(server: ResponseServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _serve(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length") or 0))
            headers = {name.lower(): value for name, value in self.headers.items()}
            server.asked.append((self.command, self.path, headers, body))
            status, answer = server.answer(self.command, self.path, body)
            content, kind = json.dumps(answer).encode(), "application/json"
            if status == 200 and self.command == "POST" and json.loads(body).get("stream"):
                event = {"type": "response.completed", "sequence_number": 0, "response": answer}
                content = b"event: response.completed\ndata: %b\n\n" % json.dumps(event).encode()
                kind = "text/event-stream"
            server.may_answer.wait(60)
            self.send_response(status)
            for name, value in server.headers.items():
                self.send_header(name, value)
            self.send_header("content-type", kind)
            self.send_header("content-length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_GET = do_POST = do_DELETE = _serve  # noqa: N815  # the library's names

        def log_message(self, *_: object) -> None:
            """Print nothing."""

    return Handler
