"""HTTP to the servers that tests start on this machine, without trusted certificates: loading them
takes 25 ms of CPU for each call of httpx2's own functions and for each new client.
"""

from __future__ import annotations

import ssl
from functools import partial

import httpx2
import openai

NO_CERTIFICATES = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)

get = partial(httpx2.get, verify=NO_CERTIFICATES)
post = partial(httpx2.post, verify=NO_CERTIFICATES)
request = partial(httpx2.request, verify=NO_CERTIFICATES)
stream = partial(httpx2.stream, verify=NO_CERTIFICATES)


def official_client(base_url: str, key: str) -> openai.OpenAI:
    """Return OpenAI's client. It does not retry, so one call is one request."""
    return openai.OpenAI(
        base_url=base_url,
        api_key=key,
        max_retries=0,
        timeout=30,
        http_client=openai.DefaultHttpxClient(verify=NO_CERTIFICATES),
    )
