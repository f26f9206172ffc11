"""Runs a server of the standard library in a thread while a block runs."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import HTTPServer


@contextmanager
def running(server: HTTPServer) -> Iterator[HTTPServer]:
    """Let a server answer in a thread of its own while the block runs."""
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def address_of(server: HTTPServer) -> str:
    """Return the address of a server on loopback."""
    return f"http://127.0.0.1:{server.server_port}"
