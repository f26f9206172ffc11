"""Opens the connections of `doctor`'s checks, each with a limit of 3 s. They carry no content."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from typing import Any

import httpx2

from gateway.cli.terminal.fetch import NO_HEADERS, fetch

PROBE_LIMIT_S = 3.0


def connection(host: str, port: int) -> socket.socket:
    """Return a TCP connection to a host's port; the caller closes it. Raises `OSError`."""
    return socket.create_connection((host, port), timeout=PROBE_LIMIT_S)


def http_status(url: str, *, headers: Mapping[str, str] = NO_HEADERS) -> int | None:
    """Return the status that a GET of an address answers; None if no HTTP answer came within the
    time limit.
    """
    try:
        return int(fetch(url, headers=headers, timeout_s=PROBE_LIMIT_S).status_code)
    except httpx2.HTTPError:
        return None


def json_object(url: str) -> dict[str, Any]:
    """Return the JSON object that a GET of an address answers, whatever its status; empty without
    an answer.
    """
    try:
        found = fetch(url, timeout_s=PROBE_LIMIT_S).json()
    except (httpx2.HTTPError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
