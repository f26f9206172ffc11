"""Lets a gateway of a chaos run find the token host's public name at this machine's own one.

Python imports this module by its name at start, from `PYTHONPATH`. It stands for a line in
`/etc/hosts`, which only an administrator could write.
"""

from __future__ import annotations

import os
import socket
from typing import Any

# The host's name, its own address of the loopback network, and its port there.
_NAME, _ADDRESS, _PORT = os.environ.get("CHAOS_TOKEN_HOST", "::").split(":")
_getaddrinfo = socket.getaddrinfo


def _found(host: Any, port: Any, *more: Any, **named: Any) -> Any:
    if host and host in (_NAME, _ADDRESS):
        host, port = _ADDRESS, int(_PORT)
    return _getaddrinfo(host, port, *more, **named)


socket.getaddrinfo = _found
