"""A server that ignores `stream: true` answers with one JSON object: the answer was bought, and its
caller got a 502. The caller of a chat or a completion gets it as events.
"""

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
from tests.unit.request.test_request_service import Stage, rest_of, stage

USAGE = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}
CALL = {"id": "t", "type": "function", "function": {"name": "f", "arguments": "{}"}}
CHAT = {
    "id": "c",
    "object": "chat.completion",
    "created": 1,
    "model": "m-1",
    "service_tier": "default",
    "choices": [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "Hello", "tool_calls": [CALL]},
            "logprobs": None,
            "finish_reason": "tool_calls",
        }
    ],
    "usage": USAGE,
}
COMPLETION = CHAT | {
    "object": "text_completion",
    "choices": [{"index": 0, "text": "Hello", "finish_reason": "stop"}],
}
CHUNK = "chat.completion.chunk"


async def streamed(
    answer: dict[str, Any], operation: Operation, *, size: int = 10_000, **asks: Any
) -> tuple[Stage, bytes]:
    """Ask for a stream, and return the caller's."""
    text = json.dumps(answer, indent=1).encode() + b"\n"
    sent = [text[at : at + size] for at in range(0, len(text), size)]
    on = stage(*(FakeUpstreamAnswer(sent) for _ in range(3)))
    turns: dict[str, Any] = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 50}
    if operation is Operation.COMPLETIONS:
        turns = {"prompt": "x", "max_tokens": 50}
    if operation is Operation.RESPONSES:
        turns = {"input": "x", "max_output_tokens": 50, "store": False}
    body = json.dumps({"model": "assistant", "stream": True, **turns, **asks}).encode()
    one = factories.deployment(
        operations=frozenset(Operation),
        native=frozenset({Operation.CHAT, Operation.COMPLETIONS}),
        capabilities=frozenset({"tools"}),
    )
    caught = await on.answer(body, one, operation=operation)
    return on, await rest_of(caught)


def chunks_in(sent: bytes) -> list[dict[str, Any]]:
    """Return the chunks of a stream that ends with `[DONE]`."""
    *events, last, rest = sent.split(b"\n\n")
    assert (last, rest) == (b"data: [DONE]", b"")
    return [json.loads(event.removeprefix(b"data: ")) for event in events]


@pytest.mark.parametrize("size", [1, 100, 10_000])
async def test_a_chat_is_one_chunk_and_its_usage(size: int) -> None:
    asks = {"stream_options": {"include_usage": True}}
    on, sent = await streamed(CHAT, Operation.CHAT, size=size, **asks)
    content, usage = chunks_in(sent)
    (choice,) = content["choices"]
    message = {"role": "assistant", "content": "Hello", "tool_calls": [CALL | {"index": 0}]}
    assert (choice["delta"], choice["finish_reason"]) == (message, "tool_calls")
    assert (content["object"], content["model"], usage["object"]) == (CHUNK, "assistant", CHUNK)
    assert (usage["choices"], usage["usage"]["completion_tokens"]) == ([], 5)
    assert "message" not in choice
    assert len(on.transport.sent) == 1
    event = on.event
    assert (event.outcome, event.usage_source) == (Outcome.OK, UsageSource.PROVIDER)
    assert (event.cost_nusd, event.is_suspect) == (30_000, False)


async def test_a_caller_gets_a_usage_only_if_it_asks() -> None:
    on, sent = await streamed(CHAT, Operation.CHAT)
    (content,) = chunks_in(sent)
    assert "usage" not in content
    assert on.event.cost_nusd == 30_000


async def test_a_completion_keeps_its_text() -> None:
    on, sent = await streamed(COMPLETION, Operation.COMPLETIONS)
    (content,) = chunks_in(sent)
    assert (content["choices"][0]["text"], content["object"]) == ("Hello", "text_completion")
    assert on.event.cost_nusd == 30_000


@pytest.mark.parametrize("operation", [Operation.MESSAGES, Operation.RESPONSES])
async def test_a_translated_stream_is_whole(operation: Operation) -> None:
    on, sent = await streamed(CHAT, operation)
    end = b"message_stop" if operation is Operation.MESSAGES else b"response.completed"
    assert b"Hello" in sent
    assert end in sent
    assert (on.event.outcome, on.event.cost_nusd) == (Outcome.OK, 30_000)


async def test_without_a_usage_its_text_is_counted() -> None:
    on, sent = await streamed(COMPLETION | {"usage": None}, Operation.COMPLETIONS)
    assert b"Hello" in sent
    assert on.event.usage_source is UsageSource.ESTIMATED


@pytest.mark.parametrize(
    "answer",
    [{"usage": USAGE}, {"choices": [], "usage": USAGE}, {"choices": [{}], "usage": USAGE}],
)
async def test_any_other_object_is_refused_and_booked(answer: dict[str, Any]) -> None:
    """It was bought once; nothing in it is an answer."""
    with pytest.raises(UpstreamError, match="no event stream"):
        await streamed(answer, Operation.CHAT)
