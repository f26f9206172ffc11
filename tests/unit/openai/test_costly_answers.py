"""An answer of millions of values stopped the event loop for up to 18 s and took 2 GB.

Found by an attacker who simulated an upstream, on 2026-11-23. The decoded part is bounded; beyond
the bounds an answer is passed on unchanged, and estimated. `bench/costly_answers.py` measures the
times.
"""

from __future__ import annotations

import json

import msgspec
import pytest

from gateway.domain.operation import Operation
from gateway.domain.pricing.tokens import UNREADABLE_USAGE, TokenUsage
from gateway.errors import UpstreamError
from gateway.wire.dialect import EventTooLarge
from gateway.wire.foreign_json import (
    MAX_DECODED_BYTES,
    MAX_DECODED_VALUES,
    MAX_USAGE_BYTES,
    SMALL_BYTES,
    is_quick,
)
from gateway.wire.members import (
    MAX_SAME_NAMES,
    MAX_WALKED_BYTES,
    MalformedJson,
    locate_one,
    require_object,
)
from gateway.wire.observed import MAX_CHOICES as MOST_RUNNING
from gateway.wire.observed import Observed
from gateway.wire.openai.answer.assemble import Assembler
from gateway.wire.openai.answer.shapes import usage_in
from gateway.wire.openai.bounds import MAX_CHOICES, decode_few
from gateway.wire.openai.error import read_error
from gateway.wire.openai.usage import engine_queue_s, usage_from_wire, with_tool_calls
from gateway.wire.sse import MAX_LINES, data_of
from gateway.wire.surrogates import MAX_ESCAPES, hidden, without_halves
from tests.answers import chat_stream, rewrite_chat, rewrite_response

USAGE = b'{"prompt_tokens":5,"completion_tokens":2}'
STATED = TokenUsage(input_tokens=5, output_tokens=2)


def cost(usage: TokenUsage) -> str | None:
    """Any price."""
    return "0.1"


def listed(piece: bytes, count: int) -> bytes:
    """A list of so many pieces."""
    return b"[" + b",".join([piece] * count) + b"]"


def whole(body: bytes) -> tuple[Observed, bytes]:
    """Return the observations of a plain answer, and the caller's body."""
    observed = Observed()
    return observed, rewrite_chat(body, observed, model="assistant", cost=cost)


def test_more_choices_than_anybody_asks_for_are_handed_on() -> None:
    """They are counted by the decoder, which stops at the first too many; the usage is read by
    itself.
    """
    body = b'{"model":"m","choices":' + listed(b"{}", 6000) + b',"usage":' + USAGE + b"}"
    observed, handed_on = whole(body)
    assert handed_on == body
    assert not observed.is_done
    assert usage_in(body) == STATED


def test_as_many_choices_as_2048_prompts_have_are_read() -> None:
    """Two answers to each prompt of the longest list."""
    choice = b'{"index":0,"text":"a","finish_reason":"stop"}'
    observed, handed_on = whole(
        b'{"model":"m","choices":' + listed(choice, MAX_CHOICES) + b',"usage":' + USAGE + b"}"
    )
    assert (observed.final, observed.finish_reason) == (STATED, "stop")
    assert handed_on.startswith(b'{"model":"assistant"')
    with pytest.raises(msgspec.DecodeError):
        decode_few(msgspec.Raw(listed(b"{}", MAX_CHOICES + 1)), msgspec.defstruct("Any", []))


@pytest.mark.parametrize(
    "message",
    [
        b'{"content":' + listed(b"[]", MAX_DECODED_VALUES + 1) + b"}",
        b"{" + b",".join(b'"%d":1' % n for n in range(MAX_DECODED_VALUES + 1)) + b"}",
        b'{"content":"' + b"a" * MAX_DECODED_BYTES + b'"}',
    ],
    ids=["lists", "members", "text"],
)
def test_a_message_of_many_values_is_unread(message: bytes) -> None:
    """Without usage its text would have to be decoded to be counted."""
    observed, _ = whole(b'{"choices":[{"message":' + message + b"}]}")
    assert (observed.has_unread, observed.has_content, observed.has_all_text) == (True, True, False)


def test_a_response_of_many_items_is_unread() -> None:
    """As for chat; with a stated usage its items are not looked at."""
    output = listed(b"[]", MAX_DECODED_VALUES + 1)
    observed = Observed()
    rewrite_response(b'{"output":' + output + b"}", observed, model="a", cost=cost)
    assert observed.has_unread
    calls = listed(b'{"type":"web_search_call"}', MAX_CHOICES + 1)
    assert with_tool_calls(STATED, msgspec.Raw(calls)) == STATED


def test_a_large_response_is_rewritten_without_a_walk_through_its_members() -> None:
    """A picture in a response has megabytes, and names a model of its own."""
    picture = {
        "type": "image_generation_call",
        "model": "gpt-image-1",
        "result": "A" * MAX_WALKED_BYTES,
    }
    body = json.dumps(
        {"id": "r", "model": "gpt-5.5", "output": [picture], "usage": {"input_tokens": 5}}
    ).encode()
    observed = Observed()
    rewritten = json.loads(rewrite_response(body, observed, model="assistant", cost=cost))
    assert (rewritten["model"], rewritten["output"], rewritten["usage"]["cost_usd"]) == (
        "assistant",
        [picture],
        0.1,
    )


def test_an_ambiguous_member_leaves_a_large_answer_unchanged() -> None:
    """Which of two members counts is a guess; of hundreds none is looked for."""
    filler = b'"z":"' + b"a" * MAX_WALKED_BYTES + b'"}'
    twice = b'{"model":"m","a":{"model":"m"},' + filler
    many = b'{"model":"m",' + b'"a":{"model":1},' * MAX_SAME_NAMES + filler
    for body in (twice, many):
        with pytest.raises(MalformedJson):
            locate_one(body, b'"model"', b'"m"')
        assert whole(body)[1] == body
    place = locate_one(b'{"a":{"model":1},"model" : "m",' + filler, b'"model"', b'"m"')
    assert place.end - place.start == 3


def test_a_usage_longer_than_any_is_not_read() -> None:
    """Three million members beside `cost_usd` took 4 s."""
    members = b",".join(b'"%d":1' % n for n in range(MAX_USAGE_BYTES // 8))
    usage = USAGE[:-1] + b',"cost_usd":1,' + members + b"}"
    assert usage_from_wire(usage) == UNREADABLE_USAGE
    assert engine_queue_s(b'{"queue_time_ms":1,' + members + b"}") is None
    body = b'{"choices":[],"usage":' + usage + b"}"
    assert whole(body)[1] == body


def test_an_error_of_many_values_has_no_reason() -> None:
    """A megabyte of it is read at most, and none of that decoded."""
    body = b'{"error":{"message":"x","a":' + listed(b"[]", MAX_DECODED_VALUES + 1) + b"}}"
    assert (
        read_error(body).message == "The upstream gave no reason that is short enough to be read."
    )


def test_half_surrogates_are_looked_for_in_texts_of_few_escapes() -> None:
    """Each escape is looked at; ten million of them took 18 s."""
    half = rb"\ud83d"
    assert hidden(half * 10) is not None
    assert hidden(half * (MAX_ESCAPES + 1)) is None
    assert without_halves(half * (MAX_ESCAPES + 1)) == half * (MAX_ESCAPES + 1)
    assert without_halves(rb"\n" * 10) == rb"\n" * 10


def test_every_stand_in_may_be_taken() -> None:
    """Then the answer stays as it is.

    All 6,400 of them were looked for, each in all of the text.
    """
    taken = b"".join(b"\\u%04x" % unit for unit in range(0xE000, 0xE010))
    assert hidden(taken + rb"\ud83d") is None


def test_an_event_of_many_lines_is_no_event() -> None:
    """Each line is a piece of work."""
    assert data_of(b"data: 1\r" * MAX_LINES) is not None
    with pytest.raises(EventTooLarge, match="10000 lines"):
        data_of(b"\r" * (MAX_LINES + 1))


def test_an_event_of_many_choices_is_handed_on_unread() -> None:
    """A megabyte of them took 0.4 s."""
    stream = chat_stream(
        model="a",
        cost=cost,
        wants_usage=True,
        wants_running_usage=False,
        asked_running_usage=False,
        collects_text=True,
    )
    event = b'data: {"choices":' + listed(b"{}", 6000) + b"}\n\n"
    assert stream.feed(event) == event
    assert stream.observed.has_unread


def test_running_usage_is_kept_of_so_many_choices() -> None:
    """Each event may name another choice."""
    observed = Observed()
    for choice in range(MOST_RUNNING + 10):
        observed.note_running(msgspec.Raw(USAGE), usage_from_wire, choice=choice)
    assert observed.running == TokenUsage(
        input_tokens=5 * MOST_RUNNING, output_tokens=2 * MOST_RUNNING
    )
    observed.note_running(msgspec.Raw(b'{"completion_tokens":3}'), usage_from_wire, choice=0)
    assert observed.running is not None
    assert observed.running.output_tokens == 2 * MOST_RUNNING + 1


@pytest.mark.parametrize(
    "stream",
    [
        b'data: {"choices":' + listed(b"{}", MAX_DECODED_VALUES + 1) + b"}\n\n",
        b"".join(
            b'data: {"choices":[{"index":%d}]}\n\n' % index for index in range(MAX_CHOICES + 1)
        ),
    ],
    ids=["in one event", "one an event"],
)
def test_an_assembled_answer_of_many_choices_is_given_up(stream: bytes) -> None:
    """The engine is one's own, and may be wrong all the same."""
    assembler = Assembler(operation=Operation.CHAT, choices=1, limit_bytes=2**24)
    with pytest.raises(UpstreamError, match="could not be read") as given_up:
        assembler.feed(stream)
    assert given_up.value.is_final


def test_quick_answers_are_recognised_by_counting() -> None:
    """Text that looks like values counts as such; small values are not looked at."""
    assert is_quick(b"[" * (SMALL_BYTES - 1))
    assert is_quick(b'"' + b"a" * SMALL_BYTES + b'"')
    assert not is_quick(b'"' + b"{" * (MAX_DECODED_VALUES + 1) + b'"')
    assert not is_quick(b"a" * (MAX_DECODED_BYTES + 1))


@pytest.mark.parametrize(
    "body", [b"[1]", b'{"a":}', b'{"a":"\xff"}', b'{"a":' + b"[" * 5000, b"<html>", b""]
)
def test_a_body_that_is_no_object_is_no_answer(body: bytes) -> None:
    """Nothing is made of its members."""
    with pytest.raises(MalformedJson):
        require_object(body)
    require_object(b'{"a":[1,{}],"a":2}')
