"""Answers of odd shapes, on the wire alone: their observations decide the booking."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.domain.operation import Operation
from gateway.domain.pricing.tokens import TokenUsage
from gateway.errors import UpstreamError
from gateway.wire.observed import Observed
from gateway.wire.openai.answer.assemble import Assembler
from gateway.wire.openai.answer.complete_answer import rewrite
from gateway.wire.sse import EventSplitter
from gateway.wire.surrogates import hidden
from tests.answers import PricedStream, chat_stream, response_stream
from tests.answers import rewrite_chat as chat
from tests.answers import rewrite_response as response
from tests.factories import read

ERROR = {"error": {"message": "no", "type": "server_error"}}
HALF = '"\\ud83d"'
UNREADABLE = [b"", b"<html>", b"[]", b'{"a":', b"\xff", b'{"a":"\\ud83d"', b'{"a":"\xff\\ud83d"}']


def no_cost(_: TokenUsage) -> None:
    return None


def noted(rewrite: Any, body: bytes) -> tuple[Observed, bytes]:
    observed = Observed()
    return observed, rewrite(body, observed, model="assistant", cost=no_cost)


def a_stream(*, is_responses: bool = False) -> PricedStream:
    if is_responses:
        return response_stream(model="assistant", cost=no_cost)
    return chat_stream(
        model="assistant",
        cost=no_cost,
        wants_usage=True,
        wants_running_usage=False,
        asked_running_usage=False,
    )


@pytest.mark.parametrize("rewrite", [chat, response])
@pytest.mark.parametrize("body", UNREADABLE)
def test_an_unreadable_answer_passes_unchanged_and_notes_nothing(rewrite: Any, body: bytes) -> None:
    """Whoever asked for it decides; nothing of it is believed."""
    observed, rewritten = noted(rewrite, body)
    assert rewritten == body
    assert (observed.is_done, observed.is_error, observed.has_content) == (False, False, False)


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ({"choices": [{"message": {"content": "word"}}]}, ("word",)),
        ({"choices": [{"text": "word"}]}, ("word",)),
        ({"choices": [{"message": {"content": ""}}]}, ("",)),
        ({"choices": None}, ()),
        ({"choices": [{"message": None}]}, ()),
    ],
)
def test_the_text_of_a_plain_answer_without_usage_is_kept(body: Any, text: tuple[str, ...]) -> None:
    """It is counted here, because its upstream did not."""
    observed, _ = noted(chat, json.dumps(body).encode())
    assert (observed.texts, observed.is_done, observed.has_content) == (text, True, any(text))


def test_a_usage_beside_the_answer_needs_no_text() -> None:
    """Groq says it in a member of its own."""
    body = {
        "choices": [{"message": {"content": "word"}}],
        "x_groq": {"usage": {"prompt_tokens": 1}},
    }
    observed, _ = noted(chat, json.dumps(body).encode())
    assert (observed.final, observed.texts) == (TokenUsage(input_tokens=1), ())


def test_content_of_a_shape_that_is_not_known_is_unread() -> None:
    """An answer with content never counts as empty."""
    message = {"content": [{"type": "of tomorrow", "word": "x" * 50}]}
    observed, _ = noted(chat, json.dumps({"choices": [{"message": message}]}).encode())
    assert (observed.has_unread, observed.texts, observed.has_all_text) == (True, (), False)


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}], ("ab",)),
        ([{"type": "thinking", "thinking": [{"type": "text", "text": "why"}]}], ("why",)),
        ([[[[[["too deep"]]]]], "a"], ("a",)),
    ],
    ids=["parts", "Mistral's thinking", "deep"],
)
def test_the_text_in_the_parts_of_a_message_is_kept(content: Any, text: tuple[str, ...]) -> None:
    """The whole message was counted as one, envelope included."""
    whole = {"choices": [{"message": {"role": "assistant", "content": content}}]}
    observed, _ = noted(chat, json.dumps(whole).encode())
    assert observed.texts == text


def test_embeddings_beside_an_error_are_an_answer() -> None:
    """Only a 200 that holds nothing but an error is one."""
    for data, has_content in (([], False), (None, False), ([{"embedding": [1]}], True)):
        observed, _ = noted(chat, json.dumps({**ERROR, "data": data}).encode())
        assert (observed.is_error, observed.is_done, observed.has_content) == (
            True,
            False,
            has_content,
        )


@pytest.mark.parametrize(
    ("output", "text"),
    [
        ([], ()),
        ([{"type": "message", "content": [{"text": "a"}, {"refusal": "b"}, 7]}], ("ab",)),
        ([{"type": "function_call", "name": "f", "arguments": "{}"}, 7], ("f{}",)),
        ([{"type": "reasoning", "summary": [{"text": "why"}], "content": "x"}], ("why",)),
    ],
)
def test_the_text_of_a_response_without_usage_is_kept(output: Any, text: tuple[str, ...]) -> None:
    """Items hold it in several places; other values are skipped."""
    observed, _ = noted(response, json.dumps({"output": output}).encode())
    assert observed.texts == text
    assert observed.has_content == bool(output)


@pytest.mark.parametrize("output", ["word", {"a": 1}, [7], [{"type": "image_generation_call"}]])
def test_items_of_a_shape_that_is_not_known_are_unread(output: Any) -> None:
    """As above."""
    observed, _ = noted(response, json.dumps({"output": output}).encode())
    assert observed.has_unread


def test_output_with_a_number_out_of_range_is_unread() -> None:
    """The decoder skips members that it does not need, and refuses a needed one."""
    observed, _ = noted(response, b'{"output":[{"type":"message","x":1e999}]}')
    assert observed.has_unread


def test_a_response_with_usage_is_not_kept() -> None:
    """Text is kept only if it must be counted."""
    body = {"output": [{"text": "a"}], "usage": {"input_tokens": 1, "output_tokens": 1}}
    observed, _ = noted(response, json.dumps(body).encode())
    assert (observed.texts, observed.output_bytes) == ((), 0)


@pytest.mark.parametrize("is_responses", [True, False])
@pytest.mark.parametrize("last", ["", "\n", "\r\n", "\r\r"])
def test_a_last_event_without_its_blank_line_is_read(is_responses: bool, last: str) -> None:
    """A server that closes right after its last line is common, and that line may hold the
    usage.
    """
    usage = {
        "usage": {"input_tokens": 3, "output_tokens": 0, "prompt_tokens": 3, "completion_tokens": 0}
    }
    final = (
        {"type": "response.completed", "response": usage}
        if is_responses
        else {"choices": [], **usage}
    )
    stream = a_stream(is_responses=is_responses)
    assert stream.feed(f"data: {json.dumps(final)}{last}".encode()) == b""
    assert stream.end().startswith(b"data: {")
    assert stream.observed.final == TokenUsage(input_tokens=3, output_tokens=0)
    assert stream.end() == b""


@pytest.mark.parametrize("is_responses", [True, False])
def test_half_a_last_event_is_ignored(is_responses: bool) -> None:
    """A cut stream must not look whole."""
    stream = a_stream(is_responses=is_responses)
    stream.feed(b'data: {"choices":[{"delta":{"cont')
    assert (stream.end(), stream.observed.is_whole, stream.observed.is_done) == (b"", False, False)


@pytest.mark.parametrize("is_responses", [True, False])
@pytest.mark.parametrize("indent", [None, 2])
def test_an_error_object_in_place_of_a_stream_is_an_error_event(
    is_responses: bool, indent: int | None
) -> None:
    """Upstreams answer a stream with a JSON body under status 200 when they fail at once."""
    error_body = {**ERROR, "usage": {"prompt_tokens": 3, "completion_tokens": 0}}
    stream = a_stream(is_responses=is_responses)
    stream.feed(json.dumps(error_body, indent=indent).encode())
    event = stream.end()
    assert event.startswith(b"event: error\n" if is_responses else b"data: ")
    assert json.loads(event.partition(b"data: ")[2])["message" if is_responses else "error"]
    assert (stream.observed.is_error, stream.observed.has_content) == (True, False)
    assert stream.observed.final == TokenUsage(input_tokens=3, output_tokens=0)
    assert a_stream(is_responses=is_responses).feed(
        b"data: " + json.dumps(ERROR).encode() + b"\n\n"
    )


@pytest.mark.parametrize(
    "body", [b"<html>", b"\xff", b'{"id":"c"}', b'{"usage":{"prompt_tokens":3}}']
)
def test_a_body_that_is_no_stream_was_bought(body: bytes) -> None:
    """It came whole, and cannot be passed on."""
    stream = a_stream()
    stream.feed(body)
    assert stream.end() == b""
    assert (
        stream.observed.is_whole,
        stream.observed.has_content,
        stream.observed.has_unread,
    ) == (
        True,
        True,
        True,
    )
    assert (stream.observed.final is None) != (b"usage" in body)


def test_a_body_behind_events_is_no_body() -> None:
    """Junk behind a stream that was cut makes no answer of it."""
    stream = a_stream()
    stream.feed(b'data: {"choices":[{"delta":{"content":"a"}}]}\n\n<html>')
    assert (stream.end(), stream.observed.is_whole) == (b"", False)


@pytest.mark.parametrize("is_responses", [True, False])
def test_half_a_surrogate_pair_in_an_event_is_passed_on(is_responses: bool) -> None:
    """RFC 8259 §8.2 allows it."""
    event = (
        b"data: "
        b'{"type":"x.delta","model":"m-1","choices":[{"delta":{"content":%b}}],"delta":%b}\n\n'
    )
    stream = a_stream(is_responses=is_responses)
    sent = stream.feed(event % (HALF.encode(), HALF.encode()))
    assert sent.count(HALF.encode()) == 2
    assert (stream.observed.has_content, b'"m-1"' in sent) == (True, is_responses)
    assert stream.feed(b'data: {"a":\\ud83d\n\n') == b'data: {"a":\\ud83d\n\n'
    assert stream.feed(b"data: {\n\n") == b"data: {\n\n"


@pytest.mark.parametrize("rewrite", [chat, response])
def test_half_a_surrogate_pair_in_a_whole_answer_is_passed_on(rewrite: Any) -> None:
    """Its model's name is replaced all the same."""
    body = (
        b'{"id":"c-1","model":"m-1","choices":[{"message":{"content":%b}}],"output":[{"text":%b}]}'
    )
    observed, rewritten = noted(rewrite, body % (HALF.encode(), HALF.encode()))
    assert (observed.upstream_id, observed.is_done, rewritten.count(HALF.encode())) == (
        "c-1",
        True,
        2,
    )
    assert b'"assistant"' in rewritten


def test_a_text_with_every_stand_in_hides_nothing() -> None:
    """There is no escape left to hide a half behind: it stays as unreadable as it was."""
    every = "".join(f"\\u{code:04x}" for code in range(0xE000, 0xF900)).encode()
    assert hidden(every + rb"\ud83d") is None
    assert hidden(every) is None


def test_blank_lines_are_no_last_event() -> None:
    """A server may write one more than it must."""
    splitter = EventSplitter()
    splitter.feed(b"data: 1\n\n\r\n")
    assert splitter.end() == b""


def test_a_plain_answer_of_nothing_but_its_end_is_bought() -> None:
    """It has no head, and no second try: who ended it says that it did the work."""
    assembler = Assembler(operation=Operation.CHAT, choices=1, limit_bytes=1000)
    assembler.feed(b"data: [DONE]")
    assembler.end()
    with pytest.raises(UpstreamError, match="not asked again") as raised:
        assembler.body()
    assert raised.value.is_final


@pytest.mark.parametrize(
    ("body", "usage"),
    [
        (b'{"choices":5}', None),
        (b'{"choices":5,"usage":{"prompt_tokens":3}}', TokenUsage(input_tokens=3)),
    ],
)
def test_an_object_of_unknown_shape_passes_with_its_usage_if_it_has_one(
    body: bytes, usage: TokenUsage | None
) -> None:
    """A server may add a shape that we do not know: its caller gets it, and its usage is booked."""
    observed = Observed()
    asked = read(b'{"model":"assistant","messages":[]}')
    assert rewrite(asked, body, observed) == body
    assert observed.usage == usage
