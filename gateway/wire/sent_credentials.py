"""Removes the credentials of a sent request from its answer; reads no secret from its reference."""

from __future__ import annotations

from collections.abc import Mapping

from gateway.domain.providers.table import PROVIDERS

LEAST_SECRET_CHARS = 8  # a shorter one could be a word of any message
REMOVED = "(a credential of the gateway)"
# A session of AWS has a token beside its signature.
_HEADERS = frozenset({"x-amz-security-token", *(one.key_header for one in PROVIDERS.values())})


def without_credentials(answer: bytes, headers: Mapping[str, str]) -> bytes:
    """Return an answer without the credentials in its request's headers; names in lower case.

    Some servers write a slash in JSON behind a backslash.
    """
    for name in _HEADERS & headers.keys():
        secret = headers[name].rpartition(" ")[2]  # behind the word `Bearer`
        if len(secret) >= LEAST_SECRET_CHARS:
            for form in (secret, secret.replace("/", "\\/")):
                answer = answer.replace(form.encode(), REMOVED.encode())
    return answer
