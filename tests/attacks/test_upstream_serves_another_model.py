"""A router, or a request that names further models, is answered by a model at another price; the
events said nothing of it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from gateway.domain.providers.unasked import unasked_of
from tests.attacks.settling import ask, only_event, policy
from tests.gateway_process import Gateway
from tests.integration.raw_upstream import RawUpstream, sends, whole

ANSWER = {
    "id": "c",
    "model": "dear/model",
    "choices": [
        {"index": 0, "message": {"role": "assistant", "content": "hi"}, "finish_reason": "stop"}
    ],
    "usage": {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15},
}
# The model of the deployment, the members of the request, and whether the price is an estimate.
CASES: dict[str, tuple[str, dict[str, Any], bool]] = {
    "router": ("openrouter/auto", {}, True),
    "models": ("openai/gpt-4o", {"models": ["dear/model"]}, True),
    "provider": ("openai/gpt-4o", {"provider": {"sort": "throughput"}}, True),
    "plain": ("openai/gpt-4o", {}, False),
    "place": ("openai/gpt-4o", {"inference_geo": "us"}, False),
}


@pytest.fixture(scope="module")
def gateway(
    launch_gateway: Callable[..., Iterator[Gateway]], module_database_url: str
) -> Iterator[Gateway]:
    upstream = RawUpstream(
        {one[0]: sends(whole(json.dumps(ANSWER).encode())) for one in CASES.values()}
    )
    text = policy(upstream.url, dict.fromkeys(CASES, "openrouter"))
    for name, (model, _, _) in CASES.items():
        text = text.replace(f"model: {name},", f"model: '{model}', api_key: 'env:FAKE_KEY',")
    text = text.replace("operations: [", "allows: [rerouting], operations: [").replace(
        ", embeddings]", "]"
    )
    yield from launch_gateway(text, module_database_url)
    upstream.close()


@pytest.mark.parametrize("name", CASES)
def test_an_answer_of_a_model_that_may_be_another_is_an_estimate(
    gateway: Gateway, name: str
) -> None:
    _, members, is_estimate = CASES[name]
    row = only_event(gateway, ask(gateway, name, **members))
    assert (row["usage_source"], row["is_stand_in_price"]) == ("provider", is_estimate)


@pytest.mark.parametrize(
    ("provider", "model", "expected"),
    [
        ("openrouter", "openrouter/auto", True),
        ("openrouter", "openrouter/pareto", True),
        ("openrouter", "openai/gpt-4o", False),
        ("azure_openai", "model-router-2025-11-18", True),
        ("azure_openai", "gpt-4o", False),
        ("bedrock", "arn:aws:bedrock:eu-west-1:1:default-prompt-router/meta.llama:1", True),
        ("vllm", "openrouter/auto", False),
    ],
)
def test_routers_are_known_by_their_names(provider: str, model: str, expected: bool) -> None:
    assert unasked_of(provider, model).is_router is expected
