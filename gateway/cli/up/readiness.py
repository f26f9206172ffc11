"""Waits until a process that `up` started answers at its address, and checks that the port of
`tollgate dashboard` is free; the preflight checks the ports of `up`.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable

import httpx2

from gateway.cli.terminal.fetch import fetch
from gateway.cli.up.children import Children
from gateway.domain.words import host_and_port
from gateway.errors import BadUsage, OperatorError

READY_WITHIN_S = 60.0


def wait_for(
    url: str,
    children: Children,
    *,
    within_s: float = READY_WITHIN_S,
    is_right: Callable[[httpx2.Response], bool] = lambda answer: True,
) -> None:
    """Wait until `url` answers 200 and `is_right` accepts the answer.

    Raises `OperatorError` with its last answer and the place of the logs.
    """
    began_s = time.monotonic()
    last = "no answer"
    while time.monotonic() - began_s < within_s:
        children.require_alive()
        try:
            answer = fetch(url, timeout_s=5)
            if answer.status_code == 200 and is_right(answer):
                return
            last = f"HTTP {answer.status_code} {answer.text[:500]}".rstrip()
        except httpx2.HTTPError as broken:
            last = str(broken) or type(broken).__name__
        time.sleep(0.2)
    raise OperatorError(
        f"{url} was not ready in {within_s:g} s: {last}. The logs in {children.logs} have the "
        "reason; remove it and run tollgate up again."
    )


def require_free(host: str, port: int, *, setting: str) -> None:
    """Raise `BadUsage` with the setting if the port cannot be bound, before anything is started."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as broken:
            raise BadUsage(
                f"Cannot listen on {host_and_port(host, port)}: {broken.strerror}. Choose another "
                f"port with {setting}."
            ) from None
