"""Makes the permit to send a self-hosted engine one probe, a token of fixed content that tests if
it works again; the caller sends it.

A probe contains nothing of any request: no team, no class, so no residency rule applies. It goes to
the address that the policy declares for a self-hosted engine, and the transport checks that as for
every attempt.
"""

from __future__ import annotations

from datetime import date

from gateway.domain.policy.policy import Deployment, PolicyVersion
from gateway.domain.residency.rules import Permit
from gateway.domain.routing.decide import origin_of

PROBE = 0  # instead of an attempt's number: those begin at 1, and a probe is none


def probe_permit(
    version: PolicyVersion, deployment: Deployment, *, gateway_region: str, day: date
) -> Permit:
    """Return the permission for one probe of a deployment of this policy."""
    policy = version.policy
    assert deployment.is_self_hosted, "nothing is sent to others but what their callers send"
    assert policy.deployments[deployment.name] is deployment, "it is declared"
    return Permit(
        deployment=deployment,
        attempt=PROBE,
        policy_version=version.version,
        origin=origin_of(deployment.base_url),
        rules=(),
        regions=policy.region_tree,
        gateway_region=gateway_region,
        day=day,
        valid_days=policy.facts_valid_days,
    )
