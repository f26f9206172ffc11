"""Upstream credentials: the policy has references, the environment or files have the secrets.
Nothing is kept.
"""

from __future__ import annotations

import os
from pathlib import Path

from gateway.domain.policy.policy import Deployment
from gateway.errors import UpstreamAuth


def resolve(deployment: Deployment) -> str | None:
    """Return the deployment's secret, None if it declares none.

    Raises `UpstreamAuth` with the reference, never the value. Files are read each time, so a
    rotated secret needs no restart.
    """
    reference = deployment.api_key
    if reference is None:
        return None
    kind, _, name = reference.partition(":")
    try:
        secret = os.environ.get(name, "") if kind == "env" else Path(name).expanduser().read_text()
    except OSError as broken:
        raise _missing(deployment, broken.strerror or "cannot be read") from None
    if not secret.strip():
        raise _missing(deployment, "is empty or not set")
    return secret.strip()


def _missing(deployment: Deployment, what: str) -> UpstreamAuth:
    return UpstreamAuth(
        f"The credential {deployment.api_key} of deployment {deployment.name} {what} where the "
        "gateway runs. Ask an admin to set it. Nothing was sent."
    )
