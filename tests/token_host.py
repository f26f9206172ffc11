"""A token host on a real socket, and a clock for the tokens' ends."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tests.running_server import address_of, running


class TokenHost:
    """A token host that gives each answer of a test once, then `otherwise`, and keeps the requests
    that it got.
    """

    def __init__(self) -> None:
        self.answers: list[tuple[int, bytes]] = []
        self.otherwise: tuple[int, bytes] = (500, b"")
        self.location: str | None = None  # of a redirect
        self.seen: list[tuple[str, dict[str, str], bytes]] = []
        self.url = ""
        self.may_answer = threading.Event()
        self.may_answer.set()

    def grant(self, token: str, expires_s: float = 3599) -> None:
        body = {"access_token": token, "expires_in": expires_s, "token_type": "Bearer"}
        self.answers.append((200, json.dumps(body).encode()))


@contextmanager
def listening() -> Iterator[TokenHost]:
    host = TokenHost()

    class Handler(BaseHTTPRequestHandler):
        def _answer(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length") or 0))
            host.seen.append((self.path, dict(self.headers.items()), body))
            host.may_answer.wait(5)
            status, content = host.answers.pop(0) if host.answers else host.otherwise
            self.send_response(status)
            if host.location is not None:
                self.send_header("location", host.location)
            self.send_header("content-length", str(len(content)))
            with suppress(OSError):  # the gateway has left
                self.end_headers()
                self.wfile.write(content)

        do_GET = do_POST = _answer  # noqa: N815 - the library's names

        def log_message(self, format: str, *args: Any) -> None:
            pass

    with running(ThreadingHTTPServer(("127.0.0.1", 0), Handler)) as server:
        host.url = f"{address_of(server)}/token"
        yield host


class Seconds:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s
