"""A proxy in front of Postgres that drops the answer to a COMMIT: the server has committed, but
the client gets no answer.
"""

from __future__ import annotations

import shutil
import socket
import tempfile
from contextlib import suppress
from pathlib import Path
from threading import Thread
from urllib.parse import parse_qs, urlsplit, urlunsplit

PORT = 5432


class DroppingProxy:
    """A proxy on its own Unix socket; `url` leads through it.

    `lost` counts the dropped answers.
    """

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        query = parse_qs(parts.query)
        self._target = f"{query['host'][0]}/.s.PGSQL.{query['port'][0]}"
        self._folder = Path(tempfile.mkdtemp(prefix="tollgate-proxy-", dir="/tmp"))
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(self._folder / f".s.PGSQL.{PORT}"))
        self._listener.listen()
        self.url = urlunsplit(parts._replace(query=f"host={self._folder}&port={PORT}"))
        self.lost = 0
        self._commits_left: int | None = None
        self._threads = [Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def lose_commit(self, *, after: int = 0) -> None:
        """Lose the answer to the next COMMIT, or to the one after `after` others."""
        self._commits_left = after

    def close(self) -> None:
        """Stop listening; open connections end by themselves."""
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for thread in self._threads:
            thread.join(timeout=10)
        shutil.rmtree(self._folder)

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.socket(socket.AF_UNIX)
                server.connect(self._target)
                for work in (self._up, self._down):
                    thread = Thread(target=work, args=(client, server), daemon=True)
                    self._threads.append(thread)
                    thread.start()

    def _up(self, client: socket.socket, server: socket.socket) -> None:
        with suppress(OSError):
            while data := client.recv(1 << 16):
                server.sendall(data)
        _end(server)

    def _down(self, client: socket.socket, server: socket.socket) -> None:
        with suppress(OSError):
            while data := server.recv(1 << 16):
                # The command tag, so the commit is durable by now.
                if b"COMMIT" in data and self._commits_left is not None:
                    if self._commits_left == 0:
                        self._commits_left = None
                        self.lost += 1
                        break
                    self._commits_left -= 1
                client.sendall(data)
        _end(client)
        _end(server)


def _end(wire: socket.socket) -> None:
    with suppress(OSError):
        wire.shutdown(socket.SHUT_RDWR)
