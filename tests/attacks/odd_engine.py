"""An engine on bare sockets whose metrics page and answers are bytes of the test's choice."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

ANSWER = json.dumps(
    {
        "id": "c",
        "object": "chat.completion",
        "model": "m",
        "choices": [{"index": 0, "message": {"role": "assistant", "content": "Hi"}}],
        "usage": {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15},
    }
).encode()


def http(body: bytes, *headers: str, status: str = "200 OK") -> bytes:
    """Return a complete answer that closes its connection."""
    head = [f"HTTP/1.1 {status}", f"content-length: {len(body)}", "connection: close", *headers]
    return "\r\n".join([*head, "", ""]).encode() + body


@dataclass
class OddEngine:
    """A running engine: `page` answers each GET, `answer` each POST. `pages` and `calls` count.

    A POST is answered while `works` is set.
    """

    listener: socket.socket
    page: bytes = b""
    answer: bytes = field(default_factory=lambda: http(ANSWER, "content-type: application/json"))
    pages: int = 0
    calls: int = 0
    works: threading.Event = field(default_factory=threading.Event)

    @property
    def url(self) -> str:
        """Return the base URL for a deployment."""
        return f"http://127.0.0.1:{self.listener.getsockname()[1]}/v1"

    def accept(self) -> None:
        """Serve each connection in a thread, until the listener is closed."""
        while True:
            try:
                connection, _ = self.listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        connection.settimeout(20)
        with contextlib.suppress(OSError), connection, connection.makefile("rb") as reader:
            is_post = reader.readline().startswith(b"POST")
            length = 0
            while (line := reader.readline().lower()).strip():
                if line.startswith(b"content-length:"):
                    length = int(line.split(b":")[1])
            reader.read(length)
            if is_post:
                self.calls += 1
            else:
                self.pages += 1
            if is_post:
                self.works.wait()
            connection.sendall(self.answer if is_post else self.page)


@contextmanager
def odd_engine(page: bytes = b"") -> Iterator[OddEngine]:
    """Serve an engine until the end of the block."""
    engine = OddEngine(socket.create_server(("127.0.0.1", 0)), page=http(page))
    engine.works.set()
    thread = threading.Thread(target=engine.accept, daemon=True)
    thread.start()
    try:
        yield engine
    finally:
        engine.works.set()
        engine.listener.shutdown(socket.SHUT_RDWR)
        engine.listener.close()
        thread.join(5)
