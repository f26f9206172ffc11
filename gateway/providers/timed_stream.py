"""Opens a blocking connection whose connect, TLS, read and write operations share one deadline; the
engine sampler uses it.

The timeouts of httpx2 and of a socket restart with every byte, so a peer that sends a byte now and
then would hold its caller for hours.
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any
from urllib.parse import SplitResult

import httpcore2

from gateway.domain.routing.decide import DEFAULT_PORTS

NETWORK_ERRORS = (
    httpcore2.TimeoutException,
    httpcore2.NetworkError,
    httpcore2.ProtocolError,
    OSError,
    UnicodeError,  # an invalid host name
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedStream(httpcore2.NetworkStream):
    """A stream that gives each operation the seconds that `left_s` returns, whatever its caller
    asks.
    """

    stream: httpcore2.NetworkStream
    left_s: Callable[[], float]

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        """Return the next bytes from the peer, within the seconds left; `timeout` is ignored."""
        return self.stream.read(max_bytes, self.left_s())

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        """Write all bytes to the peer, within the seconds left; `timeout` is ignored."""
        self.stream.write(buffer, self.left_s())

    def close(self) -> None:
        """Close the connection to the peer."""
        self.stream.close()

    def start_tls(
        self,
        ssl_context: ssl.SSLContext,
        server_hostname: str | None = None,
        timeout: float | None = None,
    ) -> TimedStream:
        """Return the same connection under TLS, after a handshake within the seconds left;
        `timeout` is ignored.
        """
        inner = self.stream.start_tls(ssl_context, server_hostname, self.left_s())
        return TimedStream(stream=inner, left_s=self.left_s)

    def get_extra_info(self, info: str) -> Any:
        """Return a fact about the underlying connection."""
        return self.stream.get_extra_info(info)


def connect(
    parts: SplitResult, *, left_s: Callable[[], float], tls: Callable[[], ssl.SSLContext]
) -> TimedStream:
    """Connect to an address's host, under TLS for https. Raises one of `NETWORK_ERRORS`.

    `left_s` returns the seconds until the deadline, or raises. A name lookup cannot be stopped: the
    deadline is checked after it.
    """
    host, port = parts.hostname or "", parts.port or DEFAULT_PORTS[parts.scheme]
    timed = TimedStream(stream=_connected(host, port, left_s), left_s=left_s)
    if parts.scheme != "https":
        return timed
    try:
        return timed.start_tls(tls(), host)
    except BaseException:
        timed.close()
        raise


def _connected(host: str, port: int, left_s: Callable[[], float]) -> httpcore2.NetworkStream:
    """Return a connection to the first of a host's addresses that accepts one.

    Each address has its share of the time left, because one that drops packets never refuses.
    """
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    *others, last = (str(one[4][0]) for one in found)
    backend = httpcore2.SyncBackend()
    for place, address in enumerate(others):
        with suppress(httpcore2.ConnectError, httpcore2.ConnectTimeout):
            return backend.connect_tcp(address, port, left_s() / (len(found) - place))
    return backend.connect_tcp(last, port, left_s())
