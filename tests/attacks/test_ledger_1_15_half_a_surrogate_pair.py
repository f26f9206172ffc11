"""Ledger 1.15: a valid answer with half a surrogate pair was paid three times and refused."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.operation import Operation
from gateway.domain.pricing.tokens import UsageSource
from gateway.wire.surrogates import hidden, without_halves
from tests import factories
from tests.fakes import FakeUpstreamAnswer
from tests.unit.request.test_request_service import body, rest_of, stage

HALVES = [
    rb"\ud83d",
    rb"\uDE00",
    rb"x\ud83dy\\ud83d",
    rb"\ud83d\ud83d",
    rb"\ud83d\ude00\ud83d",
    rb"\ue000\uD83D",
]
USAGE = b'"usage":{"prompt_tokens":10,"completion_tokens":5}'
PARTS = st.lists(
    st.sampled_from([*HALVES, b"\\\\", rb"\n", b"a", "é".encode(), rb"\ufffd"]), max_size=12
)


@given(PARTS.map(b"".join))
def test_offsets_stay_and_bytes_come_back(text: bytes) -> None:
    """A member that is inserted while the halves are hidden must be at the right place."""
    assert len(without_halves(text)) == len(text)
    json.loads(b'"' + without_halves(text) + b'"').encode()  # only whole pairs can be encoded
    found = hidden(text)
    if found is not None:
        assert len(found.text) == len(text)
        assert found.restored(found.text) == text


@pytest.mark.parametrize("half", HALVES)
async def test_a_plain_answer_with_it_is_bought_once_and_passed_on(half: bytes) -> None:
    """RFC 8259 §8.2 allows it. Servers that count UTF-16 units send it when a maximum cuts an
    emoji.
    """
    whole = b'{"model":"m-1","choices":[{"message":{"content":"' + half + b'"}}],' + USAGE + b"}"
    on = stage(FakeUpstreamAnswer([whole]))
    answer = await on.answer(body())
    assert (on.event.usage_source, on.event.cost_nusd, len(on.transport.sent)) == (
        UsageSource.PROVIDER,
        30_000,
        1,
    )
    assert half in answer.body
    assert b'"assistant"' in answer.body
    assert b'"cost_usd":0.00003' in answer.body


@pytest.mark.parametrize("half", HALVES)
async def test_a_response_with_it_is_read(half: bytes) -> None:
    """The same must hold on `/v1/responses`."""
    items = b'[{"type":"message","content":[{"type":"output_text","text":"' + half + b'"}]}]'
    usage = b'"usage":{"input_tokens":10,"output_tokens":5}'
    whole = b'{"id":"r","model":"m-1","status":"completed","output":' + items + b"," + usage + b"}"
    on = stage(FakeUpstreamAnswer([whole]))
    one = factories.deployment(operations=frozenset({Operation.RESPONSES}))
    asked = b'{"model":"assistant","input":"x"}'
    answer = await on.answer(asked, one, operation=Operation.RESPONSES)
    assert on.event.cost_nusd == 30_000
    assert half in answer.body


@pytest.mark.parametrize("half", HALVES)
async def test_a_stream_event_with_it_is_read(half: bytes) -> None:
    """The upstream's model name reached the caller, and a last usage in such an event was lost."""
    chunk = (
        b'data: {"model":"m-1","choices":[{"delta":{"content":"'
        + half
        + b'"},"finish_reason":"stop"}],'
        + USAGE
    )
    on = stage(FakeUpstreamAnswer([chunk + b"}\n\n", b"data: [DONE]\n\n"]))
    asked = body(stream=True, stream_options={"include_usage": True})
    sent = await rest_of(await on.answer(asked, factories.deployment()))
    assert half in sent
    assert b"m-1" not in sent
    assert on.event.cost_nusd == 30_000


MESSAGES = b'{"model":"assistant","max_tokens":9,"messages":[{"role":"user","content":"x"}]%b}'
SPEAKING = factories.deployment(
    provider="anthropic",
    operations=frozenset({Operation.MESSAGES}),
    native=frozenset({Operation.MESSAGES}),
)
COUNTS = b'"usage":{"input_tokens":10,"output_tokens":5}'


@pytest.mark.parametrize("half", HALVES)
async def test_a_message_with_it_is_bought_once_and_passed_on(half: bytes) -> None:
    """The same must hold on `/v1/messages`."""
    block = b'[{"type":"text","text":"' + half + b'"}]'
    head = b'{"id":"msg_1","type":"message","role":"assistant","model":"m-1","content":'
    whole = head + block + b',"stop_reason":"max_tokens",' + COUNTS + b"}"
    on = stage(FakeUpstreamAnswer([whole]))
    answer = await on.answer(MESSAGES % b"", SPEAKING, operation=Operation.MESSAGES)
    assert (on.event.usage_source, on.event.cost_nusd, len(on.transport.sent)) == (
        UsageSource.PROVIDER,
        30_000,
        1,
    )
    assert half in answer.body
    assert b'"assistant"' in answer.body
    assert b'"cost_usd":0.00003' in answer.body


@pytest.mark.parametrize("half", HALVES)
async def test_an_event_of_messages_with_it_is_read(half: bytes) -> None:
    """The text before and the last usage in an event with it are read."""
    events = [
        b'{"type":"message_start","message":{"model":"m-1","content":[],"usage":'
        b'{"input_tokens":10,"output_tokens":1},"note":"' + half + b'"}}',
        b'{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"'
        + half
        + b'"}}',
        b'{"type":"message_delta","delta":{"stop_reason":"end_turn","note":"'
        + half
        + b'"},"usage":{"output_tokens":5}}',
        b'{"type":"message_stop"}',
    ]
    on = stage(FakeUpstreamAnswer([b"data: " + event + b"\n\n" for event in events]))
    answer = await on.answer(MESSAGES % b',"stream":true', SPEAKING, operation=Operation.MESSAGES)
    sent = await rest_of(answer)
    assert half in sent
    assert b"m-1" not in sent
    assert on.event.cost_nusd == 30_000
