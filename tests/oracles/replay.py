"""A loopback server that answers every request with one transcript's upstream bytes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

TYPES = {
    ".json": "application/json",
    ".sse": "text/event-stream",
    ".ndjson": "application/x-ndjson",
    ".bin": "application/vnd.amazon.eventstream",
}


@contextmanager
def replayed(upstream: Path) -> Iterator[str]:
    """Yield the address of a server with these bytes."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            """Read the request, then answer."""
            self.rfile.read(int(self.headers.get("content-length", 0)))
            body = upstream.read_bytes()
            self.send_response(200)
            self.send_header("content-type", TYPES[upstream.suffix])
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_GET = do_POST  # noqa: N815

        def log_message(self, format: str, *args: object) -> None:
            """Log nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
