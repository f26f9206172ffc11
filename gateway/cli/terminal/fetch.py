"""Sends one HTTP GET for a command, without the environment's proxies and with the machine's
trusted certificates, and returns the answer.
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from types import MappingProxyType

import httpx2

NO_HEADERS: Mapping[str, str] = MappingProxyType({})


def fetch(
    url: str, *, timeout_s: float, headers: Mapping[str, str] = NO_HEADERS
) -> httpx2.Response:
    """Return the answer to one GET. Raises `httpx2.HTTPError` or `httpx2.InvalidURL`.

    Trusts the machine's certificates or `SSL_CERT_FILE`, as the gateway does: without the
    environment httpx2 would read neither.
    """
    target = httpx2.URL(url)
    return httpx2.get(
        target,
        headers=headers,
        timeout=timeout_s,
        trust_env=False,
        verify=_trusted_certificates(target.scheme),
    )


def _trusted_certificates(scheme: str) -> ssl.SSLContext:
    """Return the trusted certificates for https; none for http, because they take 20 ms to load."""
    if scheme == "https":
        return ssl.create_default_context()
    return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
