"""Starts the translation of a request for a deployment."""

from __future__ import annotations

from gateway.domain.policy.policy import Deployment
from gateway.wire.translation.losses import Losses


def losses_at(deployment: Deployment, dialect: str) -> Losses:
    """Return the empty collection of fields that a deployment's dialect has no place for."""
    where = f"{deployment.name} ({deployment.provider_facts.title}, {dialect})"
    return Losses(where, drops=deployment.drops_untranslatable)
