"""Providers that bill a request that they refuse: Azure's filter and its limit of the prompt for
tokens, xAI for a generation or a fee of USD 0.05. They were booked as nothing, and xAI's as a
broken credential of the gateway.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from decimal import Decimal

import pytest

from gateway.domain.operation import Operation
from gateway.domain.policy.policy import Route
from gateway.domain.pricing.pricing import calls_hold_nusd
from gateway.domain.providers.table import PROVIDERS
from gateway.domain.request.bound import bound_of
from tests import factories
from tests.attacks.settling import ask, only_event, policy
from tests.gateway_process import Gateway
from tests.integration.raw_upstream import Answering, RawUpstream, raw_upstream, sends, whole

FILTERED = {
    "error": {
        "message": "The response was filtered due to the prompt triggering Azure OpenAI's content "
        "management policy.",
        "code": "content_filter",
        "status": 400,
        "innererror": {"code": "ResponsibleAIPolicyViolation"},
    }
}
VIOLATES = {
    "code": "The caller does not have permission to execute the specified operation",
    "error": "Content violates usage guidelines. Failed check: SAFETY_CHECK_TYPE_BIO",
}
NO_RIGHT = {**VIOLATES, "error": "Your API key has no right to this model."}
LONG = {"error": {"message": "The maximum is 8192 tokens.", "code": "context_length_exceeded"}}
WRONG = {"error": {"message": "'temperature' is too high", "code": "invalid_value"}}
# The provider, the operation, the answer, and: the status for the caller, and the booking.
CASES = {
    "azure-chat": ("azure_openai", "chat/completions", "400 Bad", FILTERED, 400, "unknown"),
    "azure-responses": ("azure_openai", "responses", "400 Bad", FILTERED, 400, "unknown"),
    "azure-wrong": ("azure_openai", "chat/completions", "400 Bad", WRONG, 400, "none"),
    "azure-long": ("azure_openai", "chat/completions", "400 Bad", LONG, 400, "unknown"),
    "openai": ("openai", "chat/completions", "400 Bad", FILTERED, 400, "none"),
    "openai-long": ("openai", "chat/completions", "400 Bad", LONG, 400, "none"),
    "xai-responses": ("xai", "responses", "403 Forbidden", VIOLATES, 400, "unknown"),
    "xai-chat": ("xai", "chat/completions", "403 Forbidden", VIOLATES, 400, "unknown"),
    "xai-right": ("xai", "responses", "403 Forbidden", NO_RIGHT, 502, "none"),
}


SERVED = "operations: [chat, responses], api_key: 'env:FAKE_KEY'"


def answering(status: str, body: object) -> Answering:
    return sends(whole(json.dumps(body).encode()).replace(b"200 OK", status.encode()))


@pytest.fixture(scope="module")
def upstream() -> Iterator[RawUpstream]:
    yield from raw_upstream({name: answering(one[2], one[3]) for name, one in CASES.items()})


@pytest.fixture(scope="module")
def gateway(
    launch_gateway: Callable[..., Iterator[Gateway]],
    module_database_url: str,
    upstream: RawUpstream,
) -> Iterator[Gateway]:
    names = {name: one[0] for name, one in CASES.items()}
    text = policy(upstream.url, names)
    text = text.replace("operations: [chat, completions, responses, embeddings]", SERVED)
    yield from launch_gateway(text, module_database_url)


@pytest.mark.parametrize("name", CASES)
def test_refused_content_is_told_as_such_and_held_where_it_is_billed(
    gateway: Gateway, name: str
) -> None:
    _, operation, _, _, status, source = CASES[name]
    answer = ask(gateway, name, operation)
    assert answer.status_code == status, answer.text
    row = only_event(gateway, answer)
    assert row["usage_source"] == source
    assert (row["held_usd"] is not None) is (source == "unknown")


@pytest.mark.parametrize("provider", [one for one in PROVIDERS if PROVIDERS[one].bills_refused])
def test_a_hold_covers_the_fee_of_a_refusal(provider: str) -> None:
    """A flood of refused requests would otherwise cost more than their holds."""
    facts = PROVIDERS[provider]
    for operation in facts.bills_refused - {Operation.EMBEDDINGS}:
        fee_nusd = calls_hold_nusd(1, usd=facts.refusal_fees_usd.get(operation, Decimal(0)))
        held = bound_of(
            factories.facts(operation, output_bound_tokens=1, body_bytes=1),
            route=Route(name="assistant", deployments=("one",)),
            deployment=factories.deployment(provider=provider, is_self_hosted=False),
            price=factories.price(),
            is_relied_on=True,
            bounds_rounds=True,
        )
        assert held.nusd >= fee_nusd
