"""Answers of Bedrock that state a dearer mode, another model or a guardrail beside their usage were
booked at the standard price, unmarked.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.domain.request.served_tier import UNKNOWN_TIER
from gateway.wire.bedrock.answer import converse_events
from gateway.wire.observed import Observed
from tests.attacks.streamed import Event, read, settlement_of, text

USAGE = {"inputTokens": 100, "outputTokens": 50, "totalTokens": 150}
OPTIMIZED = {"performanceConfig": {"latency": "optimized"}}
ROUTED = {"trace": {"promptRouter": {"invokedModelId": "arn:aws:bedrock:::m/dear"}}}
GUARDED = {"trace": {"guardrail": {"inputAssessment": {"g": {"invocationMetrics": {}}}}}}
FORMS = ("whole", "stream")


def seen_of(form: str, members: dict[str, Any], *, end: str = "end_turn") -> Observed:
    """Return the observations of an answer with these members beside its usage."""
    if form == "stream":
        last: list[Event] = [
            {"messageStop": {"stopReason": end}},
            {"metadata": {"usage": USAGE, **members}},
        ]
        return read("bedrock", [text("bedrock"), *last])
    seen = Observed(is_whole=True)
    message = {"message": {"role": "assistant", "content": [{"text": "a"}]}}
    body = {"output": message, "stopReason": end, "usage": USAGE, **members}
    converse_events(json.dumps(body).encode(), seen)
    return seen


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    ("members", "tier"),
    [
        (OPTIMIZED, "optimized"),
        ({"performanceConfig": "optimized"}, "optimized"),
        ({"performanceConfig": {"latency": ["optimized"]}}, UNKNOWN_TIER),
        ({**OPTIMIZED, "serviceTier": {"type": "default"}}, "optimized"),
        ({**OPTIMIZED, "serviceTier": {"type": "flex"}}, UNKNOWN_TIER),
        ({"performanceConfig": {"latency": "standard"}, "serviceTier": {"type": "flex"}}, "flex"),
        ({"performanceConfig": {"latency": "standard"}}, None),
        ({"performanceConfig": {}}, None),
    ],
)
def test_an_optimized_latency_is_a_tier(
    form: str, members: dict[str, Any], tier: str | None
) -> None:
    """A price that does not list it holds the attempt, as for any other tier."""
    seen = seen_of(form, members)
    assert seen.service_tier == tier
    found = settlement_of(seen, service_tier=seen.service_tier)
    assert (found.cost_nusd is None) is (tier is not None)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("members", [ROUTED, GUARDED])
def test_another_model_or_a_guardrail_is_held(form: str, members: dict[str, Any]) -> None:
    """Neither has a price here."""
    seen = seen_of(form, members)
    found = settlement_of(seen, calls=seen.calls)
    assert (found.cost_nusd, found.held_nusd is not None) == (None, True)


@pytest.mark.parametrize("form", FORMS)
def test_a_guardrail_that_intervened_is_held(form: str) -> None:
    """Without its trace, too: an account may enforce one on each request."""
    seen = seen_of(form, {}, end="guardrail_intervened")
    found = settlement_of(seen, calls=seen.calls)
    assert (found.cost_nusd, found.is_suspect) == (None, True)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("members", [{}, {"trace": {}}, {"trace": {"guardrail": {}}}])
def test_an_ordinary_answer_is_charged(form: str, members: dict[str, Any]) -> None:
    seen = seen_of(form, members)
    found = settlement_of(seen, calls=seen.calls)
    assert (found.cost_nusd is not None, found.is_suspect) == (True, False)
