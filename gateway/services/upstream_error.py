"""Reads an upstream's error answer, and makes the error of it that the caller may see."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from gateway.domain.policy.policy import Deployment
from gateway.errors import RequestError
from gateway.services.codings import CODING, opened
from gateway.services.ports import Upstream
from gateway.wire.dialect import UpstreamRequest
from gateway.wire.sent_credentials import with_clean_message

MAX_ERROR_BYTES = 2**20


class ErrorReader(Protocol):
    """A provider as far as it reads error answers."""

    def error(
        self, deployment: Deployment, status: int, headers: Mapping[str, str], *, body: bytes
    ) -> RequestError:
        """Return the caller's error for an upstream's error answer."""


async def error_body(upstream: Upstream) -> bytes:
    """Return the body of an error answer, empty if it does not arrive or is too large."""
    try:
        body = await upstream.read(MAX_ERROR_BYTES)
        _, headers = await upstream.head()
        return opened(body, headers.get(CODING), most_bytes=MAX_ERROR_BYTES)
    except RequestError:
        return b""


def caller_error(
    reader: ErrorReader,
    deployment: Deployment,
    call: UpstreamRequest,
    head: tuple[int, Mapping[str, str]],
    *,
    body: bytes,
) -> RequestError:
    """Return the caller's error for the error answer to `call`, without the call's credentials.

    `head` is the answer's status and headers.
    """
    status, headers = head
    error = reader.error(deployment, status, headers, body=body)
    return with_clean_message(error, call.headers)
