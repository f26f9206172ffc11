"""A gate in front of Postgres: open, shut as if Postgres were down, silent as if its host hung,
or partly frozen.
"""

from __future__ import annotations

import shutil
import socket
import tempfile
from contextlib import suppress
from pathlib import Path
from threading import Lock, Thread
from urllib.parse import parse_qs, urlsplit, urlunsplit

PORT = 5432
READY = b"Z\x00\x00\x00\x05I"  # ReadyForQuery, idle: the login is complete


class PostgresGate:
    """A listener on its own Unix socket; `url` leads through it to Postgres.

    Shutting it breaks every connection.
    """

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        query = parse_qs(parts.query)
        self._target = f"{query['host'][0]}/.s.PGSQL.{query['port'][0]}"
        self._folder = Path(tempfile.mkdtemp(prefix="tollgate-gate-", dir="/tmp"))
        self.url = urlunsplit(parts._replace(query=f"host={self._folder}&port={PORT}"))
        self._lock, self._wires, self._is_unanswering = Lock(), list[socket.socket](), False
        self._answers_only_logins = False
        self._frozen: frozenset[socket.socket] = frozenset()
        self._listener: socket.socket | None = None
        self.open()

    def open(self) -> None:
        """Let connections through to Postgres."""
        self.shut()
        self._listen()

    def shut(self) -> None:
        """Make Postgres unreachable: open connections break, and new ones get no answer."""
        if self._listener is not None:
            with suppress(OSError):
                self._listener.shutdown(socket.SHUT_RDWR)
            self._listener.close()
            self._listener = None
            (self._folder / f".s.PGSQL.{PORT}").unlink()
        with self._lock:
            wires, self._wires, self._is_unanswering, self._answers_only_logins = (
                self._wires,
                [],
                False,
                False,
            )
            self._frozen = frozenset()
        for wire in wires:
            _end(wire)

    def accept_without_answering(self) -> None:
        """Accept connections and never answer, like a host that hangs."""
        self.shut()
        self._is_unanswering = True
        self._listen()

    def freeze(self) -> None:
        """Freeze the open connections without closing them; new ones work.

        This resembles a failover whose old host hangs: its kernel still acknowledges.
        """
        with self._lock:
            self._frozen = self._frozen | frozenset(self._wires)

    def answer_logins_only(self) -> None:
        """Accept logins and answer no query, like a pooler whose server is frozen."""
        self.freeze()
        self._answers_only_logins = True

    def close(self) -> None:
        """Shut the gate and delete its socket."""
        self.shut()
        shutil.rmtree(self._folder)

    def _listen(self) -> None:
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(self._folder / f".s.PGSQL.{PORT}"))
        self._listener.listen()
        Thread(target=self._accept, args=(self._listener,), daemon=True).start()

    def _accept(self, listener: socket.socket) -> None:
        with suppress(OSError):
            while True:
                client, _ = listener.accept()
                with self._lock:
                    self._wires.append(client)
                if not self._is_unanswering:
                    self._join(client)

    def _join(self, client: socket.socket) -> None:
        server = socket.socket(socket.AF_UNIX)
        server.connect(self._target)
        with self._lock:
            self._wires.append(server)
        for one, other in ((client, server), (server, client)):
            Thread(
                target=self._pump,
                args=(one, other, self._answers_only_logins and other is client),
                daemon=True,
            ).start()

    def _pump(self, one: socket.socket, other: socket.socket, ends_with_login: bool) -> None:
        with suppress(OSError):
            while data := one.recv(1 << 16):
                if self._frozen.intersection((one, other)):
                    return  # the bytes are lost, as on a host that hangs
                other.sendall(data)
                if ends_with_login and data.endswith(READY):
                    return
            if self._frozen.intersection((one, other)):
                return
        _end(other)


def _end(wire: socket.socket) -> None:
    with suppress(OSError):
        wire.shutdown(socket.SHUT_RDWR)
