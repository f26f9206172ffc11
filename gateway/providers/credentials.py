"""Reads the secret of a deployment or of the alert webhook, at each use, from the variable or file
that the policy references; it keeps none.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from gateway.domain.policy.policy import Deployment
from gateway.errors import UpstreamAuth

MOST_BYTES = 64 * 1024


class SecretUnusable(Exception):
    """A reference leads to no secret. Its message continues "the secret NAME ..."."""


def resolve(deployment: Deployment) -> str | None:
    """Return the deployment's secret, None if it declares none.

    Raises `UpstreamAuth` with the reference, never the value. Files are read each time, so a
    rotated secret needs no restart.
    """
    reference = deployment.api_key
    if reference is None:
        return None
    try:
        secret = read_secret(reference)
    except SecretUnusable as problem:
        raise _missing(deployment, str(problem)) from None
    if not (secret.isascii() and secret.isprintable()):
        raise _missing(deployment, "is more than one line of ASCII, so no header can carry it")
    return secret


def read_secret(reference: str) -> str:
    """Return the secret that a reference (`env:` or `file:`) names, without blanks at its ends.
    Raises `SecretUnusable`.

    Requests wait for it, so it reads a bounded regular file alone: opening a pipe would wait for
    its writer, and `/dev/zero` has no end.
    """
    kind, _, name = reference.partition(":")
    secret = (os.environ.get(name, "") if kind == "env" else _content(name)).strip()
    if not secret:
        raise SecretUnusable("is empty or not set")
    return secret


def _content(path: str) -> str:
    """Return the text of a secret's file. Raises `SecretUnusable` if it is no readable, small,
    regular text file.
    """
    try:
        # RuntimeError: `~` has no meaning for an account without a home.
        with open(Path(path).expanduser(), "rb", opener=_open_at_once) as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise SecretUnusable("is not a regular file")
            content = file.read(MOST_BYTES + 1)
            if len(content) > MOST_BYTES:
                raise SecretUnusable(f"is larger than {MOST_BYTES} bytes")
            return content.decode()
    except UnicodeDecodeError:
        raise SecretUnusable("is not text") from None
    except (OSError, RuntimeError, ValueError) as broken:
        reason = getattr(broken, "strerror", None) or "no such path"
        raise SecretUnusable(f"cannot be read ({reason})") from None


def _open_at_once(path: str, flags: int) -> int:
    """Open a file without waiting: a pipe without a writer would block."""
    return os.open(path, flags | os.O_NONBLOCK)


def _missing(deployment: Deployment, what: str) -> UpstreamAuth:
    """Return the error for a deployment whose credential cannot be used, with the reason."""
    return UpstreamAuth(
        f"The credential {deployment.api_key} of deployment {deployment.name} {what} where the "
        "gateway runs. Ask an admin to set it. Nothing was sent."
    )
