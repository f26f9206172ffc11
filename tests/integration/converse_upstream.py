"""A small upstream of Bedrock's Converse. The model's name in the address selects the answer; each
request is kept as it came.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote

from tests.event_messages import exception
from tests.integration.messages_upstream import Received

GOLDEN = Path(__file__).parents[1] / "golden" / "bedrock"
WHOLE = (GOLDEN / "chat" / "upstream.json").read_bytes()
STREAM = (GOLDEN / "chat-stream-tools" / "upstream.bin").read_bytes()
CUT = STREAM[: STREAM.index(b"messageStop") - 20]
STREAMS = {
    "nova-1:0": STREAM,
    "signed": STREAM,
    "cut": CUT,
    "error": STREAM[: STREAM.index(b"contentBlockStop") - 27]  # its prelude and header name
    + exception("throttlingException", "Too many tokens."),
}


class ConverseUpstream:
    """The server."""

    def __init__(self) -> None:
        self.received: list[Received] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                headers = {name.lower(): value for name, value in self.headers.items()}
                outer.received.append(Received(self.path, headers, body))
                status, kind, content = answer_to(self.path)
                self.send_response(status)
                self.send_header("content-type", kind)
                if status != 200:
                    self.send_header("x-amzn-errortype", "ThrottlingException:http://internal")
                if "stream" not in kind:
                    self.send_header("content-length", str(len(content)))
                self.send_header("connection", "close")
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, format: str, *args: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop listening."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(5)


def answer_to(path: str) -> tuple[int, str, bytes]:
    """Return status, content type and body of an answer."""
    _, _, model, operation = path.split("/")
    model = unquote(model)
    if model.isdigit():
        return int(model), "application/json", b'{"message":"Too many requests."}'
    if operation == "converse-stream":
        return 200, "application/vnd.amazon.eventstream", STREAMS[model]
    assert json.loads(WHOLE)
    return 200, "application/json", WHOLE


def converse_upstream() -> Iterator[ConverseUpstream]:
    """Yield a running upstream until the fixture ends."""
    upstream = ConverseUpstream()
    yield upstream
    upstream.close()
