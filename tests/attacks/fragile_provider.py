"""A provider of every dialect whose answers and pages a test breaks while it runs."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tests.fake_upstream.dialects.asked import read_request, wording_of
from tests.fake_upstream.script import scripted
from tests.running_server import address_of, running

HANGS_S = 60.0  # longer than every deadline of the gateway
Page = tuple[int, str, bytes] | None  # None hangs


class FragileProvider:
    """The provider. `status` replaces each answer, `page` is the answer to each GET; `asked` are
    the paths of its POSTs and `looked` those of its GETs.
    """

    def __init__(self) -> None:
        self.status = 200
        self.page: Page = (404, "application/json", b"{}")
        self.asked: list[str] = []
        self.looked: list[str] = []
        self.url = ""
        self.is_over = threading.Event()

    def answer(self, path: str, body: dict[str, Any]) -> tuple[int, str, bytes]:
        """Return status, type and body for one request."""
        self.asked.append(path)
        asked = read_request(path, body)
        behaviour = scripted(path, asked, "")
        work, model = behaviour.work, str(asked["model"])
        words = wording_of(asked, number=len(self.asked), model=model, behaviour=behaviour)
        if self.status != 200:
            return self.status, "application/json", words.error_body(None)
        made = work.output_tokens
        usage = words.usage(made, 0, prompt=work.input_tokens)
        if not asked.get("stream"):
            return 200, "application/json", words.whole(made, usage)
        tokens = b"".join(_token(words, number, work.input_tokens) for number in range(made))
        ends = words.last(usage, words.text(range(made))) + words.done()
        return 200, words.stream_type, words.begin() + tokens + ends


def _token(words: Any, number: int, prompt: int) -> bytes:
    return bytes(words.token(number, words.usage(number + 1, 0, prompt=prompt)))


@contextmanager
def fragile() -> Iterator[FragileProvider]:
    """Yield a running provider."""
    provider = FragileProvider()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length") or 0))
            self._send(*provider.answer(self.path, json.loads(body)))

        def do_GET(self) -> None:
            provider.looked.append(self.path)
            if provider.page is None:
                provider.is_over.wait(HANGS_S)
                return
            self._send(*provider.page)

        def _send(self, status: int, kind: str, body: bytes) -> None:
            self.send_response_only(status)
            self.send_header("content-type", kind)
            self.send_header("content-length", str(len(body)))
            with suppress(OSError):  # the gateway has left
                self.end_headers()
                self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    class Server(ThreadingHTTPServer):
        request_queue_size = 128

    with running(Server(("127.0.0.1", 0), Handler)) as server:
        provider.url = address_of(server)
        try:
            yield provider
        finally:
            provider.is_over.set()
