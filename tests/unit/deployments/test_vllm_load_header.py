"""A plain request asks vLLM for its load; nothing else of it changes, and no other provider is
asked.
"""

from __future__ import annotations

import pytest

from gateway.domain.operation import Operation
from gateway.providers.registry import build_providers
from gateway.wire.vllm_load import ASK_FORMAT, ASK_HEADER
from tests import factories
from tests.answers import at_once

PROVIDERS = build_providers(salt_key=b"salt")
PLAIN, STREAM = (
    b'{"model":"assistant","messages":[],"tools":[]}',
    b'{"model":"assistant","messages":[],"stream":true}',
)


@pytest.mark.parametrize(
    ("provider", "body", "is_asked"),
    [
        ("vllm", PLAIN, True),
        ("vllm", STREAM, False),
        ("openai", PLAIN, False),
        ("openai_compatible", PLAIN, False),
    ],
)
def test_only_a_plain_answer_of_vllm_is_asked_for_the_load(
    provider: str, body: bytes, is_asked: bool
) -> None:
    """Streams do not say it, and to a provider it would be one more thing that tells this gateway
    from others.
    """
    read = factories.read(body, Operation.CHAT)
    one = factories.deployment("one", provider=provider)
    call = at_once(PROVIDERS[provider].call(one, factories.request(read)))
    assert call.headers.get(ASK_HEADER) == (ASK_FORMAT if is_asked else None)
