"""Chat answers as neutral events, and neutral events as chat answers."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from gateway.domain.pricing.tokens import TokenUsage
from gateway.domain.request.token_estimate import tokens_in
from gateway.wire.dialect import UnreadableAnswer, written
from gateway.wire.observed import Observed
from gateway.wire.openai.answer.chat import chat_stream, rewrite_chat
from gateway.wire.openai.chat_translation.reader import ChatReader, chat_events
from gateway.wire.openai.chat_translation.writer import ChatWriter
from gateway.wire.openai.tool_call_ids import with_signature
from gateway.wire.sse import EventSplitter, data_of
from gateway.wire.translation.answer_events import (
    AnswerEvent,
    CallArguments,
    CallStarted,
    Ended,
    Failed,
    Finish,
    Finished,
    Omitted,
    Picture,
    RefusalPiece,
    Started,
    TextPiece,
    ThoughtPiece,
    Used,
)
from tests import factories

USAGE = TokenUsage(
    input_tokens=100,
    cached_input_tokens=40,
    cache_write_tokens=20,
    cache_write_30m_tokens=0,
    cache_write_1h_tokens=20,
    cache_write_12h_tokens=0,
    audio_input_tokens=0,
    output_tokens=30,
    reasoning_tokens=10,
)
LOGPROBS = msgspec.Raw(b'[{"token":"a","logprob":-0.5,"bytes":[97],"top_logprobs":[]}]')
ANSWER: Sequence[AnswerEvent] = (
    Started(answer_id="msg_1", created_s=1_700_000_000),
    ThoughtPiece(text="Hm"),
    ThoughtPiece(text="."),
    TextPiece(text="Yes", logprobs=LOGPROBS),
    TextPiece(text="."),
    CallStarted(call=0, call_id="a", name="look"),
    CallArguments(call=0, text='{"at":'),
    CallArguments(call=0, text="1}"),
    CallStarted(call=1, call_id="b", name="look", signature="c2ln+/=="),
    CallArguments(call=1, text="{}"),
    Finished(finish=Finish.TOOL_CALLS, native="tool_calls"),
    Used(usage=USAGE, service_tier="priority"),
    Ended(),
)


def writer(**members: Any) -> ChatWriter:
    """The writer of the answer to a chat."""
    body = {"model": "assistant", "messages": [], "stream_options": {"include_usage": True}}
    return ChatWriter(factories.read(json.dumps({**body, "stream": True, **members}).encode()))


def streamed(events: Sequence[AnswerEvent], **members: Any) -> bytes:
    """The caller's stream of some events, with a cost of one dollar."""
    return b"".join(written(part, lambda _: "1.0") for part in writer(**members).write(events))


def payloads(stream: bytes) -> list[bytes]:
    """The data of each event of a stream."""
    return [data_of(event) or b"" for event in EventSplitter().feed(stream)]


def reader() -> ChatReader:
    """A reader as an adapter makes it: usage is asked of the upstream, and kept from the caller."""
    return ChatReader(
        chat_stream(
            model="assistant",
            wants_usage=False,
            wants_running_usage=False,
            asked_running_usage=False,
            collects_text=True,
        )
    )


def read(stream: bytes) -> list[AnswerEvent]:
    """The events of an upstream's whole stream."""
    one = reader()
    return [*one.feed(stream), *one.end()]


def chunk(**choice: Any) -> bytes:
    """An upstream's event with one choice."""
    body = {"id": "c1", "created": 5, "model": "m", "choices": [{"index": 0, **choice}]}
    return b"data: " + json.dumps(body).encode() + b"\n\n"


def test_a_stream_is_valid_for_the_official_client_and_ends_with_its_usage() -> None:
    """Strict clients refuse a whole answer for one wrong chunk."""
    *chunks, done = payloads(streamed(ANSWER))
    assert done == b"[DONE]"
    read = [ChatCompletionChunk.model_validate_json(one, strict=True) for one in chunks]
    assert {one.model for one in read} == {"assistant"}
    assert {one.id for one in read} == {"chatcmpl-msg_1"}
    assert read[0].choices[0].delta.role == "assistant"
    assert read[-2].choices[0].finish_reason == "tool_calls"
    assert json.loads(chunks[-2])["usage"] is None
    assert json.loads(chunks[-1]) == {
        "id": "chatcmpl-msg_1",
        "object": "chat.completion.chunk",
        "created": 1_700_000_000,
        "model": "assistant",
        "service_tier": "priority",
        "choices": [],
        "usage": {
            "prompt_tokens": 100,
            "completion_tokens": 30,
            "total_tokens": 130,
            "prompt_tokens_details": {
                "cached_tokens": 40,
                "cache_write_tokens": 20,
                "cache_write_tokens_details": {
                    "ttl_30m_tokens": 0,
                    "ttl_12h_tokens": 0,
                    "ttl_1h_tokens": 20,
                },
                "audio_tokens": 0,
            },
            "completion_tokens_details": {"reasoning_tokens": 10},
            "cost_usd": 1.0,
        },
    }


def test_a_caller_who_did_not_ask_gets_no_usage() -> None:
    """As OpenAI does it."""
    chunks = payloads(streamed(ANSWER, stream_options=None))
    assert all(b'"usage"' not in one for one in chunks)


def test_a_plain_answer_has_all_of_its_parts() -> None:
    """The official client's types are the judge of its form."""
    part = writer(stream=False).whole(ANSWER)
    body = written(part, lambda usage: "2.5" if usage == USAGE else "0")
    ChatCompletion.model_validate_json(body, strict=True)
    answer = json.loads(body)
    assert answer["usage"]["cost_usd"] == 2.5
    assert answer["choices"] == [
        {
            "index": 0,
            "message": {
                "role": "assistant",
                "content": "Yes.",
                "refusal": None,
                "annotations": [],
                "reasoning_content": "Hm.",
                "tool_calls": [
                    {
                        "id": "a",
                        "type": "function",
                        "function": {"name": "look", "arguments": '{"at":1}'},
                    },
                    {
                        "id": with_signature("b", "c2ln+/=="),
                        "type": "function",
                        "function": {"name": "look", "arguments": "{}"},
                        "extra_content": {"google": {"thought_signature": "c2ln+/=="}},
                    },
                ],
            },
            "logprobs": {"content": json.loads(bytes(LOGPROBS)), "refusal": None},
            "finish_reason": "tool_calls",
        }
    ]


@pytest.mark.parametrize(
    ("stated", "shown"),
    [
        (TokenUsage(output_tokens=3), (None, 3)),
        (TokenUsage(input_tokens=7), (7, 2)),
        (TokenUsage(), (None, 2)),
    ],
    ids=["no prompt", "no answer", "neither"],
)
@pytest.mark.parametrize("is_stream", [False, True])
def test_an_unknown_count_is_the_gateways_own(
    stated: TokenUsage, shown: tuple[int | None, int], is_stream: bool
) -> None:
    """Unknown is never 0, and clients add the members that OpenAI's types have as numbers."""
    events = (Started(), TextPiece(text="12345"), Used(usage=stated), Ended())
    one = writer(stream=is_stream)
    prompt = tokens_in(one.read.facts.body_bytes)
    parts = one.write(events)[-2] if is_stream else one.whole(events)
    usage = json.loads(written(parts, lambda _: "1").removeprefix(b"data: "))["usage"]
    assert usage == {
        "prompt_tokens": shown[0] or prompt,
        "completion_tokens": shown[1],
        "total_tokens": (shown[0] or prompt) + shown[1],
        "estimated": True,
        "cost_usd": 1,
    }


def test_a_count_that_no_text_tells_is_null() -> None:
    """A picture's tokens are in no text."""
    seen = (Started(), Picture(media_type="image/png", data="aGk="), Ended())
    events = (*seen[:2], Used(usage=TokenUsage(input_tokens=7)), seen[2])
    usage = json.loads(written(writer().whole(events), lambda _: "1"))["usage"]
    assert (usage["completion_tokens"], usage["total_tokens"]) == (None, None)
    assert "estimated" not in usage


def test_each_choice_has_a_role_and_an_end_of_its_own() -> None:
    """With `n` above 1 the pieces of several answers are mixed."""
    events = (
        Started(answer_id="chatcmpl-1"),
        TextPiece(text="a"),
        TextPiece(text="b", choice=1),
        Finished(finish=Finish.LENGTH, choice=1),
        Finished(finish=Finish.STOP),
        Ended(),
    )
    chunks = [json.loads(one)["choices"][0] for one in payloads(streamed(events, n=2))[:-1]]
    assert [(one["index"], one["delta"], one["finish_reason"]) for one in chunks] == [
        (0, {"role": "assistant", "content": ""}, None),
        (0, {"content": "a"}, None),
        (1, {"role": "assistant", "content": "b"}, None),
        (1, {}, "length"),
        (0, {}, "stop"),
    ]
    whole = json.loads(written(writer(n=2).whole(events), lambda _: None))
    assert [one["message"]["content"] for one in whole["choices"]] == ["a", "b"]
    assert whole["id"] == "chatcmpl-1"


def test_a_failure_is_an_error_event_and_no_end() -> None:
    """The official clients raise for it; after `[DONE]` they would report success."""
    events = (Started(), TextPiece(text="a"), Failed(code="upstream_error", message="It broke."))
    assert json.loads(payloads(streamed(events))[-1])["error"]["message"] == "It broke."
    whole = json.loads(written(writer().whole(events), lambda _: None))
    assert whole["error"]["code"] == "upstream_error"


def test_an_ordinary_stop_after_calls_is_their_end() -> None:
    """Gemini says STOP for them, and clients run tools only after `tool_calls`."""
    events = (Started(), CallStarted(call=0, call_id="a", name="f"), Finished(finish=Finish.STOP))
    assert b'"finish_reason":"tool_calls"' in streamed(events)
    assert b'"finish_reason":"tool_calls"' in written(writer().whole(events), lambda _: None)


def test_a_signed_thought_is_kept_for_clients_that_send_it_back() -> None:
    """Anthropic takes an earlier thought only with its signature."""
    events = (
        Started(),
        ThoughtPiece(text="Hm"),
        ThoughtPiece(text=".", signature="c2ln"),
        ThoughtPiece(sealed="b3BhcXVl"),
        ThoughtPiece(),
    )
    blocks = [
        {"type": "thinking", "thinking": "Hm.", "signature": "c2ln"},
        {"type": "redacted_thinking", "data": "b3BhcXVl"},
    ]
    deltas = [json.loads(one)["choices"][0]["delta"] for one in payloads(streamed(events))]
    assert deltas[1:] == [
        {"reasoning_content": "Hm"},
        {"reasoning_content": ".", "thinking_blocks": [{"index": 0, **blocks[0]}]},
        {"thinking_blocks": [{"index": 1, **blocks[1]}]},
    ]
    whole = json.loads(written(writer().whole(events), lambda _: None))
    assert whole["choices"][0]["message"]["thinking_blocks"] == blocks


PIECES = st.one_of(
    st.builds(ThoughtPiece, text=st.text(min_size=1)),
    st.builds(TextPiece, text=st.text(min_size=1)),
    st.builds(RefusalPiece, text=st.text(min_size=1)),
)
CALLS = st.lists(
    st.tuples(st.text(min_size=1), st.text(min_size=1), st.lists(st.text(min_size=1))), max_size=3
)


@given(pieces=st.lists(PIECES), calls=CALLS, finish=st.sampled_from(Finish), cut=st.integers(1, 99))
def test_events_that_are_written_and_read_are_the_same(
    pieces: list[AnswerEvent],
    calls: list[tuple[str, str, list[str]]],
    finish: Finish,
    cut: int,
) -> None:
    """However the stream is cut on its way."""
    if calls and finish is Finish.STOP:
        finish = Finish.TOOL_CALLS
    events: list[AnswerEvent] = [Started(answer_id="chatcmpl-1", created_s=9), *pieces]
    for number, (call_id, name, arguments) in enumerate(calls):
        events.append(CallStarted(call=number, call_id=f"{number}{call_id}", name=name))
        whole_call = arguments if "".join(arguments).strip() else [*arguments, "{}"]
        events += [CallArguments(call=number, text=one) for one in whole_call]
    events += [Finished(finish=finish, native=finish.value), Used(usage=USAGE), Ended()]
    stream = streamed(events)
    one = reader()
    found: list[AnswerEvent] = []
    for at in range(0, len(stream), cut):
        found += one.feed(stream[at : at + cut])
    assert found == [_plain(event) for event in events]
    assert one.observed.final == USAGE
    whole = written(writer().whole(events), lambda _: None)
    observed = Observed()
    body = rewrite_chat(whole, observed, model="assistant")
    assert _joined(chat_events(body, observed)) == _joined(found)


def _plain(event: AnswerEvent) -> AnswerEvent:
    """An id with the mark of a signature is written with an empty one."""
    if isinstance(event, CallStarted):
        return msgspec.structs.replace(event, call_id=with_signature(event.call_id, ""))
    return event


def _joined(events: Sequence[AnswerEvent]) -> Any:
    """An answer's content, without the cuts between its pieces and their order by kind."""
    texts = {
        kind: "".join(one.text for one in events if isinstance(one, kind))
        for kind in (ThoughtPiece, TextPiece, RefusalPiece)
    }
    calls = [one for one in events if isinstance(one, CallStarted)]
    arguments = [
        "".join(one.text for one in events if isinstance(one, CallArguments) and one.call == number)
        for number in range(len(calls))
    ]
    ends = [one for one in events if isinstance(one, Finished | Used | Ended)]
    return texts, calls, arguments, ends


def test_a_cut_stream_has_no_end() -> None:
    """The caller gets an error for it, not half an answer that looks whole."""
    assert read(chunk(delta={"role": "assistant", "content": "Ye"})) == [
        Started(answer_id="c1", created_s=5),
        TextPiece(text="Ye"),
    ]


def test_an_upstream_error_ends_the_answer() -> None:
    """vLLM sends one with `[DONE]` after its engine died."""
    stream = chunk(delta={"content": "Ye"}) + b'data: {"error":{"message":"dead","code":500}}\n\n'
    assert read(stream + b"data: [DONE]\n\n")[-1] == Failed(code="upstream_error", message="dead")


def test_an_event_that_cannot_be_read_is_a_failure() -> None:
    """A part of the answer is missing then, and its usage is unknown."""
    one = reader()
    events = one.feed(chunk(delta={"content": "a"}) + b"data: {oops\n\ndata: [DONE]\n\n")
    assert isinstance(events[-1], Failed)
    assert one.observed.is_error
    assert one.feed(chunk(delta={"content": "b"})) == []


@pytest.mark.parametrize(
    ("delta", "events"),
    [
        ({"reasoning": "Hm"}, [ThoughtPiece(text="Hm")]),
        ({"reasoning": "Hm", "reasoning_content": "Hm"}, [ThoughtPiece(text="Hm")]),
        ({"reasoning": {"effort": 1}, "content": 7, "tool_calls": {"a": 1}}, []),
        (
            {
                "content": [
                    {"type": "thinking", "thinking": [{"type": "text", "text": "Hm"}]},
                    {"type": "text", "text": "a"},
                    {"type": "reference"},
                ]
            },
            [ThoughtPiece(text="Hm"), TextPiece(text="a"), Omitted(name="reference")],
        ),
        (
            {
                "images": [
                    {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw=="}},
                    {"type": "image_url", "image_url": {"url": "https://example.com/a.png"}},
                    7,
                ],
                "audio": {"data": "AAAA"},
                "annotations": [{"type": "url_citation"}],
            },
            [
                Picture(media_type="image/png", data="iVBORw=="),
                Omitted(name="image"),
                Omitted(name="audio"),
                Omitted(name="annotations"),
            ],
        ),
        ({"images": {}, "audio": None, "annotations": []}, []),
        ({"content": [{"type": "text", "text": ""}]}, []),
        (
            {"tool_calls": [{"index": 0, "type": "custom", "custom": {"name": "f"}}]},
            [Omitted(name="custom")],
        ),
        (
            {"content": "\ud83d", "refusal": "a"},
            [TextPiece(text=""), TextPiece(text="\ufffd"), RefusalPiece(text="a")],
        ),
        (
            {"tool_calls": [{"id": "a", "function": {"name": "f", "arguments": {"x": 1}}}]},
            [
                CallStarted(call=0, call_id="a", name="f"),
                CallArguments(call=0, text='{"x": 1}'),
            ],
        ),
        (
            {
                "tool_calls": [
                    {"index": 0, "id": "a", "function": {"name": "f", "arguments": "{}"}},
                    {"index": 0, "id": "b", "function": {"name": "f", "arguments": "[]"}},
                ]
            },
            [
                CallStarted(call=0, call_id="a", name="f"),
                CallArguments(call=0, text="{}"),
                CallStarted(call=1, call_id="b", name="f"),
                CallArguments(call=1, text="[]"),
            ],
        ),
        (
            {
                "tool_calls": [
                    {"index": 0, "id": "a", "function": {"name": "f", "arguments": "{}"}},
                    {"index": 0, "id": "a", "function": {"name": "f", "arguments": ""}},
                    {"index": 0, "id": "a", "function": {"name": "g", "arguments": "[]"}},
                    {"index": 0, "function": {"name": "g", "arguments": "\n"}},
                    {"index": 0, "function": {"name": "g", "arguments": "{}"}},
                ]
            },
            [
                CallStarted(call=0, call_id="a", name="f"),
                CallArguments(call=0, text="{}"),
                CallStarted(call=1, call_id="a", name="g"),
                CallArguments(call=1, text="[]"),
                CallArguments(call=1, text="\n"),
            ],
        ),
        (
            {
                "tool_calls": [
                    {
                        "index": 0,
                        "id": "a",
                        "function": {"name": "f"},
                        "extra_content": {"google": {"thought_signature": "c2ln"}},
                    }
                ]
            },
            [CallStarted(call=0, call_id="a", name="f", signature="c2ln")],
        ),
        ({"tool_calls": [{"index": 0, "function": "f"}, 7]}, None),
    ],
)
def test_pieces_of_other_servers(delta: dict[str, Any], events: list[AnswerEvent] | None) -> None:
    """Members of other types are passed over; a list of other things cannot be read."""
    found = read(chunk(delta=delta))
    if events is None:
        assert isinstance(found[-1], Failed)
    else:
        assert found[1:] == events


def test_logprobs_of_many_lines_are_read_as_one_line() -> None:
    """A line's end inside an event's data would end the data of the caller's event."""
    choice = {"index": 0, "delta": {"content": "a"}, "logprobs": {"content": [{"token": "a"}]}}
    body = json.dumps({"id": "c1", "created": 5, "choices": [choice]}, indent=2)
    event = "".join(f"data: {line}\n" for line in body.split("\n")) + "\n"
    assert read(event.encode()) == [
        Started(answer_id="c1", created_s=5),
        TextPiece(text="a", logprobs=msgspec.Raw(b'[{"token":"a"}]')),
    ]
    empty = {"delta": {"content": "a"}, "logprobs": {"content": None}}
    assert read(chunk(**empty))[1:] == [TextPiece(text="a")]


def test_the_start_of_a_stream_has_the_first_running_usage() -> None:
    """vLLM sends the prompt's count with its first chunk; messages have it at their start."""
    usage = {"prompt_tokens": 9, "completion_tokens": 0, "total_tokens": 9}
    body = {"id": "c1", "choices": [{"index": 0, "delta": {"role": "assistant"}}], "usage": usage}
    (started, *_) = read(b"data: " + json.dumps(body).encode() + b"\n\n")
    assert isinstance(started, Started)
    assert started.usage is not None
    assert (started.usage.input_tokens, started.usage.output_tokens) == (9, None)


def test_a_call_waits_for_its_name() -> None:
    """A caller of any dialect needs it at the call's start. The writer makes an id."""
    stream = (
        chunk(delta={"tool_calls": [{"index": 0, "function": {"arguments": '{"a":'}}]})
        + chunk(delta={"tool_calls": [{"index": 0, "function": {"name": "f"}}]})
        + chunk(delta={"tool_calls": [{"index": 0, "function": {"arguments": "1}"}}]})
        + chunk(delta={}, finish_reason="eos", stop_reason="END")
        + b"data: [DONE]\n\n"
    )
    assert read(stream)[1:] == [
        CallStarted(call=0, call_id="", name="f"),
        CallArguments(call=0, text='{"a":1}'),
        Finished(finish=Finish.TOOL_CALLS, native="eos", stop_sequence="END"),
        Ended(),
    ]


def test_a_stream_without_a_finish_reason_still_has_an_end() -> None:
    """Its `[DONE]` was seen, and every dialect needs a reason."""
    stream = chunk(delta={"content": "a"}) + b"data: [DONE]\n\n"
    assert read(stream)[2:] == [Finished(finish=Finish.STOP), Ended()]
    call = {"tool_calls": [{"index": 0, "id": "a", "function": {"name": "f"}}]}
    assert read(chunk(delta=call) + b"data: [DONE]\n\n")[2:] == [
        Finished(finish=Finish.TOOL_CALLS),
        Ended(),
    ]


def test_the_arguments_of_a_call_stay_with_it_if_another_one_starts_first() -> None:
    """A call without an id starts no later than the next one; its tool must not run with another
    call's arguments.
    """
    calls = [
        {"index": 0, "function": {"name": "pay", "arguments": '{"usd":1}'}},
        {"index": 1, "id": "b", "function": {"name": "look", "arguments": '{"at":2}'}},
        {"index": 2, "id": "c", "function": {"name": "stop"}},
    ]
    body = json.dumps({"choices": [{"index": 0, "message": {"tool_calls": calls}}]}).encode()
    events = chat_events(body, Observed(is_done=True))
    message = json.loads(written(writer().whole(events), lambda _: None))["choices"][0]["message"]
    assert [tuple(call["function"].values()) for call in message["tool_calls"]] == [
        ("pay", '{"usd":1}'),
        ("look", '{"at":2}'),
        ("stop", "{}"),
    ]


@pytest.mark.parametrize("head", [{}, {"id": ""}, {"id": "a"}, {"index": 0}])
def test_each_call_of_a_whole_answer_is_one(head: dict[str, Any]) -> None:
    """Without ids, or with one for both, two calls became one with the arguments of both."""
    calls = [
        {**head, "function": {"name": "ls", "arguments": '{"p":"a"}'}},
        {**head, "function": {"name": "cat", "arguments": '{"q":2}'}},
        {**head, "function": {"name": "cat", "arguments": ""}},
        {**head, "function": {"name": "cat", "arguments": ""}},
    ]
    body = json.dumps({"choices": [{"index": 0, "message": {"tool_calls": calls}}]}).encode()
    events = chat_events(body, Observed(is_done=True))
    message = json.loads(written(writer().whole(events), lambda _: None))["choices"][0]["message"]
    found = message["tool_calls"]
    assert [(call["function"]["name"], call["function"]["arguments"]) for call in found] == [
        ("ls", '{"p":"a"}'),
        ("cat", '{"q":2}'),
        ("cat", "{}"),
        ("cat", "{}"),
    ]
    assert len({call["id"] for call in found}) == 4


def test_a_whole_answer_that_is_none_is_refused() -> None:
    """It cannot be passed on in another dialect; an error is one in any."""
    with pytest.raises(UnreadableAnswer):
        chat_events(b'{"choices":7}', Observed(is_done=True))
    assert chat_events(b'{"error":{"message":"no"}}', Observed(is_error=True)) == (
        Failed(code="upstream_error", message="no"),
    )
