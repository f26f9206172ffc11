"""The deployment block of `engine serve` in a policy: the policy's own reader must take it."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from engine.serving.deployment_block import DeploymentFacts, deployment_block, dialable_url
from gateway.wire.parsed_policy import parse

POLICY = """\
version: 1
classes: {internal: {regions: [any]}}
routes: [{name: chat, deployments: [DEPLOYMENT]}]
teams: [{name: payments, cost_centre: CC-1, data_class: internal, routes: [chat]}]
"""


def some_facts(**changes: Any) -> DeploymentFacts:
    given: dict[str, Any] = {
        "url": "http://127.0.0.1:8001",
        "served_model_name": "tiny",
        "region": "unknown",
        "context_tokens": 4096,
        "api_key_file": None,
        "is_pooling": False,
        "has_tools": True,
        "has_reasoning": True,
    }
    return DeploymentFacts(**(given | changes))


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({}, "tiny"),
        ({"served_model_name": "ORG/Some-Model_1.5:x"}, "ORG-Some-Model_1.5-x"),
        ({"served_model_name": "m" * 80}, "m" * 63),
        ({"is_pooling": True, "context_tokens": None}, "tiny"),
        ({"api_key_file": Path("/run/secrets/engine"), "has_tools": False}, "tiny"),
        ({"url": "http://[::1]:8001", "has_reasoning": False}, "tiny"),
    ],
)
def test_a_policy_takes_the_block_as_it_is(changes: dict[str, Any], name: str) -> None:
    """It is pasted by a person at night; a block that is rejected is retyped, with mistakes."""
    text = deployment_block(some_facts(**changes))
    (block,) = yaml.safe_load(text)
    document = f"{POLICY.replace('DEPLOYMENT', name)}deployments:\n{text}"
    (deployment,) = parse(document).policy.deployments.values()
    assert deployment.name == block["name"] == name
    assert deployment.base_url == block["base_url"]
    assert deployment.model == block["model"]


@pytest.mark.parametrize(
    ("host", "url"),
    [
        ("127.0.0.1", "http://127.0.0.1:8001"),
        ("0.0.0.0", "http://127.0.0.1:8001"),
        ("::", "http://[::1]:8001"),
        ("engine-1", "http://engine-1:8001"),
    ],
)
def test_the_address_can_be_dialled(host: str, url: str) -> None:
    """A wildcard is no address to connect to."""
    assert dialable_url(host, 8001) == url
