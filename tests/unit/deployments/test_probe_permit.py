"""Leave for a probe: for engines of one's own, at the address that the policy declares, for nothing
else.
"""

from __future__ import annotations

import pytest

from gateway.domain.residency.rules import verify
from gateway.domain.routing.probe_permit import PROBE, probe_permit
from gateway.errors import ResidencyDenied
from tests import factories


def test_a_probe_goes_to_the_declared_address_alone() -> None:
    """The transport checks its permit as it checks all."""
    engine = factories.deployment(is_self_hosted=True)
    version = factories.version(factories.policy(engine))
    permit = probe_permit(version, engine, gateway_region="unknown", day=factories.NOW.date())
    assert (permit.attempt, permit.policy_version, permit.origin) == (
        PROBE,
        version.version,
        "http://127.0.0.1:9",
    )
    verify(permit, origin="http://127.0.0.1:9")
    with pytest.raises(ResidencyDenied):
        verify(permit, origin="http://127.0.0.1:10")


def test_only_declared_engines_are_probed() -> None:
    """A company's API gets only its callers' requests, and an undeclared deployment gets none."""
    hosted = factories.deployment("hosted")
    version = factories.version(factories.policy(hosted))
    for deployment in (hosted, factories.deployment("hosted", is_self_hosted=True)):
        with pytest.raises(AssertionError):
            probe_permit(version, deployment, gateway_region="unknown", day=factories.NOW.date())
