"""Sends one request to a token host and reads the token in its answer.

No content leaves here, so no permit is needed; a request goes to the named host alone, follows no
redirect and uses no proxy of the environment.
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from functools import cached_property
from time import monotonic
from typing import Any
from urllib.parse import urlsplit

import httpcore2
import msgspec

from gateway.providers.access_tokens.renewal import Grant, TokenRefused
from gateway.providers.timed_stream import NETWORK_ERRORS, connect

TIMEOUT_S = 5.0
MOST_BYTES = 64 * 1024
MOST_ERROR_CHARS = 64
FORM = {"content-type": "application/x-www-form-urlencoded"}
_decode = msgspec.json.Decoder(dict[str, Any]).decode


class TokenHost:
    """Sends requests for tokens, each within `timeout_s`. Trusts the machine's certificates, or
    `SSL_CERT_FILE`.
    """

    def __init__(self, timeout_s: float = TIMEOUT_S) -> None:
        """Keep the time limit of one request, for everything."""
        self._timeout_s = timeout_s

    @cached_property
    def _tls(self) -> ssl.SSLContext:
        """Load the trusted certificates when first needed."""
        return ssl.create_default_context()

    def members(
        self, method: str, url: str, headers: Mapping[str, str], body: bytes = b""
    ) -> dict[str, Any]:
        """Return the members of the answer to one request. Blocks for a few seconds at most. Raises
        `TokenRefused`.
        """
        parts, until_s = urlsplit(url), monotonic() + self._timeout_s
        sent = [
            ("host", parts.netloc),
            ("connection", "close"),
            ("content-length", str(len(body))),
            *headers.items(),
        ]
        received = bytearray()
        try:
            target = httpcore2.URL(url)
            stream = connect(parts, left_s=lambda: _left(until_s), tls=lambda: self._tls)
            with (
                httpcore2.HTTP11Connection(target.origin, stream) as connection,
                connection.stream(method, target, headers=sent, content=body) as answer,
            ):
                status = answer.status
                for piece in answer.iter_stream():
                    received += piece
                    if len(received) > MOST_BYTES:
                        raise TokenRefused(f"got an answer of more than {MOST_BYTES} bytes")
        except NETWORK_ERRORS as broken:
            raise TokenRefused(
                f"cannot be exchanged: {parts.hostname} does not answer ({type(broken).__name__})"
            ) from None
        return _members(status, bytes(received), host=parts.hostname or "")


def grant_of(text: object, lifetime_s: object, *, most_s: float, host: str) -> Grant:
    """Return the token of an answer with its lifetime in seconds, at most `most_s`.

    Raises `TokenRefused` for a token that no header can carry, and for one without a lifetime.
    """
    is_token = isinstance(text, str) and text.isascii() and text.isprintable() and bool(text)
    if not is_token or not isinstance(lifetime_s, int | float):
        raise TokenRefused(f"got no access token from {host}")
    return Grant(str(text), min(max(lifetime_s, 0.0), most_s))


def _members(status: int, body: bytes, *, host: str) -> dict[str, Any]:
    """Return the members of a token host's answer. Raises `TokenRefused` for a refusal, and for a
    body that is not JSON.
    """
    try:
        members = _decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        members = None
    if status != 200:
        error = None if members is None else members.get("error")
        is_word = isinstance(error, str) and error.isprintable()
        reason = f", {error[:MOST_ERROR_CHARS]}" if isinstance(error, str) and is_word else ""
        raise TokenRefused(f"was refused by {host} (HTTP {status}{reason})")
    if members is None:
        raise TokenRefused(f"got no access token from {host}")
    return members


def _left(until_s: float) -> float:
    """Return the seconds until a time of the monotonic clock. Raises `TimeoutException` after
    it.
    """
    left_s = until_s - monotonic()
    if left_s <= 0:
        raise httpcore2.TimeoutException
    return left_s
