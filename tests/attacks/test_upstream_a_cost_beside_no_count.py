"""Answers and errors that state a cost above zero and no count above zero: they were booked at
nothing, unflagged.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.domain.pricing.tokens import UsageSource
from gateway.wire.observed import Observed
from gateway.wire.openai.answer.chat import rewrite_chat
from gateway.wire.openai.answer.shapes import usage_in
from tests.attacks.streamed import settlement_of
from tests.factories import settled

ZEROS = {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}
# OpenRouter's and xAI's costs, and Perplexity's.
COSTS: dict[str, Any] = {
    "cost": 0.05,
    "cost_in_usd_ticks": 500_000_000,
    "cost ": {"input_tokens_cost": 0.05, "total_cost": 0.05},
}


@pytest.mark.parametrize("name", COSTS)
@pytest.mark.parametrize("counts", [ZEROS, {}])
def test_a_cost_beside_no_count_is_held(name: str, counts: dict[str, int]) -> None:
    usage = {**counts, name.strip(): COSTS[name]}
    found = usage_in(json.dumps({"error": {"message": "a"}, "usage": usage}).encode())
    made = settled(found, was_served=False)
    assert (made.source, made.is_suspect) == (UsageSource.UNKNOWN, True)
    seen = Observed(is_whole=True)
    body = {"model": "m", "choices": [{"message": {"content": ""}}], "usage": usage}
    rewrite_chat(json.dumps(body).encode(), seen, model="m")
    made = settlement_of(seen)
    assert (made.source, made.is_suspect) == (UsageSource.UNKNOWN, True)


@pytest.mark.parametrize("usage", [ZEROS, {**ZEROS, "cost": 0}, {**ZEROS, "cost": None}])
def test_zeros_without_a_cost_stay_zero(usage: dict[str, Any]) -> None:
    found = usage_in(json.dumps({"usage": usage}).encode())
    made = settled(found)
    assert (made.source, made.cost_nusd, made.is_suspect) == (UsageSource.PROVIDER, 0, False)


def test_a_cost_beside_counts_is_not_judged() -> None:
    usage = {"prompt_tokens": 9, "completion_tokens": 9, "cost": 0.05}
    made = settled(usage_in(json.dumps({"usage": usage}).encode()))
    assert made.source is UsageSource.PROVIDER
