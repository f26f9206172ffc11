"""Reads the secret of a deployment or of the alert webhook, at each use, from the variable or file
that the policy references; it keeps none.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import NamedTuple

from gateway.domain.policy.policy import Deployment
from gateway.errors import UpstreamAuth

MOST_BYTES = 64 * 1024


class SigningKey(NamedTuple):
    """A key that signs requests; `session_token` goes with a temporary one."""

    access_key_id: str
    secret_access_key: str
    session_token: str | None

    def __repr__(self) -> str:
        """Return no part of the secret."""
        return "SigningKey(...)"


class SecretUnusable(Exception):
    """A reference leads to no secret. Its message continues "the secret NAME ..."."""


def resolve(deployment: Deployment) -> str | None:
    """Return the deployment's secret, None if it declares none.

    Raises `UpstreamAuth` with the reference, never the value. Files are read each time, so a
    rotated secret needs no restart.
    """
    return None if deployment.api_key is None else _header_value(deployment, deployment.api_key)


def signing_key(deployment: Deployment) -> SigningKey | None:
    """Return the key that signs a deployment's requests, None if it declares none. Raises
    `UpstreamAuth`.
    """
    parts = deployment.credentials
    if parts is None or parts.access_key_id is None or parts.secret_access_key is None:
        return None
    token = parts.session_token
    return SigningKey(
        _header_value(deployment, parts.access_key_id),
        _header_value(deployment, parts.secret_access_key),
        None if token is None else _header_value(deployment, token),
    )


def secret_problem(deployment: Deployment) -> str | None:
    """Return the first reference of a deployment that leads to no secret, with the reason; None if
    all do.
    """
    for reference in deployment.secret_references:
        try:
            secret = read_secret(reference)
            if not deployment.provider_facts.key_is_exchanged:
                _check_header(secret)
        except SecretUnusable as problem:
            return f"{reference} {problem}"
    return None


def _header_value(deployment: Deployment, reference: str) -> str:
    """Return the secret of a reference. Raises `UpstreamAuth` if there is none, or if no header can
    carry it.
    """
    try:
        secret = read_secret(reference)
        _check_header(secret)
    except SecretUnusable as problem:
        raise _missing(deployment, reference, str(problem)) from None
    return secret


def _check_header(secret: str) -> None:
    """Raise `SecretUnusable` for a secret that no header can carry."""
    if not (secret.isascii() and secret.isprintable()):
        raise SecretUnusable("is more than one line of ASCII, so no header can carry it")


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


def _missing(deployment: Deployment, reference: str, what: str) -> UpstreamAuth:
    """Return the error for a deployment whose credential cannot be used, with the reason."""
    return UpstreamAuth(
        f"The credential {reference} of deployment {deployment.name} {what} where the "
        "gateway runs. Ask an admin to set it. Nothing was sent."
    )
