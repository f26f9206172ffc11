"""An upstream on bare sockets, for bytes that no HTTP server would send.

The model's name selects its behaviour.
"""

from __future__ import annotations

import contextlib
import json
import socket
import struct
import threading
from collections.abc import Callable, Iterator, Mapping

Answering = Callable[[socket.socket], None]
STREAM = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n"


class RawUpstream:
    """A server that handles each request in its own thread; `asked` lists their models in order."""

    def __init__(self, answers: Mapping[str, Answering]) -> None:
        self._answers = answers
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}/v1"
        self.asked: list[str] = []
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop listening."""
        # Closing alone does not wake a thread in accept().
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(5)

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        connection.settimeout(20)
        with contextlib.suppress(OSError), connection:
            head, _, body = _until(connection, b"\r\n\r\n").partition(b"\r\n\r\n")
            lines = head.lower().split(b"\r\n")
            length = next(
                (int(line.split(b":")[1]) for line in lines if line.startswith(b"content-length")),
                0,
            )
            if not length:
                return  # a probe of an engine's health or load
            while len(body) < length:
                body += connection.recv(65536)
            in_path = lines[0].partition(b"/models/")[2].partition(b":")[0].decode()  # Gemini's
            model = json.loads(body).get("model", in_path)
            self.asked.append(model)
            self._answers[model](connection)


def raw_upstream(answers: Mapping[str, Answering]) -> Iterator[RawUpstream]:
    """Yield a running upstream until the fixture ends."""
    upstream = RawUpstream(answers)
    yield upstream
    upstream.close()


def sends(*parts: bytes, resets: bool = False) -> Answering:
    """Return a handler that sends these parts and closes, or breaks the connection with
    `resets`.
    """

    def answer(connection: socket.socket) -> None:
        for part in parts:
            connection.sendall(part)
        if resets:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    return answer


def whole(body: bytes, *headers: str) -> bytes:
    """Return a complete plain answer."""
    lines = [
        "HTTP/1.1 200 OK",
        "content-type: application/json",
        f"content-length: {len(body)}",
        # The fake closes the connection, so it says so: otherwise the next request may be written
        # into the closing connection.
        "connection: close",
        *headers,
    ]
    return "\r\n".join([*lines, "", ""]).encode() + body


def event(value: object) -> bytes:
    """Return one event of a stream."""
    return b"data: " + (value if isinstance(value, bytes) else json.dumps(value).encode()) + b"\n\n"


def token(text: str) -> bytes:
    """Return one token of a chat."""
    return event({"id": "c", "model": "m", "choices": [{"index": 0, "delta": {"content": text}}]})


def _until(connection: socket.socket, end: bytes) -> bytes:
    read = b""
    while end not in read:
        part = connection.recv(65536)
        if not part:
            raise ConnectionError("closed before its request was whole")
        read += part
    return read
