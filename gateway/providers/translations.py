"""Starts the translation of a request for a deployment, and chooses the maximum of output tokens to
send.
"""

from __future__ import annotations

from gateway.domain.policy.policy import Deployment
from gateway.domain.request.request import RequestFacts
from gateway.wire.translation.losses import Losses


def losses_at(deployment: Deployment, dialect: str) -> Losses:
    """Return the empty collection of fields that a deployment's dialect has no place for."""
    where = f"{deployment.name} ({deployment.provider_facts.title}, {dialect})"
    return Losses(where, drops=deployment.drops_untranslatable)


def output_maximum(facts: RequestFacts, output_cap_tokens: int | None) -> int | None:
    """Return the maximum of output tokens to send: the cap, else the caller's own; None without
    both.
    """
    return facts.output_bound_tokens if output_cap_tokens is None else output_cap_tokens
