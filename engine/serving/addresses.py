"""Checks that an engine can listen at its address, and keeps a second engine from it meanwhile."""

import errno
import socket
from collections.abc import Iterator
from contextlib import contextmanager

from engine.errors import UsageError

CHOOSE = "Choose another with --port, or set TOLLGATE_ENGINE_PORT."


def problem(host: str, port: int) -> str | None:
    """Return why an address cannot be bound, or None.

    Then another program listens there, or the address is not of this machine.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                return "is in use"
            return f"cannot be used ({error.strerror})"
    return None


def require_free(host: str, port: int) -> None:
    """Raise `UsageError` if an address cannot be bound, before 20 seconds of loading end in vLLM's
    own error.
    """
    if (reason := problem(host, port)) is not None:
        raise UsageError(f"{host}:{port} {reason}. {CHOOSE}")


@contextmanager
def held(host: str, port: int) -> Iterator[None]:
    """Hold an address for the block, against another `engine serve`. Raises `UsageError` if one
    holds it.

    vLLM binds its address when it starts, and listens only when the model is loaded. Until then
    Linux lets a second vLLM bind it too. The second one fails at last, but not before its
    supervisor has taken the first one's answer for its own. An abstract socket is the lock: it
    belongs to a network, as the address does, and ends with its process.
    """
    with socket.socket(socket.AF_UNIX) as lock:
        try:
            lock.bind(f"\0tollgate-engine-serve {host}:{port}")
        except OSError as error:  # any other error: this system has no abstract sockets
            if error.errno == errno.EADDRINUSE:
                raise UsageError(
                    f"{host}:{port} is in use: another engine serve starts or runs there. {CHOOSE}"
                ) from error
        yield
