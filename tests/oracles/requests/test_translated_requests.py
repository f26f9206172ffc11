"""Each request that a dialect of callers allows is sent in a form that the target takes, or is
refused by a name before anything is sent. `CASES=20000` judges as many.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from gateway.domain.policy.policy import FieldLoss
from gateway.domain.request.request import RequestBody
from gateway.errors import InvalidRequest, Untranslatable
from gateway.providers.aws.bedrock import Bedrock
from tests import factories
from tests.oracles.requests.conversations import draw
from tests.oracles.requests.judges import converse_faults

CASES = int(os.environ.get("CASES", "200"))


def _converse(read: RequestBody, *, model: str) -> Any:
    """Return a request of Converse."""
    one = factories.deployment(
        provider="bedrock", model=model, native=frozenset(), untranslatable=FieldLoss.DROP
    )
    return Bedrock().translate(one, read).body


TARGETS: dict[str, tuple[Callable[[RequestBody], Any], Callable[[Any], list[str]]]] = {
    "bedrock-claude": (
        lambda read: _converse(read, model="eu.anthropic.claude-opus-4-6-v1"),
        converse_faults,
    ),
    "bedrock-nova": (lambda read: _converse(read, model="amazon.nova-pro-v1:0"), converse_faults),
}


@pytest.mark.parametrize("target", TARGETS)
def test_a_target_takes_what_the_callers_dialect_allows(target: str) -> None:
    """Faults are counted by their kind, each with the smallest number that draws it."""
    write, judge = TARGETS[target]
    faults: Counter[str] = Counter()
    first: dict[str, int] = {}
    for seed in range(CASES):
        operation, body = draw(seed)
        try:
            sent = json.loads(msgspec.json.encode(write(factories.read(body, operation))))
            found = judge(sent)
        except (InvalidRequest, Untranslatable) as refused:
            found = [f"refused: {refused}"]
        for fault in set(found):
            faults[fault] += 1
            first.setdefault(fault, seed)
    lines = [
        f"{number} × {fault} (first: {first[fault]})" for fault, number in faults.most_common()
    ]
    assert not lines, "\n".join(lines[:30])
