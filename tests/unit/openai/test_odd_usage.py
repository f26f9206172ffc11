"""Usage beside odd members was thrown away: an answer that was relayed was booked with 0 output
tokens, or a part.

Found by an attacker who played an upstream, on 2026-11-23.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.domain.pricing.tokens import TokenUsage
from gateway.wire.observed import Observed
from gateway.wire.openai.answer.vectors import without_vectors
from tests.answers import chat_stream, response_stream, rewrite_chat, rewrite_response

USAGE = {"prompt_tokens": 5, "completion_tokens": 20, "total_tokens": 25}
STATED = TokenUsage(input_tokens=5, output_tokens=20)


def cost(usage: TokenUsage) -> str | None:
    """Any price."""
    return "0.1"


def event(**members: Any) -> bytes:
    """One event of a stream."""
    return b"data: " + json.dumps(members).encode() + b"\n\n"


def streamed(*events: bytes) -> tuple[Observed, bytes]:
    """Return the observations of a chat's stream, and the caller's bytes."""
    stream = chat_stream(
        model="assistant",
        cost=cost,
        wants_usage=True,
        wants_running_usage=False,
        asked_running_usage=False,
        collects_text=True,
    )
    got = b"".join(stream.feed(one) for one in (*events, b"data: [DONE]\n\n"))
    return stream.observed, got


@pytest.mark.parametrize(
    "odd",
    [{"id": 5}, {"model": 5}, {"service_tier": []}, {"id": {"a": 1}, "model": [1]}],
    ids=["id", "model", "service tier", "two"],
)
def test_an_odd_member_keeps_no_usage_from_being_read(odd: dict[str, Any]) -> None:
    """Twenty pieces and their usage had been relayed, and 0 tokens were booked."""
    choice = {"index": 0, "delta": {"content": "word "}, "finish_reason": None}
    observed, got = streamed(
        *[event(choices=[choice], **odd)] * 20, event(choices=[], usage=USAGE, **odd)
    )
    assert observed.final == STATED
    assert (observed.pieces, got.count(b"word ")) == (20, 20)


@pytest.mark.parametrize("reason", [5, ["stop"], {}])
def test_an_odd_finish_reason_is_left_out(reason: Any) -> None:
    """The choice's text counts all the same."""
    observed, _ = streamed(
        event(choices=[{"index": "x", "delta": {"content": "word"}, "finish_reason": reason}])
    )
    assert (observed.finish_reason, observed.texts) == (None, ("word",))


def test_an_event_that_cannot_be_read_is_handed_on() -> None:
    """It may hold an answer's text, of an unknown size. Its usage may be readable all the same."""
    broken = b'data: {"choices":[{"delta":{"content":"a"},"logprob":NaN}]}\n\n'
    observed, got = streamed(broken)
    assert got.startswith(broken)
    assert (observed.output_bytes, observed.has_content, observed.has_unread) == (0, True, True)
    assert observed.final is None
    odd = event(choices={}, usage=USAGE)
    observed, got = streamed(odd)
    assert got.startswith(odd)
    assert observed.final == STATED


def test_text_that_is_not_utf_8_is_relayed() -> None:
    """A server that writes Latin-1 got an uncaught error: 502, and its answer was thrown away."""
    latin = b'data: {"model":"m","choices":[{"index":0,"delta":{"content":"w\xe9rd"}}]}\n\n'
    observed, got = streamed(latin, event(choices=[], usage=USAGE))
    assert b"w\xe9rd" in got
    assert observed.has_content
    assert observed.final == STATED


def test_a_response_event_that_cannot_be_read_is_noted() -> None:
    """As for chat."""
    stream = response_stream(model="assistant", cost=cost, collects_text=True)
    broken = b'data: {"type":5,"delta":"text"}\n\n'
    assert stream.feed(broken) == broken
    assert stream.observed.has_unread
    assert stream.feed(
        event(type="response.completed", response={"id": 5, "status": 1, "usage": USAGE})
    )
    assert stream.observed.final == STATED


def test_an_odd_response_is_read() -> None:
    """The whole object, with a number for its id."""
    observed = Observed()
    rewrite_response(
        json.dumps({"id": 5, "output": [], "usage": USAGE}).encode(), observed, model="a", cost=cost
    )
    assert (observed.final, observed.upstream_id) == (STATED, None)


@pytest.mark.parametrize("number", ["500.0", '"500"', '"500.00"'])
def test_a_whole_number_in_another_form_is_read(number: str) -> None:
    """The former estimate was 2 % of the stated figure."""
    observed = Observed()
    body = b'{"choices":[],"usage":{"prompt_tokens":%b,"completion_tokens":%b}}' % (
        (number.encode(),) * 2
    )
    rewrite_chat(body, observed, model="a", cost=cost)
    assert observed.final == TokenUsage(input_tokens=500, output_tokens=500)


@pytest.mark.parametrize(
    ("usage", "read"),
    [
        ({"total_tokens": 4000}, TokenUsage(input_tokens=4000)),
        ({"prompt_tokens": 0, "total_tokens": 4000}, TokenUsage(input_tokens=4000)),
        (
            {"prompt_tokens": 7, "total_tokens": 4000},
            TokenUsage(input_tokens=7, unexplained_tokens=3993),
        ),
        ({"prompt_tokens": 0, "total_tokens": 0}, None),
    ],
    ids=["total alone", "total beside 0", "both", "0"],
)
def test_the_total_of_embeddings_is_their_input_and_0_is_unreported(
    usage: dict[str, int], read: TokenUsage | None
) -> None:
    """A server that says 0 for every text was never charged, and Voyage AI's total was thrown
    away.
    """
    observed = Observed()
    body = json.dumps({"data": [{"embedding": [1]}], "usage": usage}).encode()
    rewrite_chat(body, observed, model="a", cost=cost)
    assert observed.final == read


def test_the_empty_text_may_have_no_tokens() -> None:
    """A tokenizer without a mark for the beginning finds none in it."""
    observed = Observed()
    body = json.dumps(
        {"data": [{"embedding": [1]}], "usage": {"prompt_tokens": 0, "total_tokens": 0}}
    ).encode()
    rewrite_chat(body, observed, model="a", cost=cost, is_empty=True)
    assert observed.final == TokenUsage(input_tokens=0)


def test_a_vector_in_a_member_that_is_rewritten_leaves_the_answer_as_it_came() -> None:
    """It was an assertion: paid for, and 502."""
    body = (
        b'{"data":[{"embedding":[1.0]}],"usage":{"prompt_tokens":7,"cost_usd":{"embedding":[2.0]}}}'
    )
    short = without_vectors(body)
    assert short is not None
    rewritten = rewrite_chat(short.text, Observed(), model="a", cost=cost)
    assert short.restored(rewritten) == body


def test_a_figure_that_content_follows_is_no_last_word() -> None:
    """A final event without content does not replace it."""
    choice = {"index": 0, "delta": {"content": "word "}}
    early = event(choices=[], usage={"prompt_tokens": 5, "completion_tokens": 0})
    ends = event(choices=[{"index": 0, "delta": {}, "finish_reason": "stop"}])
    assert streamed(early, event(choices=[choice]), ends)[0].final is None
    assert (
        streamed(event(choices=[choice]), event(choices=[], usage=USAGE), ends)[0].final == STATED
    )
    stream = response_stream(model="assistant", cost=cost, collects_text=True)
    stream.feed(event(type="response.completed", response={"id": "r", "usage": USAGE}))
    stream.feed(event(type="response.output_text.delta", delta="word"))
    assert stream.observed.final is None


def test_usage_within_a_choice_is_read() -> None:
    """Moonshot's streams say it on the event that ends a choice."""
    ends = {"index": 0, "delta": {}, "finish_reason": "stop", "usage": USAGE}
    assert streamed(event(choices=[ends]))[0].final == STATED


@pytest.mark.parametrize("status", ["queued", "in_progress"])
def test_work_that_goes_on_cannot_be_counted(status: str) -> None:
    """Its figures on the way are no last word either."""
    observed = Observed()
    rewrite_response(
        json.dumps({"status": status, "output": []}).encode(),
        observed,
        model="assistant",
        cost=cost,
    )
    assert (observed.is_unfinished, observed.usage) == (True, None)
    rewrite_response(
        json.dumps({"status": status, "usage": USAGE}).encode(),
        observed,
        model="assistant",
        cost=cost,
    )
    assert (observed.final, observed.running) == (None, STATED)


@pytest.mark.parametrize("answers", [1, 2])
def test_a_usage_of_the_first_answer_alone_is_not_that_of_all(answers: int) -> None:
    """Recorded from llama.cpp on 2026-11-24: two answers of 3 tokens each, and 3 in the usage; its
    own counter grew by 6.
    """
    choice = {"text": " me.</think>", "logprobs": None, "finish_reason": "length"}
    usage = {"completion_tokens": 3, "prompt_tokens": 1, "total_tokens": 4}
    whole = {
        "choices": [{**choice, "index": index} for index in range(answers)],
        "model": "tiny",
        "object": "text_completion",
        "usage": {**usage, "prompt_tokens_details": {"cached_tokens": 0}},
        "timings": {"cache_n": 0, "prompt_n": 1, "predicted_n": 3},
    }
    seen = Observed()
    rewrite_chat(json.dumps(whole).encode(), seen, model="assistant", cost=cost)
    if answers == 1:
        assert seen.final == TokenUsage(input_tokens=1, cached_input_tokens=0, output_tokens=3)
    else:
        assert seen.final is None
        assert seen.texts == (" me.</think>", " me.</think>")
