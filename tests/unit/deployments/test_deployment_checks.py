"""Readiness names the deployments that are passed over: with a revoked key as the only deployment
each request failed, and doctor found nothing broken.
"""

from __future__ import annotations

import pytest

from gateway.domain.checks import Check, Status
from gateway.errors import RequestError, UpstreamAuth, UpstreamError
from gateway.services.deployments.state import DeploymentHealth
from tests import factories


@pytest.mark.parametrize("error", [UpstreamAuth("401"), UpstreamError("500")])
def test_a_passed_over_deployment_is_named_until_it_answers(error: RequestError) -> None:
    """The alert comes after five minutes; the line is there at once."""
    health = DeploymentHealth()
    quiet = (Check("deployments", Status.OK, "none is passed over"),)
    one, two = factories.deployment("one"), factories.deployment("two")
    health.of(two)
    assert health.checks() == quiet
    for number in range(30):
        health.note_probe(one, error, began_s=number / 100, now_s=number / 100)
    (found,) = health.checks()
    assert found.status is Status.WARN
    assert found.finding == f"passed over because they failed: one ({error.code})"
    assert found.remedy == "see docs/runbooks/deployment-passed-over.md"
    health.note_probe(one, None, began_s=100, now_s=100)
    assert health.checks() == quiet


def test_an_engine_that_becomes_a_provider_is_probed_by_requests() -> None:
    """Its breaker waited for the prober of engines, which had no engine of that name any more."""
    health = DeploymentHealth()
    health.probes_engines = True
    engine = factories.deployment("one", is_self_hosted=True)
    health.open_breaker(engine, "overloaded", now_s=0)
    assert health.is_open(health.of(engine), 100)
    assert not health.is_open(health.of(factories.deployment("one")), 100)


def test_a_passed_over_deployment_is_logged_with_its_error(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Readiness and metrics have its code alone, and the operator needs the provider's type."""
    health = DeploymentHealth()
    one = factories.deployment("one")
    health.note_probe(one, UpstreamAuth("AWS's reason"), began_s=0, now_s=0)
    health.note_probe(one, None, began_s=1, now_s=1)
    passed_over, used_again = capsys.readouterr().out.splitlines()
    assert "deployment_passed_over" in passed_over
    assert "AWS's reason" in passed_over
    assert "deployment_used_again" in used_again
