"""Checks D2: HTTP 200 with only an error object was forwarded to the caller, without failover."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.domain.ledger.usage_event import Outcome
from gateway.domain.operation import Operation
from gateway.domain.pricing.tokens import UsageSource
from gateway.errors import UpstreamError
from tests import factories
from tests.fakes import FakeUpstreamAnswer
from tests.unit.request.test_request_service import WHOLE, once, rest_of, stage

ERROR = {"error": {"message": "no", "type": "server_error"}}
SHAPES: list[dict[str, Any]] = [
    ERROR,
    {**ERROR, "choices": []},
    {**ERROR, "model": "m-1", "choices": None},
    {**ERROR, "user_id": "u"},
]
BODIES: dict[Operation, dict[str, Any]] = {
    Operation.CHAT: {"messages": []},
    Operation.COMPLETIONS: {"prompt": "x"},
    Operation.EMBEDDINGS: {"input": "x"},
    Operation.RESPONSES: {"input": "x"},
    Operation.RERANK: {"query": "x", "documents": ["y"]},
    Operation.SCORE: {"text_1": "x", "text_2": "y"},
}


def asked(operation: Operation, **members: Any) -> bytes:
    return json.dumps({"model": "assistant", **BODIES[operation], **members}).encode()


def deployment(name: str, operation: Operation, provider: str = "openai_compatible") -> Any:
    own: dict[str, Any] = (
        {"is_self_hosted": True, "capabilities": frozenset()} if provider == "vllm" else {}
    )
    return factories.deployment(name, provider=provider, operations=frozenset({operation}), **own)


@pytest.mark.parametrize("provider", ["openai_compatible", "vllm"])
@pytest.mark.parametrize("operation", BODIES)
async def test_a_plain_one_is_tried_elsewhere(operation: Operation, provider: str) -> None:
    """Official SDKs return such a body as an answer whose `choices` is None."""
    error, good = json.dumps(ERROR).encode(), WHOLE
    is_assembled = provider == "vllm" and operation in (Operation.CHAT, Operation.COMPLETIONS)
    first = b"data: " + error + b"\n\ndata: [DONE]\n\n" if is_assembled else error
    on = stage(FakeUpstreamAnswer([first]), FakeUpstreamAnswer([good]))
    two = deployment("e200", operation, provider), deployment("ok", operation)
    answer = await on.answer(asked(operation), *two, operation=operation)
    assert b'"error"' not in answer.body
    assert [(event.deployment, event.outcome) for event in on.journal.events] == [
        ("e200", Outcome.UPSTREAM_ERROR),
        ("ok", Outcome.OK),
    ]
    assert (on.journal.events[0].usage_source, on.journal.events[0].cost_nusd) == (
        UsageSource.NONE,
        0,
    )


@pytest.mark.parametrize("shape", SHAPES)
async def test_alone_it_is_an_upstream_error(shape: dict[str, Any]) -> None:
    """The caller gets 502 in its dialect, and the ledger has zero: nothing was answered."""
    on = once(FakeUpstreamAnswer([json.dumps(shape).encode()]))
    with pytest.raises(UpstreamError):
        await on.answer(asked(Operation.CHAT), deployment("e200", Operation.CHAT))
    assert (on.event.outcome, on.event.usage_source) == (Outcome.UPSTREAM_ERROR, UsageSource.NONE)


async def test_its_own_usage_is_charged() -> None:
    """An upstream's reported usage is believed."""
    error_body = {**ERROR, "usage": {"prompt_tokens": 10, "completion_tokens": 0}}
    on = once(FakeUpstreamAnswer([json.dumps(error_body).encode()]))
    with pytest.raises(UpstreamError):
        await on.answer(asked(Operation.CHAT), deployment("e200", Operation.CHAT))
    assert (on.event.usage_source, on.event.cost_nusd) == (UsageSource.PROVIDER, 10_000)


async def test_an_answer_beside_the_error_is_an_answer() -> None:
    """A 200 counts as an error only if it holds nothing but the error."""
    both = {**ERROR, "choices": [{"message": {"content": "half"}, "finish_reason": "error"}]}
    on = stage(FakeUpstreamAnswer([json.dumps(both).encode()]))
    answer = await on.answer(asked(Operation.CHAT), deployment("e200", Operation.CHAT))
    assert b"half" in answer.body


@pytest.mark.parametrize("operation", [Operation.CHAT, Operation.COMPLETIONS, Operation.RESPONSES])
async def test_a_streamed_one_is_tried_elsewhere(operation: Operation) -> None:
    """On `/v1/responses` the bare error was forwarded, and the attempt was recorded as cut."""
    first = b"data: " + json.dumps(ERROR).encode() + b"\n\n"
    done = (
        b"data: "
        b'{"type":"response.completed","response":{"output":[{"type":"message"}]}}\n\ndata: '
        b"[DONE]\n\n"
    )
    on = stage(FakeUpstreamAnswer([first]), FakeUpstreamAnswer([done]))
    two = deployment("e200", operation), deployment("ok", operation)
    await rest_of(await on.answer(asked(operation, stream=True), *two, operation=operation))
    assert [event.deployment for event in on.journal.events] == ["e200", "ok"]
    assert (on.journal.events[0].outcome, on.journal.events[0].usage_source) == (
        Outcome.UPSTREAM_ERROR,
        UsageSource.NONE,
    )


async def test_an_answer_that_arrives_behind_a_streamed_error_is_booked() -> None:
    """The attempt was closed at the error, booked at zero, and the request was bought again."""
    parts = [
        b"data: " + json.dumps(one).encode() + b"\n\n"
        for one in (
            ERROR,
            {"choices": [{"index": 0, "delta": {"content": "hi"}}]},
            {"choices": [], "usage": {"prompt_tokens": 10, "completion_tokens": 5}},
        )
    ]
    on = stage(FakeUpstreamAnswer(parts), FakeUpstreamAnswer([WHOLE]))
    two = deployment("e200", Operation.CHAT), deployment("ok", Operation.CHAT)
    with pytest.raises(UpstreamError):
        await on.answer(asked(Operation.CHAT, stream=True), *two)
    (event,) = on.journal.events
    assert (event.deployment, event.usage_source) == ("e200", UsageSource.PROVIDER)
    assert (event.outcome, event.usage.output_tokens) == (Outcome.UPSTREAM_ERROR, 5)
