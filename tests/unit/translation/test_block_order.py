"""The order of a translated answer's blocks and items: one is open at a time, and every byte of every
call arrives under an id of its own.
"""  # noqa: E501

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest
from openai import omit
from openai.lib.streaming.responses._responses import ResponseStreamState
from openai.types.responses import ResponseStreamEvent
from pydantic import TypeAdapter

from gateway.domain.operation import Operation
from gateway.domain.pricing.tokens import TokenUsage
from gateway.wire.dialect import written
from gateway.wire.openai.chat_translation.writer import ChatWriter
from gateway.wire.sse import EventSplitter, data_of
from gateway.wire.translation.answer_events import (
    AnswerEvent,
    CallArguments,
    CallStarted,
    Ended,
    Failed,
    Finish,
    Finished,
    Started,
    TextPiece,
    ThoughtPiece,
)
from gateway.wire.translation.block_order import MAX_CALLS, MAX_WAITING_CHARS, BlockOrder, OpenJson
from gateway.wire.translation.call_ids import CallIds
from tests import factories
from tests.oracles.mixed_streams import MixedStream, mixed_stream, stream_of, translated

SEEDS = range(150)
_EVENT: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)


def ordered(*events: AnswerEvent) -> list[AnswerEvent]:
    order = BlockOrder()
    return [shown for event in events for shown in order.events(event)]


def start(call: int, call_id: str = "") -> CallStarted:
    return CallStarted(call=call, call_id=call_id or f"c{call}", name=f"t{call}")


def more(call: int, text: str) -> CallArguments:
    return CallArguments(call=call, text=text)


def objects(stream: bytes) -> list[dict[str, Any]]:
    """The data of each event of a stream."""
    return [json.loads(data_of(event) or b"") for event in EventSplitter().feed(stream)]


def blocks_of(stream: bytes) -> list[dict[str, Any]]:
    """The blocks of a message's stream, each with its whole text. Asserts that a block ends before the
    next one begins.
    """  # noqa: E501
    blocks: list[dict[str, Any]] = []
    is_open = False
    for event in objects(stream):
        kind, index = event["type"], event.get("index")
        if kind == "content_block_start":
            assert (is_open, index) == (False, len(blocks))
            blocks.append({**event["content_block"], "arguments": ""})
            is_open = True
        elif kind == "content_block_delta":
            assert (is_open, index) == (True, len(blocks) - 1)
            for name, text in event["delta"].items():
                if name != "type":
                    member = {"partial_json": "arguments"}.get(name, name)
                    blocks[-1][member] += text
        elif kind == "content_block_stop":
            assert (is_open, index) == (True, len(blocks) - 1)
            is_open = False
        elif kind == "message_delta":
            assert not is_open
    return blocks


def items_of(stream: bytes) -> list[dict[str, Any]]:
    """The items of a response as the official client's state has them. Asserts that an item is done
    before the next one is added.
    """
    state: ResponseStreamState[Any] = ResponseStreamState(input_tools=[], text_format=omit)
    events, is_open = objects(stream), False
    snapshots: dict[int, str] = {}
    for event in events:
        kind = event["type"]
        if kind == "response.output_item.added":
            assert not is_open
            is_open = True
        elif kind == "response.output_item.done":
            assert is_open
            is_open = False
        for shown in state.handle_event(_EVENT.validate_python(event)):
            if shown.type == "response.function_call_arguments.delta":
                snapshots[shown.output_index] = shown.snapshot
    items: list[dict[str, Any]] = events[-1]["response"]["output"]
    for at, snapshot in snapshots.items():
        assert items[at]["arguments"] == snapshot
    return items


def check_calls(found: Sequence[tuple[str, str, str]], stream: MixedStream) -> None:
    """Assert that the calls of a stream arrived, whole and in their order."""
    assert [(name, text) for _, name, text in found] == [
        (call.name, call.arguments or "{}") for call in stream.calls
    ]
    ids = [call_id for call_id, _, _ in found]
    assert len(set(ids)) == len(ids)
    assert all(ids)
    for got, call in zip(ids, stream.calls, strict=True):
        if sum(call.call_id == other.call_id for other in stream.calls) == 1 and call.call_id:
            assert got == call.call_id


@pytest.mark.parametrize("seed", SEEDS)
def test_every_byte_of_a_mixed_stream_arrives_in_messages(seed: int) -> None:
    """Block by block, and the plain answer of the same events is equal."""
    stream = mixed_stream(seed)
    sent, plain = translated(stream.sent, "messages", step=1 + seed % 97)
    blocks = blocks_of(sent)
    calls = [block for block in blocks if block["type"] == "tool_use"]
    check_calls([(one["id"], one["name"], one["arguments"]) for one in calls], stream)
    assert "".join(one.get("text", "") for one in blocks) == stream.text
    assert "".join(one.get("thinking", "") for one in blocks) == stream.thought
    for block in blocks:
        text = block.pop("arguments")
        if text:
            block["input"] = json.loads(text)
    assert json.loads(plain)["content"] == blocks


@pytest.mark.parametrize("seed", SEEDS)
def test_every_byte_of_a_mixed_stream_arrives_in_responses(seed: int) -> None:
    """Item by item, and the plain answer of the same events is equal."""
    stream = mixed_stream(seed)
    sent, plain = translated(stream.sent, "responses", step=1 + seed % 97)
    items = items_of(sent)
    calls = [item for item in items if item["type"] == "function_call"]
    check_calls([(one["call_id"], one["name"], one["arguments"]) for one in calls], stream)
    texts = {
        kind: "".join(
            part["text"] for item in items if item["type"] == kind for part in item[member]
        )
        for kind, member in (("message", "content"), ("reasoning", "summary"))
    }
    assert texts == {"message": stream.text, "reasoning": stream.thought}
    assert json.loads(plain)["output"] == items


def test_calls_that_follow_each_other_are_shown_as_they_come() -> None:
    """The usual stream: nothing waits."""
    order = BlockOrder()
    events: list[AnswerEvent] = [
        Started(),
        TextPiece(text="a"),
        start(0),
        more(0, '{"p": '),
        more(0, "1}"),
        start(1),
        more(1, "{}"),
        TextPiece(text="b"),
        Finished(finish=Finish.TOOL_CALLS),
    ]
    for event in events:
        assert list(order.events(event)) == [event]


def test_the_later_of_two_mixed_calls_waits_for_the_earlier_one() -> None:
    """And text between the pieces of a call waits as well."""
    assert ordered(
        start(0),
        more(0, '{"p": "}'),
        start(1),
        TextPiece(text="b"),
        more(1, "{"),
        TextPiece(text="c"),
        more(0, '"}'),
        ThoughtPiece(text="d"),
        more(1, "}"),
        Ended(),
    ) == [
        start(0),
        more(0, '{"p": "}'),
        more(0, '"}'),
        start(1),
        more(1, "{"),
        more(1, "}"),
        TextPiece(text="b"),
        TextPiece(text="c"),
        ThoughtPiece(text="d"),
        Ended(),
    ]


def test_a_call_that_never_ends_lets_the_rest_follow_at_the_end() -> None:
    """A maximum cuts its arguments, or it has none."""
    events = ordered(start(0), more(0, "{"), start(1), more(1, "{}"), Ended())
    assert events == [start(0), more(0, "{"), start(1), more(1, "{}"), Ended()]
    assert ordered(start(0), TextPiece(text="a"), Finished(finish=Finish.STOP))[1:] == [
        TextPiece(text="a"),
        Finished(finish=Finish.STOP),
    ]


def test_arguments_that_go_on_after_their_end_are_no_answer() -> None:
    """The block has ended for the caller. White space is no loss."""
    shown = [start(0), more(0, "{}"), TextPiece(text="a")]
    assert ordered(*shown, more(0, "\n"), more(7, "x")) == shown
    with pytest.raises(ValueError, match="after their end"):
        ordered(*shown, more(0, "}"))


def test_the_probabilities_of_a_calls_tokens_open_no_block() -> None:
    """vLLM sends them beside each piece."""
    call = [start(0), TextPiece(text=""), more(0, "{"), TextPiece(text=""), more(0, "}")]
    assert ordered(*call) == [start(0), more(0, "{"), more(0, "}")]
    assert ordered(TextPiece(text="")) == [TextPiece(text="")]


@pytest.mark.parametrize("operation", ["messages", "responses"])
def test_an_answer_that_cannot_be_carried_ends_with_an_error(operation: str) -> None:
    """The caller must not run a tool with arguments that went on. The usage behind them counts."""
    call = {"index": 0, "id": "a", "function": {"name": "f", "arguments": "{}"}}
    late = {"index": 0, "function": {"arguments": "}"}}
    usage = {"prompt_tokens": 9, "completion_tokens": 9, "total_tokens": 18}
    deltas = [{"tool_calls": [call]}, {"content": "a"}, {"tool_calls": [late]}, {"content": "b"}]
    chunks = [{"choices": [{"index": 0, "delta": delta}]} for delta in deltas]
    sent = [*chunks, {"choices": [], "usage": usage}]
    stream = stream_of(operation)
    body = b"".join(b"data: %b\n\n" % json.dumps(one).encode() for one in sent)
    parts = [*stream.feed(body), *stream.feed(b"data: [DONE]\n\n"), *stream.end()]
    text = b"".join(written(part, lambda _: None) for part in parts)
    last = [event["type"] for event in objects(text)][-2:]
    assert (
        last
        == {
            "messages": ["content_block_delta", "error"],
            "responses": ["error", "response.failed"],
        }[operation]
    )
    assert stream.observed.is_error
    assert stream.observed.final == TokenUsage(input_tokens=9, output_tokens=9)


def test_what_waits_is_bounded() -> None:
    """An endless text behind a call without an end would fill the memory."""
    half = TextPiece(text="a" * (MAX_WAITING_CHARS // 2))
    with pytest.raises(ValueError, match="letters behind a tool call"):
        ordered(start(0), half, half)
    with pytest.raises(ValueError, match="tool calls"):
        ordered(*map(start, range(MAX_CALLS + 1)))


def test_other_choices_are_left_out_and_a_failure_ends_all() -> None:
    """Messages and responses have one choice."""
    failed = Failed(code="upstream_error", message="dead")
    assert ordered(TextPiece(text="a", choice=1), start(0), TextPiece(text="b"), failed) == [
        start(0),
        failed,
    ]


@pytest.mark.parametrize(
    ("pieces", "is_complete"),
    [
        (("{}",), True),
        (("[", "]"), True),
        (('{"a": "\\', '"}"', "}"), True),
        (('{"a": "\\', "", '"}"'), False),
        (("{}", '{"a"'), False),
        (('"text"',), False),
        (("12",), False),
        ((), False),
    ],
)
def test_a_json_text_is_complete_at_the_end_of_its_object(
    pieces: tuple[str, ...], is_complete: bool
) -> None:
    """Wherever it is cut."""
    json_text = OpenJson()
    for piece in pieces:
        json_text.add(piece)
    assert json_text.is_complete is is_complete


@pytest.mark.parametrize("sent", ["", "one", "used"])
def test_ids_tell_the_calls_of_a_conversation_apart(sent: str) -> None:
    """Anthropic answers 400 to one id twice, and a result names its call by the id alone."""
    body = b'{"model":"m","messages":[{"role":"tool","tool_call_id": "used","content":""}]}'
    read, ids = factories.read(body, Operation.CHAT), CallIds()
    given = [
        one
        for at in range(2)
        for one in ids.events(start(at) if not sent else start(at, sent), read=read, own=Started())
    ]
    found = [one.call_id for one in given if isinstance(one, CallStarted)]
    assert len({*found, "used"}) == 3
    assert (found[0] == sent) is (sent == "one")
    (other,) = ids.events(start(0, sent or "c0"), read=read, own=Started(answer_id="next"))
    assert isinstance(other, CallStarted)
    assert other.call_id not in found


def test_a_chat_has_ids_that_tell_its_calls_apart() -> None:
    """Also a caller of chat, whose upstream speaks another dialect."""
    writer = ChatWriter(factories.read(b'{"model":"m","messages":[],"stream":true}'))
    calls = [CallStarted(call=at, call_id="", name="x") for at in range(2)]
    parts = b"".join(written(part, lambda _: None) for part in writer.write(calls))
    ids = [
        call["id"]
        for one in objects(parts)
        for call in one["choices"][0]["delta"].get("tool_calls", [])
    ]
    assert len(set(ids)) == 2
