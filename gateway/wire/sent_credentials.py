"""Removes the credentials of a sent request from its answer, whatever form it has; reads no secret
from its reference.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from gateway.domain.providers.table import PROVIDERS
from gateway.errors import RequestError

LEAST_SECRET_CHARS = 8  # a shorter one could be a word of any message
REMOVED = "(a credential of the gateway)"
# AWS signs instead of sending a key: the name of the key and the signature are in the header.
_SIGNED = re.compile(r"AWS4-HMAC-SHA256 Credential=([^/]+)/.*Signature=(\w+)")
# A session of AWS has a token beside its signature.
_HEADERS = frozenset({"x-amz-security-token", *(one.key_header for one in PROVIDERS.values())})


def without_credentials(answer: bytes, headers: Mapping[str, str]) -> bytes:
    """Return an answer without the credentials in its request's headers; names in lower case.

    Some servers write a slash in JSON behind a backslash.
    """
    for secret in _secrets(headers):
        for form in (secret, secret.replace("/", "\\/")):
            answer = answer.replace(form.encode(), REMOVED.encode())
    return answer


def with_clean_message(error: RequestError, headers: Mapping[str, str]) -> RequestError:
    """Return an upstream's error, its message without the credentials in the request's headers."""
    for secret in _secrets(headers):
        error.message = error.message.replace(secret, REMOVED)
    error.args = (error.message,)
    return error


def _secrets(headers: Mapping[str, str]) -> list[str]:
    """Return the credentials in the headers of a request."""
    return [secret for secret in _parts(headers) if len(secret) >= LEAST_SECRET_CHARS]


def _parts(headers: Mapping[str, str]) -> Iterator[str]:
    """Yield each secret part of the headers that have a credential."""
    for name in _HEADERS & headers.keys():
        signed = _SIGNED.fullmatch(headers[name])
        yield from signed.groups() if signed else (headers[name].rpartition(" ")[2],)  # `Bearer …`
