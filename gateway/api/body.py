"""Refuses request bodies by their declared type, encoding or length, and reads a complete body for
FastAPI's endpoints; it parses no JSON.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any

from gateway.api.http.caller_exchange import ClientGone, too_large
from gateway.errors import UnsupportedMediaType

# The headers that `check_declared` reads.
HEADERS = (b"content-type", b"content-encoding", b"content-length")

Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]


def check_declared(headers: Mapping[str, str], *, limit_bytes: int) -> None:
    """Refuse a request body by its declared type, encoding or length, before any of it is read.

    Raises `UnsupportedMediaType` or `RequestTooLarge`.
    """
    kind = headers.get("content-type")
    if kind is not None and kind != "application/json":
        _check_type(kind)
    codings = headers.get("content-encoding")
    if codings is not None and not {coding.strip().lower() for coding in codings.split(",")} <= {
        "",
        "identity",
    }:
        raise UnsupportedMediaType(
            "The body is encoded (Content-Encoding), and only plain JSON is read here. Send it "
            "without compression."
        )
    declared = headers.get("content-length", "0")
    if declared.isdigit() and int(declared) > limit_bytes:
        raise too_large(limit_bytes)


async def read_body(receive: Receive, *, limit_bytes: int) -> bytes:
    """Return the complete body of an ASGI request. Raises `RequestTooLarge` as soon as it
    exceeds the limit.
    """
    parts: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGone
        parts.append(message.get("body", b""))
        size += len(parts[-1])
        if size > limit_bytes:
            raise too_large(limit_bytes)
        if not message.get("more_body"):
            return b"".join(parts)


def _check_type(kind: str) -> None:
    """Raise `UnsupportedMediaType` if the content type is neither absent nor JSON."""
    named = kind.partition(";")[0].strip().lower()
    if (
        named
        and named != "application/json"
        and not (named.startswith("application/") and named.endswith("+json"))
    ):
        shown = "".join(letter for letter in named[:100] if letter.isprintable())
        raise UnsupportedMediaType(
            f"The body is sent as '{shown}', and only JSON is read here. Add the header, with "
            "curl: -H 'Content-Type: application/json'"
        )
