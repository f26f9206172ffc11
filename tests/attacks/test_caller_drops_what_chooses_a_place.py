"""`untranslatable: drop` left out `inference_geo` and its like: at a deployment that allows
rerouting, a request went to any place although its caller had named one. A maximum of 0 was left
out too, and the answer had no maximum.
"""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from gateway.domain.operation import Operation
from gateway.domain.policy.policy import FieldLoss
from gateway.domain.policy.request_fields import FEATURES
from gateway.domain.providers.table import PROVIDERS
from gateway.errors import Untranslatable
from gateway.providers.registry import build_providers
from tests.factories import deployment, read

ADAPTERS = build_providers(salt_key=bytes(32))
DROPS = [
    deployment(provider=name, native=PROVIDERS[name].native, untranslatable=FieldLoss.DROP)
    for name in ("openai", "gemini", "bedrock")
]
MESSAGES: dict[str, Any] = {
    "model": "m",
    "max_tokens": 9,
    "messages": [{"role": "user", "content": "x"}],
}
FIELDS = sorted({*FEATURES["rerouting"].members, *FEATURES["stored_state"].members})


@pytest.mark.parametrize("at", DROPS, ids=lambda one: one.provider)
@pytest.mark.parametrize("field", FIELDS)
def test_a_field_that_chooses_a_place_is_never_dropped(field: str, at: Any) -> None:
    body = json.dumps(MESSAGES | {field: "eu"}).encode()
    with pytest.raises(Untranslatable) as refused:
        ADAPTERS[at.provider].translate(at, read(body, Operation.MESSAGES))
    assert refused.value.param == field


def test_a_maximum_of_0_is_no_absent_one() -> None:
    body = json.dumps(MESSAGES | {"max_tokens": 0}).encode()
    asked = read(body, Operation.MESSAGES)
    sent = ADAPTERS["openai"].translate(DROPS[0], asked)
    assert sent is not None
    assert sent.dropped_fields == ("max_tokens",)
    assert msgspec.json.decode(sent.body.body)["max_completion_tokens"] == 1
