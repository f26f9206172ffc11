"""Checks D1: a plain 200 without usage was held as `unknown`, while the same answer as a stream
was counted.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.domain.ledger.usage_event import Outcome
from gateway.domain.operation import Operation
from gateway.domain.pricing.tokens import UsageSource
from gateway.providers.token_counting import OfflineTokenCounter
from tests import factories
from tests.fakes import FakeTransport, FakeUpstreamAnswer
from tests.unit.request.test_request_service import Stage, body, piece

TEXT = "word " * 16  # 80 bytes: 20 tokens at four bytes each
ITEMS = [{"type": "message", "content": [{"type": "output_text", "text": TEXT}]}]
MUTE: dict[Operation, dict[str, Any]] = {
    Operation.CHAT: {
        "choices": [{"message": {"role": "assistant", "content": TEXT}, "finish_reason": "stop"}]
    },
    Operation.COMPLETIONS: {"choices": [{"text": TEXT, "finish_reason": "stop"}]},
    Operation.RESPONSES: {"status": "completed", "output": ITEMS},
    Operation.EMBEDDINGS: {"data": [{"embedding": [0.5]}]},
    Operation.RERANK: {"results": [{"index": 0, "relevance_score": 0.5}]},
    Operation.SCORE: {"data": [{"index": 0, "object": "score", "score": 0.5}]},
}
ASKED: dict[Operation, dict[str, Any]] = {
    Operation.CHAT: {"messages": []},
    Operation.COMPLETIONS: {"prompt": "x"},
    Operation.RERANK: {"query": "x", "documents": ["y"]},
    Operation.SCORE: {"text_1": "x", "text_2": "y"},
}


def counting(*pieces: bytes) -> Stage:
    """Return a stage with the gateway's own counter, without a tokenizer."""
    return Stage(FakeTransport([FakeUpstreamAnswer(list(pieces))]), counter=OfflineTokenCounter({}))  # type: ignore[arg-type]


@pytest.mark.parametrize("operation", MUTE)
async def test_it_is_counted(operation: Operation) -> None:
    """A budget of one cent refused after 42 answers that had cost 0.0039 USD: 61 % of it could
    not be spent.
    """
    on = counting(json.dumps({"model": "m-1", **MUTE[operation]}).encode())
    one = factories.deployment(operations=frozenset({operation}))
    asked = json.dumps({"model": "assistant", **ASKED.get(operation, {"input": "x"})}).encode()
    await on.answer(asked, one, operation=operation)
    event = on.event
    assert (event.outcome, event.usage_source, event.held_nusd) == (
        Outcome.OK,
        UsageSource.ESTIMATED,
        None,
    )
    assert event.usage.output_tokens == (20 if operation.writes_output else 0)
    assert event.cost_nusd


async def test_an_empty_answer_without_usage_has_no_output() -> None:
    """The answer came whole, so it is known that no output was written."""
    whole = {"model": "m-1", "choices": [{"message": {"role": "assistant", "content": ""}}]}
    on = counting(json.dumps(whole).encode())
    await on.answer(body())
    assert (on.event.usage_source, on.event.usage.output_tokens) == (UsageSource.ESTIMATED, 0)


async def test_a_plain_answer_put_together_from_a_stream_is_counted() -> None:
    """An engine that ignores `stream_options` reports no usage at all."""
    on = counting(piece(TEXT[:40]), piece(TEXT[40:]), b"data: [DONE]\n\n")
    own = factories.deployment(provider="vllm", is_self_hosted=True, capabilities=frozenset())
    await on.answer(body(), own)
    assert (on.event.outcome, on.event.usage_source) == (Outcome.OK, UsageSource.ESTIMATED)
    assert on.event.usage.output_tokens == 20
