"""Leave to ask a self-hosted engine for one token of fixed content, to see whether it works again.

Nothing of any request is in it: no team, no class, so there are no rules of residency that it could
break. It goes to the address that the policy declares for an engine of one's own, and the transport
checks that as it does for all.
"""

from __future__ import annotations

from datetime import date

from gateway.domain.policy.policy import Deployment, PolicyVersion
from gateway.domain.residency.rules import Permit
from gateway.domain.routing.decide import origin_of

PROBE = 0  # in the place of an attempt's number: those begin at 1, and a probe is none


def probe_permit(
    version: PolicyVersion, deployment: Deployment, *, gateway_region: str, day: date
) -> Permit:
    """Return leave for one probe of a deployment of this policy."""
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
