"""Security F13: one team's flagged prompt, answered with 403, sent every team to the dearer
deployment.
"""

from __future__ import annotations

from typing import Any

import httpx2
import pytest

from gateway.domain.deployments.breaker import LEAST_OUTCOMES
from gateway.errors import InvalidRequest, UpstreamAuth
from gateway.providers.openai import OpenAI
from gateway.services.deployments.state import DeploymentHealth
from tests import plain_http
from tests.factories import deployment
from tests.gateway_process import FakeUpstreamProcess, Gateway, StartGateway
from tests.integration.policy import PRICE
from tests.unit.deployments.test_dispatch import ONE, TWO, dispatch, ok, says

OPENROUTER = (
    b'{"error":{"code":403,"message":"Your chosen model requires '
    b'moderation","metadata":{"reasons":["violence"],'
    b'"flagged_input":"...","provider_name":"x"}}}'
)
MODERATION = [
    OPENROUTER,
    b'{"error":{"message":"no","type":"invalid_request_error","code":"content_policy_violation"}}',
    b'{"error":{"message":"no","type":"invalid_request_error","code":"moderation_blocked"}}',
    b'{"error":{"message":"no","type":"content_filter","code":null}}',
]
NO_PERMISSION = (
    b'{"error":{"message":"no access to the moderation '
    b'endpoint","type":"permission_error","code":403}}'
)
POLICY = """\
version: 1
classes: {{internal: {{regions: [any]}}}}
deployments:
  - {{name: cheap, model: plain-1, provider: openai_compatible, region: unknown, base_url: "{url}/v1", price: {price}}}
  - {{name: dear, model: plain-1, provider: openai_compatible, region: unknown, base_url: "{url}/v1", price: {price}}}
routes: [{{name: chat, deployments: [cheap, dear], objective: priority}}]
teams:
  - {{name: red, cost_centre: CC-1, data_class: internal, routes: [chat]}}
  - {{name: blue, cost_centre: CC-2, data_class: internal, routes: [chat]}}
"""  # noqa: E501


@pytest.fixture
def gateway(start_gateway: StartGateway, fake_upstream: FakeUpstreamProcess) -> Gateway:
    """Return a gateway with two teams that share a cheap deployment and a dear one as fallback."""
    return start_gateway(POLICY.format(url=fake_upstream.url, price=PRICE))


def ask(gateway: Gateway, team: str, **members: Any) -> httpx2.Response:
    body = {
        "model": "chat",
        "messages": [{"role": "user", "content": "hello"}],
        "max_tokens": 5,
        **members,
    }
    headers = {"authorization": f"Bearer {gateway.keys[team]}"}
    return plain_http.post(
        f"{gateway.base_url}/chat/completions", json=body, headers=headers, timeout=30
    )


def served_by(gateway: Gateway, team: str) -> str:
    answer = ask(gateway, team)
    assert answer.status_code == 200, answer.text
    (event,) = gateway.events(answer.headers["x-request-id"])
    return str(event["deployment"])


def test_the_other_team_is_still_served_by_the_cheap_one(gateway: Gateway) -> None:
    """One such prompt every five seconds made blue pay ten times the price."""
    for _ in range(2 * LEAST_OUTCOMES):
        assert ask(gateway, "red", fake="403").status_code == 502
    assert served_by(gateway, "blue") == "cheap"


def test_an_error_to_two_teams_counts_against_the_deployment(gateway: Gateway) -> None:
    """A revoked permission affects all teams, and each request would try the deployment in vain."""
    for _ in range(LEAST_OUTCOMES):
        ask(gateway, "red", fake="403")
        ask(gateway, "blue", fake="403")
    assert (
        'tollgate_breaker_opened_total{deployment="cheap",reason="upstream_auth"} 1.0'
        in gateway.metrics()
    )


async def test_a_403_is_still_tried_elsewhere() -> None:
    """A 403 may concern a permission that the next deployment has."""
    on = dispatch(says(403, NO_PERMISSION), ok())
    await on.ask(ONE, TWO)
    assert (on.places, on.opened) == (["one", "two"], [])


@pytest.mark.parametrize("body", MODERATION)
async def test_a_moderation_refusal_is_the_callers_and_is_not_tried_elsewhere(body: bytes) -> None:
    """When it was tried elsewhere, a refused prompt became a paid answer."""
    on = dispatch(says(403, body))
    with pytest.raises(InvalidRequest):
        await on.ask(ONE, TWO)
    assert (on.places, on.opened) == (["one"], [])


def test_a_message_alone_names_no_moderation() -> None:
    """Messages change without notice, so only type, code and metadata are read."""
    assert isinstance(OpenAI().error(deployment(), 403, {}, body=NO_PERMISSION), UpstreamAuth)


def test_a_probe_of_fixed_content_opens_at_once() -> None:
    """A probe contains nothing from a caller, so its 403 concerns the deployment."""
    opened: list[tuple[str, str]] = []
    health = DeploymentHealth(on_open=lambda name, why: opened.append((name, why)))
    error = OpenAI().error(deployment("one"), 403, {}, body=NO_PERMISSION)
    health.note_probe(deployment("one"), error, began_s=0.0, now_s=1.0)
    assert opened == [("one", "upstream_auth")]
