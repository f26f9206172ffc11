"""Sends an attempt's content upstream, only with a permit for that address, and turns the HTTP
client's errors into the gateway's; it never retries.

The only importer of our own HTTP/1.1 client, which knows nothing of the gateway: this module gives
it a deployment's limits as plain seconds.

Redirects are not followed, proxies of the environment are ignored, cookies are not kept, and TLS
verification has no switch (docs/decisions/0007).
"""

from __future__ import annotations

import math
import ssl
from collections.abc import Mapping
from functools import lru_cache
from typing import NamedTuple
from urllib.parse import urlsplit

from gateway.domain.residency.rules import Permit, verify
from gateway.domain.routing.decide import DEFAULT_PORTS, origin_of
from gateway.errors import (
    RequestError,
    UpstreamError,
    UpstreamNotCalled,
    UpstreamTimeout,
    UpstreamUnreachable,
)
from gateway.providers.http1.connection import UpstreamExchange
from gateway.providers.http1.errors import (
    AnswerFailed,
    AnswerMalformed,
    AnswerTimeout,
    AnswerTooLarge,
    ConnectFailed,
    NotSent,
    OriginFull,
    PoolFull,
)
from gateway.providers.http1.pool import Pool
from gateway.wire.dialect import UpstreamRequest

SHARE_OF_AN_ORIGIN = 0.75  # of all connections, so that a hung origin leaves some for the others


class Http1Transport:
    """Sends the content that a permit allows, to the place that it allows."""

    def __init__(
        self, max_connections: int, tls: ssl.SSLContext, *, max_per_origin: int | None = None
    ) -> None:
        """Make a transport with an empty pool, inside the running loop."""
        self._max_connections = max_connections
        self.pool = Pool(max_connections, tls, max_per_origin=max_per_origin, error_of=answer_error)

    async def send(
        self, permit: Permit, call: UpstreamRequest, *, within_s: float = math.inf
    ) -> UpstreamExchange:
        """Hand one attempt to a socket, if the permit allows its address; its answer must be
        complete within `within_s` seconds.

        Raises `ResidencyDenied` or `UpstreamUnreachable`; then nothing was sent. A cancellation
        here also means that nothing was sent: no await follows the write.
        """
        verify(permit, origin=origin_of(call.url))
        deployment = permit.deployment
        target = target_of(call.url)
        head = head_bytes(target, call)
        origin = self.pool.origin(target.host, target.port, is_tls=target.is_tls)
        name, timeouts = deployment.name, deployment.timeouts
        connect_s = min(timeouts.connect_s, within_s)
        try:
            connection = await self.pool.take(origin, connect_s)
        except NotSent as failed:
            raise self._not_sent(failed, name, connect_s=connect_s) from None
        return connection.start(
            head,
            call.body,
            name=name,
            first_byte_s=timeouts.first_byte_s,
            first_token_s=timeouts.first_token_s if call.is_streamed else math.inf,
            idle_s=timeouts.idle_s,
            total_s=min(timeouts.total_s, within_s),
        )

    async def close(self) -> None:
        """Close all upstream connections."""
        self.pool.close()

    def _not_sent(
        self, failed: NotSent, name: str, *, connect_s: float
    ) -> UpstreamNotCalled | UpstreamUnreachable:
        """Return the gateway's error for a request that the HTTP client did not send."""
        if isinstance(failed, OriginFull):
            return UpstreamNotCalled(
                f"{name} was not called: all {self.pool.max_per_origin} connections that its "
                "address may have are in use. The others are kept for other addresses."
            )
        if isinstance(failed, PoolFull):
            return UpstreamNotCalled(
                f"{name} was not called: all {self._max_connections} connections of the "
                "gateway are in use."
            )
        if isinstance(failed, ConnectFailed):
            return UpstreamUnreachable(f"{name} could not be reached: {failed.reason}.")
        return UpstreamUnreachable(f"{name} could not be connected to in {connect_s:g} s.")


def open_transport(max_connections: int) -> Http1Transport:
    """Return a transport with verified TLS; call it inside the running loop."""
    most = max(int(max_connections * SHARE_OF_AN_ORIGIN), 1)
    return Http1Transport(max_connections, ssl.create_default_context(), max_per_origin=most)


def answer_error(failed: AnswerFailed) -> RequestError:
    """Return the gateway's error for an exchange that failed after its request was handed to the
    socket; `_not_sent` makes the errors before that.
    """
    if isinstance(failed, AnswerTimeout):
        return UpstreamTimeout(str(failed))
    if isinstance(failed, AnswerTooLarge):
        return _bought(f"{failed} It is not asked again: ask for less.")
    if isinstance(failed, AnswerMalformed) and 200 <= failed.status < 300:
        return _bought(f"{failed} It is not asked again.")
    return UpstreamError(str(failed))


def _bought(message: str) -> UpstreamError:
    """Return the error for an answer that was generated and cannot be used: nothing else is
    tried.
    """
    error = UpstreamError(message)
    error.is_final = True
    return error


class Target(NamedTuple):
    """A parsed upstream address. `opening` is the request line after its method, and the `host`
    header.
    """

    host: str
    port: int
    is_tls: bool
    opening: str


@lru_cache(maxsize=1024)  # a policy has a few addresses
def target_of(url: str) -> Target:
    """Parse an upstream address. Raises `ValueError` if it cannot stand in a request line."""
    parts = urlsplit(url)
    host, port, default = parts.hostname or "", parts.port, DEFAULT_PORTS[parts.scheme]
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    named = (
        f"[{host}]"
        if ":" in host
        else host
        if host.isascii()
        else host.encode("idna").decode("ascii")
    )
    shown = named if port in (None, default) else f"{named}:{port}"
    if not host or not all("!" <= character <= "~" for character in path + shown):
        raise ValueError(
            "an address needs a host and printable ASCII without spaces; write the rest as %XX"
        )
    return Target(
        host, port or default, parts.scheme == "https", f" {path} HTTP/1.1\r\nhost: {shown}\r\n"
    )


def head_bytes(target: Target, call: UpstreamRequest) -> bytes:
    """Return the bytes of an upstream request without its body.

    Raises `ValueError` for a header that would become two headers or none.
    """
    lines = [call.method, target.opening]
    lines += [f"{name}: {value}\r\n" for name, value in call.headers.items()]
    lines.append(f"content-length: {len(call.body)}\r\n\r\n")
    head = "".join(lines)
    expected = len(call.headers) + 4  # request line, host, content-length, and the empty line
    if head.count("\n") != expected or head.count("\r") != expected or "\0" in head:
        raise ValueError(f"a header has a line break or a NUL: {_odd_header(call.headers)}")
    try:
        return head.encode("latin-1")
    except UnicodeEncodeError:
        raise ValueError(
            f"a header has characters that HTTP cannot carry: {_odd_header(call.headers)}"
        ) from None


def _odd_header(headers: Mapping[str, str]) -> str:
    """Return the quoted name of the first header that cannot be sent, `?` if it is none of these;
    never its value, which may be a credential.
    """
    return next((repr(name) for name, value in headers.items() if _is_odd(name + value)), "?")


def _is_odd(text: str) -> bool:
    """Return True if a text has a character that no HTTP header can carry."""
    return any(character in text for character in "\r\n\0") or any(
        ord(character) > 255 for character in text
    )
