"""Answers on their way back: metered, renamed, priced, and otherwise the bytes the upstream
sent.
"""

from __future__ import annotations

import itertools
import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.pricing.tokens import TokenUsage
from gateway.wire.observed import MAX_TEXT_CHARS, Observed
from gateway.wire.openai.answer.shapes import usage_in
from gateway.wire.sse import EventSplitter, data_of
from tests.answers import PricedStream, chat_stream, response_stream, rewrite_chat, rewrite_response

USAGE = {"prompt_tokens": 10, "completion_tokens": 2, "total_tokens": 12}
METERED = TokenUsage(input_tokens=10, output_tokens=2)


def cost(usage: TokenUsage) -> str | None:
    """A price of one nano-dollar a token, so that a test sees which usage was priced."""
    return f"0.{(usage.input_tokens or 0) + (usage.output_tokens or 0):09d}"


def event(value: Any) -> bytes:
    return b"data: " + json.dumps(value).encode() + b"\n\n"


def chunk(text: str = "", *, finish: str | None = None, **members: Any) -> dict[str, Any]:
    choice = {"index": 0, "delta": {"content": text}, "finish_reason": finish}
    return {
        "id": "c-1",
        "object": "chat.completion.chunk",
        "model": "m-1",
        "choices": [choice],
        **members,
    }


def tail(usage: Any = USAGE) -> dict[str, Any]:
    return {**chunk(), "choices": [], "usage": usage}


DONE = b"data: [DONE]\n\n"


def chat(
    *, wants_usage: bool = False, wants_running: bool = False, asked_running: bool = False
) -> PricedStream:
    return chat_stream(
        model="assistant",
        cost=cost,
        wants_usage=wants_usage,
        wants_running_usage=wants_running,
        asked_running_usage=asked_running,
    )


def payloads(sent: bytes) -> list[Any]:
    """Return the caller's payloads; `[DONE]` as a word."""
    found = [data_of(each) for each in EventSplitter().feed(sent)]
    return [
        json.loads(each) if each != b"[DONE]" else "[DONE]" for each in found if each is not None
    ]


# ---- whole answers


def test_a_whole_answer_is_renamed_and_priced() -> None:
    """The caller reads the requested name and the cost; every other byte is the upstream's."""
    body = (
        b'{ "id":"x", "model" : "m-1", "choices":[{"finish_reason":"stop"}], '
        b'"usage": {"prompt_tokens":10,\n"completion_tokens":2} }'
    )
    observed = Observed()
    sent = rewrite_chat(body, observed, model="assistant", cost=cost)
    assert sent == (
        b'{ "id":"x", "model" : "assistant", "choices":[{"finish_reason":"stop"}], '
        b'"usage": {"prompt_tokens":10,\n"completion_tokens":2,"cost_usd":0.000000012} }'
    )
    assert observed == Observed(final=METERED, finish_reason="stop", upstream_id="x", is_done=True)


def test_a_cost_that_the_upstream_put_there_is_replaced() -> None:
    """A gateway behind a gateway: the caller pays ours."""
    body = b'{"model":"assistant","usage":{"prompt_tokens":10,"cost_usd":99,"completion_tokens":2}}'
    sent = rewrite_chat(body, Observed(), model="assistant", cost=cost)
    assert json.loads(sent)["usage"] == {
        "prompt_tokens": 10,
        "cost_usd": 0.000000012,
        "completion_tokens": 2,
    }
    assert sent.count(b"cost_usd") == 1
    assert b'"cost_usd":0.000000012' in sent


def test_an_unknown_cost_is_not_written() -> None:
    """No figure is better than a wrong one."""
    body = b'{"model":"assistant","usage":{"prompt_tokens":-1}}'
    assert rewrite_chat(body, Observed(), model="assistant", cost=lambda usage: None) == body


@pytest.mark.parametrize(
    "body",
    [
        b"<html>",
        b"[]",
        b'{"model":',
        b'{"model":"a","model":"b"}',
        b'{"choices":"none"}',
        b'{"usage":1,"usage":2}',
    ],
)
def test_an_undecodable_answer_passes_unchanged_and_is_not_done(body: bytes) -> None:
    """An unreadable answer is neither changed nor called a success."""
    observed = Observed()
    assert rewrite_chat(body, observed, model="assistant", cost=cost) == body
    assert observed == Observed()


def test_a_chat_that_says_something_else_twice_is_metered_by_its_one_usage() -> None:
    """Only of `model` and `usage` does it matter which one counts: these are read, and replaced."""
    body = b'{"id":"a","id":"b","model":"m-1","choices":[],"usage":{"prompt_tokens":10,"completion_tokens":2}}'  # noqa: E501
    observed = Observed()
    sent = rewrite_chat(body, observed, model="assistant", cost=cost)
    assert sent.startswith(b'{"id":"a","id":"b","model":"assistant"')
    assert (observed.final, observed.is_done) == (METERED, True)


def test_a_null_usage_gets_no_cost() -> None:
    """The metered usage came elsewhere; there is no place here for a cost."""
    body = b'{"model":"assistant","usage":"none","x_groq":{"usage":{"prompt_tokens":10,"completion_tokens":2}}}'  # noqa: E501
    observed = Observed()
    assert rewrite_chat(body, observed, model="assistant", cost=cost) == body
    assert observed.final == METERED
    stream = chat(wants_usage=True)
    assert stream.feed(b"data: " + body + b"\n\n") == b"data: " + body + b"\n\n"


def test_an_error_in_a_whole_answer_is_noticed() -> None:
    """HTTP 200 with an error inside is not a success; `error: null` is none."""
    observed, fine = Observed(), Observed()
    rewrite_chat(b'{"error":{"message":"x"}}', observed, model="a", cost=cost)
    rewrite_chat(b'{"error":null,"choices":[]}', fine, model="a", cost=cost)
    assert (observed.is_error, observed.is_done, fine.is_error, fine.is_done) == (
        True,
        False,
        False,
        True,
    )


def test_a_whole_response_object() -> None:
    """`/v1/responses` has a status in place of chat's finish reason."""
    body = b'{"id":"r","model":"m-1","status":"completed","usage":{"input_tokens":10,"output_tokens":2},"error":null}'  # noqa: E501
    observed = Observed()
    sent = json.loads(rewrite_response(body, observed, model="assistant", cost=cost))
    assert (sent["model"], sent["usage"]["cost_usd"]) == ("assistant", 0.000000012)
    assert (observed.usage, observed.is_final, observed.finish_reason, observed.is_done) == (
        METERED,
        True,
        "completed",
        True,
    )


@pytest.mark.parametrize("body", [b"<html>", b"[]", b'{"id":"a","id":"b"}'])
def test_an_undecodable_response_passes_unchanged(body: bytes) -> None:
    """As for chat."""
    observed = Observed()
    assert rewrite_response(body, observed, model="assistant", cost=cost) == body
    assert observed == Observed()


def test_embeddings_are_metered_by_their_input() -> None:
    """Their usage has no output side."""
    observed = Observed()
    sent = rewrite_chat(
        b'{"data":[],"model":"m","usage":{"prompt_tokens":8,"total_tokens":8}}',
        observed,
        model="embed",
        cost=cost,
    )
    assert observed.usage == TokenUsage(input_tokens=8)
    assert json.loads(sent)["usage"]["cost_usd"] == 0.000000008


# ---- streams of chat and completions


def test_usage_the_caller_did_not_ask_for_is_cut_and_metered() -> None:
    """The gateway asks for usage on every stream; who did not ask sees none of it."""
    stream = chat()
    sent = stream.feed(event(chunk("a")) + event(chunk("b", finish="stop")) + event(tail()) + DONE)
    assert payloads(sent) == [
        chunk("a", model="assistant"),
        chunk("b", finish="stop", model="assistant"),
        "[DONE]",
    ]
    assert stream.observed == Observed(
        final=METERED,
        finish_reason="stop",
        upstream_id="c-1",
        is_done=True,
        has_content=True,
        pieces=2,
        ended={0},
        end_mark=DONE,
    )


def test_usage_the_caller_asked_for_comes_with_its_cost() -> None:
    """The last chunk before `[DONE]` has no choices, full usage and its cost."""
    stream = chat(wants_usage=True)
    sent = payloads(stream.feed(event(chunk("a", usage=None)) + event(tail()) + DONE))
    assert sent[0] == chunk("a", model="assistant", usage=None)
    assert sent[1]["usage"] == {**USAGE, "cost_usd": 0.000000012}
    assert sent[1]["choices"] == []
    assert sent[2] == "[DONE]"


def running(text: str, made: int, **members: Any) -> dict[str, Any]:
    return chunk(text, usage={"prompt_tokens": 10, "completion_tokens": made}, **members)


@pytest.mark.parametrize("wants_usage", [True, False])
def test_running_usage_that_only_we_asked_for_is_cut(wants_usage: bool) -> None:
    """vLLM puts running usage on every chunk because we asked; the caller's chunks look as they
    would without.
    """
    stream = chat(wants_usage=wants_usage, asked_running=True)
    sent = payloads(stream.feed(event(running("a", 1)) + event(running("b", 2))))
    assert sent == [chunk("a", model="assistant"), chunk("b", model="assistant")]
    assert (stream.observed.usage, stream.observed.is_final) == (METERED, False)


def test_running_usage_the_caller_asked_for_is_kept() -> None:
    """Who asks vLLM for running usage gets it, without a cost that would change with every
    token.
    """
    stream = chat(wants_usage=True, wants_running=True, asked_running=True)
    sent = payloads(stream.feed(event(running("a", 1)) + event(tail()) + DONE))
    assert sent[0]["usage"] == {"prompt_tokens": 10, "completion_tokens": 1}
    assert sent[1]["usage"]["cost_usd"] == 0.000000012


@pytest.mark.parametrize("wants_usage", [True, False])
def test_final_usage_on_a_chunk_with_choices(wants_usage: bool) -> None:
    """Some providers put it there; it is metered, shown to who asked and cut for who did not."""
    stream = chat(wants_usage=wants_usage)
    sent = payloads(stream.feed(event(chunk("a", finish="stop", usage=USAGE)) + DONE))
    expected = {**USAGE, "cost_usd": 0.000000012}
    assert sent[0].get("usage") == (expected if wants_usage else None)
    assert ("usage" in sent[0]) == wants_usage
    assert (stream.observed.usage, stream.observed.is_final) == (METERED, True)


def test_the_last_usage_wins() -> None:
    """A duplicate final chunk is not added to the first."""
    stream = chat()
    stream.feed(event(tail({"prompt_tokens": 10, "completion_tokens": 1})) + event(tail()) + DONE)
    assert stream.observed.usage == METERED


@pytest.mark.parametrize(
    ("later", "believed"),
    [
        (
            {"prompt_tokens": 10, "completion_tokens": 3},
            TokenUsage(input_tokens=10, output_tokens=3),
        ),
        (
            {"prompt_tokens": 10, "completion_tokens": 1},
            TokenUsage(input_tokens=10, output_tokens=1),
        ),
        ({"prompt_tokens": 0, "completion_tokens": 0}, METERED),
        ({"prompt_tokens": 10, "completion_tokens": -1}, METERED),
        ({"prompt_tokens": 10, "completion_tokens": 10**12}, METERED),
        ({"completion_tokens": 3}, METERED),
        ({"prompt_tokens": "x"}, METERED),
        (None, METERED),
    ],
)
def test_of_two_last_words_the_last_that_can_be_true_counts_once(
    later: Any, believed: TokenUsage
) -> None:
    """Chained proxies repeat the final chunk, and some end with zeros."""
    stream = chat(wants_usage=True)
    stream.feed(event(chunk("a", finish="stop")) + event(tail()) + event(tail(later)) + DONE)
    assert (stream.observed.final, stream.observed.running, stream.observed.is_done) == (
        believed,
        None,
        True,
    )


def test_two_last_words_that_cannot_be_true_leave_the_last() -> None:
    """It is settled as suspect; which of the two is kept does not matter, but one is."""
    stream = chat()
    broken = {"prompt_tokens": -1, "completion_tokens": 2}
    stream.feed(
        event(tail({"prompt_tokens": -5, "completion_tokens": 1})) + event(tail(broken)) + DONE
    )
    assert stream.observed.final == TokenUsage(input_tokens=-1, output_tokens=2)


def test_zero_stays_zero() -> None:
    """An explicit 0 is a figure; a missing one is none."""
    stream = chat()
    stream.feed(event(tail({"prompt_tokens": 0, "completion_tokens": 0})) + DONE)
    assert stream.observed.final == TokenUsage(input_tokens=0, output_tokens=0)
    silent = chat()
    silent.feed(event(chunk("a", finish="stop")) + DONE)
    assert silent.observed.final is None


def test_zero_output_in_a_whole_answer_that_says_something() -> None:
    """The least it can have cost is one token, so that settling does not believe the zero."""
    body = b'{"choices":[{"message":{"role":"assistant","content":%s}}],"usage":{"prompt_tokens":9,"completion_tokens":0}}'  # noqa: E501
    spoken, silent = Observed(), Observed()
    rewrite_chat(body % b'"hi"', spoken, model="a", cost=cost)
    rewrite_chat(body % b"null", silent, model="a", cost=cost)
    assert (spoken.least_output_tokens, silent.least_output_tokens) == (1, 0)


@pytest.mark.parametrize(
    "late",
    [
        event(tail()) + DONE,
        DONE + event(tail()),
        b": ping\n\n" + event({"choices": []}) + event(tail()),
    ],
)
def test_usage_after_done_is_metered_and_not_passed_on(late: bytes) -> None:
    """One `[DONE]`, and an upstream that counts late is not free."""
    stream = chat(wants_usage=True)
    assert (
        stream.feed(event(chunk("a", finish="stop", model="assistant")) + DONE + late).count(
            b"[DONE]"
        )
        == 1
    )
    assert (stream.observed.final, stream.observed.is_done) == (METERED, True)


@pytest.mark.parametrize(
    "late", [b'data: {"usage"\n\n', b'data: {"usage":{}}\n\n', b'data: {"usage":0}\n\n']
)
def test_rubbish_after_done_is_dropped(late: bytes) -> None:
    """The answer is whole; nothing behind it can spoil it."""
    stream = chat()
    assert stream.feed(DONE + late) == DONE
    assert (stream.observed.final, stream.observed.is_done) == (None, True)


def test_a_larger_usage_after_the_usage_and_done_counts() -> None:
    """The upstream bills the whole answer, whatever the caller was shown."""
    stream = chat(wants_usage=True)
    stream.feed(event(tail()) + DONE + event(tail({"prompt_tokens": 99, "completion_tokens": 99})))
    assert stream.observed.final == TokenUsage(input_tokens=99, output_tokens=99)


def test_unrequested_running_usage_is_final_only_at_the_end() -> None:
    """Such a stream, cut in the middle, must not be booked as the provider's final figure."""
    stream = chat(wants_usage=True)
    sent = payloads(stream.feed(event(running("a", 1)) + event(running("b", 2))))
    assert [one["usage"] for one in sent] == [
        {"prompt_tokens": 10, "completion_tokens": 1},
        {"prompt_tokens": 10, "completion_tokens": 2},
    ]
    assert (stream.observed.running, stream.observed.final) == (METERED, None)
    stream.feed(DONE)
    assert (stream.observed.final, stream.observed.is_final) == (METERED, True)


def test_running_usage_that_we_asked_for_never_becomes_the_last_word() -> None:
    """Row 17: the final chunk is missing. The observed usage is charged, as derived."""
    stream = chat(asked_running=True)
    stream.feed(event(running("a", 1)) + event(running("b", 2, finish="stop")) + DONE)
    assert (stream.observed.running, stream.observed.final, stream.observed.usage) == (
        METERED,
        None,
        METERED,
    )


def test_running_usage_of_several_choices_is_added_up() -> None:
    """vLLM counts each choice on its own; the prompt they share is counted once."""
    stream = chat_stream(
        model="a",
        cost=cost,
        wants_usage=False,
        wants_running_usage=False,
        asked_running_usage=True,
        choices=2,
    )

    def piece(index: int, made: int) -> bytes:
        usage = {"prompt_tokens": 10, "completion_tokens": made}
        return event({"choices": [{"index": index, "delta": {"content": "a"}}], "usage": usage})

    stream.feed(piece(0, 1) + piece(1, 1) + piece(0, 2) + piece(1, 3) + piece(0, 4))
    assert stream.observed.running == TokenUsage(input_tokens=10, output_tokens=7)
    stream.feed(piece(2, 5) + piece(3, 1))  # a second prompt
    assert stream.observed.running == TokenUsage(input_tokens=20, output_tokens=13)


def test_an_error_event_with_usage_is_metered() -> None:
    """The upstream says that it worked before it failed: it is believed."""
    stream = chat()
    stream.feed(event(chunk("a")) + event({"error": {"message": "died"}, "usage": USAGE}) + DONE)
    assert (stream.observed.final, stream.observed.is_error, stream.observed.is_done) == (
        METERED,
        True,
        False,
    )


def test_a_usage_after_groqs_own_keeps_the_calls_of_other_models() -> None:
    """Groq names them in `x_groq` alone: without them the answer cost one model's tokens."""
    models = {"models": [{"model": "m-1"}, {"model": "other"}]}
    last = {"choices": [], "model": "m-1", "x_groq": {"usage": USAGE, "usage_breakdown": models}}
    stream = chat()
    stream.feed(event(chunk("a")) + event(last) + event({"choices": [], "usage": USAGE}) + DONE)
    assert stream.observed.final == msgspec.structs.replace(METERED, other_model_calls=1)


def breakdown(model: bytes) -> bytes:
    """Return an answer of this model whose usage is that of the models `m` and `other` together."""
    models = b'"usage_breakdown":{"models":[{"model":"m"},{"model":"other"}]}'
    return b'{"model":' + model + b',"usage":{"prompt_tokens":1},' + models + b"}"


@pytest.mark.parametrize(
    ("body", "usage"),
    [
        (json.dumps({"error": {"message": "x"}, "usage": USAGE}).encode(), METERED),
        (b'{"error":{"message":"x"}}', None),
        (b"<html>", None),
        (b'{"error":"x","usage":null}', None),
        (b"[" * 5000, None),
        (b'{"model":"\xff","usage":{"prompt_tokens":1}}', TokenUsage(input_tokens=1)),
        (breakdown(b'"m"'), TokenUsage(input_tokens=1, other_model_calls=1)),
        (breakdown(b"null"), TokenUsage(input_tokens=1, other_model_calls=2)),
        (breakdown(b"7"), TokenUsage(input_tokens=1, other_model_calls=2)),
        (breakdown(b'"\xff"'), TokenUsage(input_tokens=1, other_model_calls=2)),
    ],
)
def test_usage_of_an_error_answer(body: bytes, usage: TokenUsage | None) -> None:
    """It is read if present, whatever the rest of the body."""
    assert usage_in(body) == usage


# ---- text, counted if the upstream does not


def collected(*deltas: Any) -> Observed:
    stream = chat_stream(
        model="a",
        cost=cost,
        wants_usage=False,
        wants_running_usage=False,
        asked_running_usage=False,
        collects_text=True,
    )
    for index, delta in deltas:
        stream.feed(event({"choices": [{"index": index, **delta}]}))
    return stream.observed


def test_all_that_a_model_wrote_is_kept_to_be_counted() -> None:
    """Reasoning, refusals, the names and arguments of tools; each choice on its own."""
    call = {
        "index": 0,
        "id": "c-1",
        "type": "function",
        "function": {"name": "weather", "arguments": '{"city":'},
    }
    observed = collected(
        (0, {"delta": {"role": "assistant", "content": ""}}),
        (0, {"delta": {"reasoning": "hm "}}),
        (1, {"delta": {"content": "other"}}),
        (0, {"delta": {"content": "é"}}),
        (0, {"delta": {"tool_calls": [call, 5, {"function": None}]}}),
        (0, {"delta": {"refusal": " no"}}),
        (0, {"text": "old"}),
        (0, {}),
        ("x", {"delta": {"content": 7}}),
    )
    assert observed.texts == ('hm éweather{"city": noold', "other")
    assert observed.output_bytes == len('hm éweather{"city": noold'.encode()) + 5
    assert observed.has_all_text


def test_text_is_bounded_but_its_size_is_not() -> None:
    """A very long answer is not held in memory; that it was long is still known."""
    observed = collected(*((0, {"delta": {"content": "x" * 1000}}) for _ in range(300)))
    assert len(observed.texts[0]) <= MAX_TEXT_CHARS < observed.output_bytes == 300_000
    assert not observed.has_all_text
    assert observed.least_output_tokens == -(-300_000 // 1024)


def test_text_is_kept_only_when_asked_and_never_shown() -> None:
    """Prompts and completions are not ours to keep: memory only, and no log line holds them."""
    stream = chat()
    stream.feed(event(chunk("secret words")))
    assert (stream.observed.texts, stream.observed.output_bytes, stream.observed.has_all_text) == (
        (),
        0,
        False,
    )
    assert "secret words" not in repr(collected((0, {"delta": {"content": "secret words"}})))


def test_an_error_then_done_is_no_success() -> None:
    """vLLM ends a dead stream with an error and then `[DONE]`: the caller must not see a clean
    end.
    """
    stream = chat()
    error = {"error": {"message": "EngineCore died", "type": "InternalServerError", "code": 500}}
    sent = stream.feed(event(chunk("a")) + event(error) + DONE)
    error_object = {
        "message": "EngineCore died",
        "type": "upstream_error",
        "param": None,
        "code": "upstream_error",
    }
    assert payloads(sent) == [chunk("a", model="assistant"), {"error": error_object}]
    assert (stream.observed.is_error, stream.observed.is_done) == (True, False)


def test_nothing_follows_done() -> None:
    """One `[DONE]`, for any later bytes of the upstream."""
    stream = chat()
    assert stream.feed(DONE + DONE + event(chunk("late")) + b": ping\n\n") == DONE


def test_a_null_error_is_no_error() -> None:
    """Some providers write every member."""
    stream = chat()
    stream.feed(event(chunk("a", error=None)) + DONE)
    assert (stream.observed.is_error, stream.observed.is_done) == (False, True)


@pytest.mark.parametrize(
    "odd",
    [
        b": keep-alive\n\n",
        b"event: ping\n\n",
        b"data: {not json\n\n",
        b"data: 5\n\n",
        b'data: {"choices":"none"}\n\n',
        b'data: {"model":"m-1","model":"m-2","choices":[]}\n\n',
        b"data: \xff\n\n",
        b'data: {"choices":[{"delta":null}]}\n\n',
        b'data: {"choices":[{"delta":"text"}]}\n\n',
        b'data: {"choices":[{"delta":[1]}]}\n\n',
        b'data: {"choices":[{"delta":{"a":' + b"[" * 3000 + b"]" * 3000 + b"}}]}\n\n",
    ],
)
def test_unknown_events_pass_unchanged(odd: bytes) -> None:
    """Tomorrow's event works today, and no upstream's oddity ends a stream."""
    stream = chat()
    assert stream.feed(odd + event(chunk("a", model="assistant"))) == odd + event(
        chunk("a", model="assistant")
    )


@pytest.mark.parametrize(
    ("delta", "has_content"),
    [
        ({"role": "assistant"}, False),
        ({"role": "assistant", "content": ""}, False),
        ({"content": "a"}, True),
        ({"reasoning": "a"}, True),
        ({"tool_calls": [{"index": 0}]}, True),
        ({}, False),
    ],
)
def test_the_first_token_is_not_the_first_chunk(delta: dict[str, Any], has_content: bool) -> None:
    """Time to first token ends at a token; a chunk with the role alone has none."""
    stream = chat()
    stream.feed(event({"choices": [{"delta": delta}]}))
    assert stream.observed.has_content == has_content


@pytest.mark.parametrize(("text", "has_content"), [("", False), (None, False), ("a", True)])
def test_completions_stream_text(text: str | None, has_content: bool) -> None:
    """The older endpoint has `text` in place of chat's `delta`."""
    stream = chat()
    stream.feed(event({"choices": [{"text": text, "finish_reason": None}]}))
    assert stream.observed.has_content == has_content


texts = st.text(max_size=6) | st.sampled_from(['"model":"m-1"', ',"usage":{}}', '\\"', "}"])
choices = st.fixed_dictionaries(
    {"delta": st.fixed_dictionaries({"content": texts})},
    optional={"finish_reason": st.sampled_from([None, "stop"])},
)
chunks = st.fixed_dictionaries(
    {"choices": st.lists(choices, max_size=2)},
    optional={
        "id": st.sampled_from(["c-1", "c-2"]),
        "model": st.sampled_from(["m-1", "m-10", "m-1\u00e9", "assistant"]),
        "usage": st.none() | st.just(USAGE),
        "x_groq": st.just({"id": "r", "model": "m-1", "usage": USAGE}),
    },
).flatmap(lambda one: st.permutations(list(one.items())).map(dict))


@given(st.lists(chunks, max_size=5), st.booleans(), st.booleans(), st.booleans())
def test_whatever_order_members_come_in_only_model_and_usage_change(
    many: list[dict[str, Any]], wants_usage: bool, asked_running: bool, ascii_only: bool
) -> None:
    """Short cuts for the usual form must not touch similar members, nested ones or text."""
    stream = chat(wants_usage=wants_usage, asked_running=asked_running)
    sent = payloads(
        b"".join(
            stream.feed(
                b"data: "
                + json.dumps(one, ensure_ascii=ascii_only, separators=(",", ":")).encode()
                + b"\n\n"
            )
            for one in many
        )
    )
    kept = [one for one in many if wants_usage or one["choices"] or not one.get("usage")]
    assert len(sent) == len(kept)
    for got, was in zip(sent, kept, strict=True):
        assert {**got, "model": 0, "usage": 0} == {**was, "model": 0, "usage": 0}
        assert got.get("model") == ("assistant" if "model" in was else None)
        if not got.get("usage"):
            continue
        ends = not was["choices"] or any(choice.get("finish_reason") for choice in was["choices"])
        assert wants_usage
        assert not (asked_running and was["choices"])
        assert got["usage"] == ({**USAGE, "cost_usd": 0.000000012} if ends else USAGE)


STREAMS = {
    "asked": (
        [
            event(chunk("a", usage=None)),
            event(chunk("b", finish="stop", usage=None)),
            event(tail()),
            DONE,
        ],
        True,
    ),
    "not asked": ([event(chunk("é")), b": ping\n\n", event(tail()), DONE], False),
    "running": ([event(running("a", 1)), event(running("b", 2)), event(tail()), DONE], False),
    "error": ([event(chunk("a")), event({"error": {"message": "x"}}), DONE], True),
    "crlf": (
        [
            event(chunk("a")).replace(b"\n", b"\r\n"),
            event(tail()).replace(b"\n", b"\r\n"),
            b"data: [DONE]\r\n\r\n",
        ],
        True,
    ),
}


@pytest.mark.parametrize("name", list(STREAMS))
@given(st.lists(st.integers(0, 2000), max_size=6))
def test_a_stream_split_anywhere_gives_the_same_answer(name: str, cuts: list[int]) -> None:
    """The network's cuts change neither the caller's view nor the metering."""
    pieces, wants_usage = STREAMS[name]
    whole = b"".join(pieces)
    one = chat(wants_usage=wants_usage, asked_running=name == "running")
    expected = one.feed(whole)
    other = chat(wants_usage=wants_usage, asked_running=name == "running")
    edges = [0, *sorted({cut % (len(whole) + 1) for cut in cuts}), len(whole)]
    assert b"".join(other.feed(whole[a:b]) for a, b in itertools.pairwise(edges)) == expected
    assert other.observed == one.observed


# ---- streams of responses


def response(status: str, usage: Any = None) -> dict[str, Any]:
    return {
        "id": "r-1",
        "model": "m-1",
        "status": status,
        "output": [],
        "usage": usage,
        "error": None,
    }


def named(kind: str, **members: Any) -> bytes:
    return f"event: {kind}\ndata: {json.dumps({'type': kind, **members})}\n\n".encode()


WIRE = {"input_tokens": 10, "output_tokens": 2, "total_tokens": 12}


@pytest.mark.parametrize("last", ["completed", "incomplete", "failed"])
def test_a_response_stream_ends_with_usage_and_cost(last: str) -> None:
    """The last event carries the whole response; its usage is final, its model the caller's, its
    cost ours.
    """
    stream = response_stream(model="assistant", cost=cost)
    sent = stream.feed(
        named("response.created", response=response("in_progress"), sequence_number=0)
        + named("response.output_text.delta", delta="a", sequence_number=1)
        + named(f"response.{last}", response=response(last, WIRE), sequence_number=2)
    )
    first, delta, final = payloads(sent)
    assert (first["response"]["model"], first["response"]["usage"]) == ("assistant", None)
    assert delta == {"type": "response.output_text.delta", "delta": "a", "sequence_number": 1}
    assert final["response"] == {
        **response(last, {**WIRE, "cost_usd": 0.000000012}),
        "model": "assistant",
    }
    assert sent.count(b"event: ") == 3
    assert stream.observed == Observed(
        final=METERED,
        finish_reason=last,
        upstream_id="r-1",
        is_error=last == "failed",
        is_done=True,
        has_content=True,
        pieces=1,
    )


@pytest.mark.parametrize(
    "odd",
    [
        b": ping\n\n",
        b"data: [DONE]\n\n",
        b"data: {no\n\n",
        b'data: {"type":5}\n\n',
        b'data: {"type":"x","response":null}\n\n',
        b'data: {"type":"x","response":5}\n\n',
        b'data: {"type":"x","response":{"id":"a","id":"b","model":"m"}}\n\n',
    ],
)
def test_odd_events_of_a_response_stream_pass(odd: bytes) -> None:
    """As for chat."""
    assert response_stream(model="assistant", cost=cost).feed(odd) == odd


def test_a_response_streams_text_is_kept_to_be_counted() -> None:
    """For any kind of text delta; others are ignored."""
    stream = response_stream(model="assistant", cost=cost, collects_text=True)
    stream.feed(
        named("response.output_text.delta", delta="a", output_index=0)
        + named("response.function_call_arguments.delta", delta="{", output_index=1)
        + named("response.reasoning_text.delta", delta="b", output_index=0)
        + named("response.audio.delta", delta={"x": 1})
        + named("response.output_text.done", text="ab")
    )
    assert (stream.observed.texts, stream.observed.output_bytes) == (("ab", "{"), 3)


def test_usage_before_a_responses_end_is_a_running_figure() -> None:
    """Only its last event has the last word: a stream cut before it must not look finished."""
    stream = response_stream(model="assistant", cost=cost)
    stream.feed(named("response.in_progress", response=response("in_progress", WIRE)))
    assert (stream.observed.running, stream.observed.final, stream.observed.is_done) == (
        METERED,
        None,
        False,
    )


def test_a_failed_response_without_usage_keeps_the_observed_usage() -> None:
    """Its last word is silent: nothing is invented, and nothing is lost."""
    stream = response_stream(model="assistant", cost=cost)
    stream.feed(named("response.in_progress", response=response("in_progress", WIRE)))
    stream.feed(named("response.failed", response=response("failed")))
    assert (stream.observed.running, stream.observed.final, stream.observed.is_error) == (
        METERED,
        None,
        True,
    )


def test_an_error_event_of_a_response_stream_is_noticed() -> None:
    """`type: error` ends a response; it is not its completion."""
    stream = response_stream(model="assistant", cost=cost)
    stream.feed(named("error", code="server_error", message="x"))
    assert (stream.observed.is_error, stream.observed.is_done) == (True, False)
