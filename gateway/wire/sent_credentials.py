"""Removes the credentials of a sent request from its answer, whatever form it has; reads no secret
from its reference.
"""

from __future__ import annotations

from collections.abc import Mapping

from gateway.domain.providers.table import PROVIDERS
from gateway.errors import RequestError

LEAST_SECRET_CHARS = 8  # a shorter one could be a word of any message
REMOVED = "(a credential of the gateway)"
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
    sent = (headers[name].rpartition(" ")[2] for name in _HEADERS & headers.keys())
    return [secret for secret in sent if len(secret) >= LEAST_SECRET_CHARS]  # without `Bearer`
