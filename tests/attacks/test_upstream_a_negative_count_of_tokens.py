"""An upstream that counts a prompt at -5 tokens: the figure was the caller's, who plans by it."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.domain.operation import Operation
from gateway.domain.providers.table import PROVIDERS
from gateway.domain.request.token_estimate import tokens_in
from gateway.providers.registry import build_providers
from gateway.services.request.prompt_counts import PromptCounts
from tests import factories
from tests.fakes import FakeUpstreamAnswer
from tests.unit.request.test_request_service import stage

ASKED = factories.read(
    b'{"model":"assistant","max_tokens":5,"messages":[{"role":"user","content":"x"}]}',
    Operation.MESSAGES,
)


@pytest.mark.parametrize(
    ("stated", "tokens"),
    [("-5", None), ("-9007199254740993", None), ("5", 5), ("0", 0)],
    ids=["negative", "far below", "a count", "zero"],
)
@pytest.mark.parametrize("provider", ["anthropic", "vllm"])
async def test_a_negative_count_is_none_and_the_gateway_estimates(
    provider: str, stated: str, tokens: int | None, tmp_path: Path
) -> None:
    answer = FakeUpstreamAnswer([b'{"input_tokens":%s}' % stated.encode()])
    counters = {provider: build_providers(salt_key=bytes(32))[provider]}
    counts = PromptCounts(requests=stage(answer).service(), counters=counters)
    key = tmp_path / "key"
    key.write_text("sk-0123456789")
    at = factories.deployment(
        provider=provider, native=PROVIDERS[provider].native, api_key=f"file:{key}"
    )
    snapshot = factories.snapshot(document=factories.policy(at))
    found = await counts.count(factories.request(ASKED), snapshot)
    if tokens is None:
        assert (found.tokens, found.deployment) == (tokens_in(len(ASKED.body)), None)
    else:
        assert (found.tokens, found.deployment) == (tokens, "one")
