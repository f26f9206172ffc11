"""Each request that a dialect of callers allows is sent in a form that the target takes, or is
refused by a name before anything is sent. `CASES=20000` judges as many.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from gateway.domain.policy.policy import FieldLoss
from gateway.domain.request.request import RequestBody
from gateway.errors import InvalidRequest, Untranslatable
from gateway.providers.registry import build_providers
from tests import factories
from tests.answers import at_once
from tests.oracles.requests.conversations import draw
from tests.oracles.requests.judges import (
    converse_faults,
    generate_content_faults,
    messages_faults,
)

CASES = int(os.environ.get("CASES", "200"))


ADAPTERS = build_providers(salt_key=bytes(32))


def _sent(provider: str, model: str, read: RequestBody) -> Any:
    """Return the body of the request that a provider is sent."""
    one = factories.deployment(
        provider=provider, model=model, native=frozenset(), untranslatable=FieldLoss.DROP
    )
    adapter = ADAPTERS[provider]
    translation = adapter.translate(one, read)
    call = at_once(adapter.call(one, factories.request(read), translation=translation))
    return json.loads(call.body)


TARGETS: dict[str, tuple[str, str, Callable[[Any], list[str]]]] = {
    "bedrock-claude": ("bedrock", "eu.anthropic.claude-opus-4-6-v1", converse_faults),
    "bedrock-nova": ("bedrock", "amazon.nova-pro-v1:0", converse_faults),
    "anthropic": ("anthropic", "claude-opus-4-6", messages_faults),
    "anthropic-budget": ("anthropic", "claude-sonnet-4-5", messages_faults),
    "gemini": ("gemini", "gemini-3-pro", generate_content_faults),
    "gemini-budget": ("gemini", "gemini-2.5-pro", generate_content_faults),
}


# What has no legal form there: a name that begins with a digit.
REFUSED = {"gemini": ("The tool's name '0' is refused there",)}


@pytest.mark.parametrize("target", TARGETS)
def test_a_target_takes_what_the_callers_dialect_allows(target: str) -> None:
    """Faults are counted by their kind, each with the smallest number that draws it."""
    provider, model, judge = TARGETS[target]
    faults: Counter[str] = Counter()
    first: dict[str, int] = {}
    for seed in range(CASES):
        operation, body = draw(seed)
        try:
            found = judge(_sent(provider, model, factories.read(body, operation)))
        except (InvalidRequest, Untranslatable) as refused:
            is_known = any(str(refused).startswith(one) for one in REFUSED.get(provider, ()))
            found = [] if is_known else [f"refused: {refused}"]
        for fault in set(found):
            faults[fault] += 1
            first.setdefault(fault, seed)
    lines = [
        f"{number} × {fault} (first: {first[fault]})" for fault, number in faults.most_common()
    ]
    assert not lines, "\n".join(lines[:30])
