"""Asks a server one question over HTTP and returns the JSON of its answer.

It follows no redirect: the key would go to the address that the answer names. Proxies of the
environment are not used.
"""

import json
import time
import urllib.request
from collections.abc import Mapping
from http.client import HTTPException, HTTPResponse
from typing import Any

MOST_BYTES = 16 * 2**20
"""vLLM's longest answer, a list of models or token ids, has some KB."""
BROKEN_ANSWER = (
    OSError,
    HTTPException,
    ValueError,
    LookupError,
    TypeError,
    AttributeError,
    OverflowError,
    RecursionError,
)
"""Errors of a connection that ends early, of an answer that is no HTTP, and of JSON of another
shape. `HTTPError` and `TimeoutError` are `OSError`.
"""


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """A handler that leaves a redirect as the error that it is: `HTTPError` with its status."""

    def redirect_request(self, *_: Any) -> None:
        """Return no request for the address that the answer names."""


_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}), _NoRedirects)


def ask_json(
    url: str, *, key: str | None, body: Mapping[str, object] | None, limit_s: float
) -> Any:
    """Return the JSON that answers one request: a POST with a body, else a GET.

    `limit_s` bounds each wait for bytes, and the answer's body as a whole. Raises `BROKEN_ANSWER`.
    """
    headers = {"content-type": "application/json"}
    if key:
        headers["authorization"] = f"Bearer {key}"
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data=data, headers=headers)  # noqa: S310 - callers check that it is http
    with _OPENER.open(request, timeout=limit_s) as answer:
        return json.loads(_whole(answer, until_s=time.monotonic() + limit_s))


def _whole(answer: HTTPResponse, *, until_s: float) -> bytes:
    """Return the body of an answer. Raises `ValueError` if it is too long, `TimeoutError` if it is
    not whole in time.
    """
    found = bytearray()
    while piece := answer.read1(65_536):
        found += piece
        if len(found) > MOST_BYTES:
            raise ValueError(f"the answer is longer than {MOST_BYTES >> 20} MiB")
        if time.monotonic() > until_s:
            raise TimeoutError("the answer did not end in time")
    return bytes(found)
