"""Gemini's answers as neutral events: content, ends, usage, whatever the bytes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.pricing.tokens import TokenUsage
from gateway.wire.dialect import UnreadableAnswer
from gateway.wire.gemini.answer import GeminiReader, gemini_events, usage_in
from gateway.wire.gemini.contents import MADE_ID
from gateway.wire.gemini.error import NO_REASON, read_error, retry_delay_s
from gateway.wire.gemini.usage import tier_of, usage_from_gemini
from gateway.wire.observed import Observed
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
    Started,
    TextPiece,
    ThoughtPiece,
    Used,
)


def sse(*pieces: Any) -> bytes:
    return b"".join(b"data: " + json.dumps(one).encode() + b"\r\n\r\n" for one in pieces)


def piece(*parts: Any, finish: str | None = None, **others: Any) -> dict[str, Any]:
    candidate: dict[str, Any] = {"content": {"role": "model", "parts": list(parts)}, "index": 0}
    if finish is not None:
        candidate["finishReason"] = finish
    return {"candidates": [candidate], "responseId": "r1", **others}


def streamed(data: bytes, size: int = 10**9) -> tuple[list[AnswerEvent], Observed]:
    reader = GeminiReader()
    events: list[AnswerEvent] = []
    for at in range(0, len(data), size):
        events += reader.feed(data[at : at + size])
    events += reader.end()
    assert list(reader.end()) == []  # the relay asks until nothing comes
    return events, reader.observed


def counted(prompt: int, candidates: int, thoughts: int = 0, **others: Any) -> dict[str, Any]:
    total = prompt + candidates + thoughts + others.get("toolUsePromptTokenCount", 0)
    found = {"promptTokenCount": prompt, "totalTokenCount": total, **others}
    # Google's JSON leaves out a count of 0.
    found |= {"candidatesTokenCount": candidates} if candidates else {}
    return {"usageMetadata": found | ({"thoughtsTokenCount": thoughts} if thoughts else {})}


ANSWER = sse(
    piece({"text": "Hm.", "thought": True}, **counted(10, 0, 4)),
    piece({"text": "Sun"}, **counted(10, 1, 4)),
    piece(
        {"functionCall": {"name": "f", "args": {"a": "ü"}}, "thoughtSignature": "S+/="},
        {"functionCall": {"name": "g", "id": "own"}},
        finish="STOP",
        **counted(10, 9, 4, cachedContentTokenCount=6),
    ),
)
USAGE = TokenUsage(input_tokens=10, cached_input_tokens=6, output_tokens=13, reasoning_tokens=4)


@pytest.mark.parametrize("size", [1, 7, 10**9])
def test_thoughts_text_and_calls(size: int) -> None:
    """However the stream was cut on its way; a made id is the same each time."""
    events, seen = streamed(ANSWER, size)
    made = next(one.call_id for one in events if isinstance(one, CallStarted))
    first = TokenUsage(input_tokens=10, cached_input_tokens=0, output_tokens=4, reasoning_tokens=4)
    assert made.startswith(MADE_ID)
    assert events == [
        Started(answer_id="r1", usage=first),
        ThoughtPiece(text="Hm."),
        TextPiece(text="Sun"),
        CallStarted(call=0, call_id=made, name="f", signature="S+/="),
        CallArguments(call=0, text='{"a":"ü"}'),
        CallStarted(call=1, call_id="own", name="g"),
        CallArguments(call=1, text="{}"),
        Finished(finish=Finish.TOOL_CALLS, native="STOP"),
        Used(usage=USAGE),
        Ended(),
    ]
    assert (seen.final, seen.finish_reason, seen.upstream_id) == (USAGE, "STOP", "r1")
    assert (seen.is_done, seen.has_content, seen.pieces) == (True, True, 3)


def test_a_cut_stream_has_the_usage_so_far() -> None:
    """Exact, because every piece reports it."""
    events, seen = streamed(ANSWER[: ANSWER.rindex(b"data:")])
    assert not any(isinstance(one, Used | Ended | Finished) for one in events)
    assert not seen.is_done
    assert not seen.is_final
    assert seen.usage == TokenUsage(
        input_tokens=10, cached_input_tokens=0, output_tokens=5, reasoning_tokens=4
    )


def test_a_usage_without_counts_replaces_none() -> None:
    """Vertex sends only the kind of traffic in the middle of a stream. The content beside it is not
    in the earlier figure, whose prompt stays true.
    """
    data = sse(
        piece({"text": "a"}, **counted(10, 1)),
        piece({"text": "b"}, usageMetadata={"trafficType": "ON_DEMAND_PRIORITY"}),
    )
    _, seen = streamed(data)
    assert seen.usage == TokenUsage(input_tokens=10, cached_input_tokens=0)
    assert seen.is_behind
    assert seen.service_tier == "priority"
    assert seen.texts == ("ab",)


def test_counts_that_are_no_numbers_may_be_any() -> None:
    """The upstream counted and cannot be read, so its figure is not replaced by our own."""
    unreadable = {"promptTokenCount": "many", "candidatesTokenCount": []}
    _, seen = streamed(sse(piece({"text": "a"}, usageMetadata=unreadable), piece({"text": "b"})))
    assert seen.usage is not None
    assert seen.usage.has_unread


@pytest.mark.parametrize(
    ("word", "finish"),
    [
        ("STOP", Finish.STOP),
        ("MAX_TOKENS", Finish.LENGTH),
        ("SAFETY", Finish.CONTENT_FILTER),
        ("PROHIBITED_CONTENT", Finish.CONTENT_FILTER),
        ("MALFORMED_FUNCTION_CALL", Finish.STOP),
        ("OTHER", Finish.STOP),
        ("A_NEW_WORD", Finish.STOP),
    ],
)
def test_ends(word: str, finish: Finish) -> None:
    """By the contract; the provider's own word goes with it."""
    body = json.dumps(piece({"text": "a"}, finish=word, **counted(3, 1))).encode()
    seen = Observed()
    assert Finished(finish=finish, native=word) in gemini_events(body, seen)
    assert seen.finish_reason == word


def test_a_blocked_prompt_is_an_answer_without_text() -> None:
    """Its prompt is billed."""
    blocked = {"promptFeedback": {"blockReason": "PROHIBITED_CONTENT"}, **counted(25, 0)}
    usage = TokenUsage(input_tokens=25, cached_input_tokens=0, output_tokens=0, reasoning_tokens=0)
    expected = [
        Started(usage=TokenUsage(input_tokens=25, cached_input_tokens=0)),
        Finished(finish=Finish.CONTENT_FILTER, native="PROHIBITED_CONTENT"),
        Used(usage=usage),
        Ended(),
    ]
    events, seen = streamed(sse(blocked))
    assert events == expected
    assert (seen.is_done, seen.has_content) == (True, False)
    assert list(gemini_events(json.dumps(blocked).encode(), Observed())) == expected


def test_two_candidates_end_apart() -> None:
    """The answer is complete once both are."""
    both = {
        "candidates": [
            {"index": 0, "content": {"parts": [{"text": "a"}]}, "finishReason": "STOP"},
            {"index": 1, "content": {"parts": [{"text": "b"}]}},
        ],
    }
    rest = {"candidates": [{"index": 1, "finishReason": "MAX_TOKENS"}], **counted(5, 2)}
    assert not streamed(sse(both))[1].is_done
    events, seen = streamed(sse(both, rest))
    assert [one for one in events if isinstance(one, Finished)] == [
        Finished(finish=Finish.STOP, native="STOP"),
        Finished(finish=Finish.LENGTH, native="MAX_TOKENS", choice=1),
    ]
    assert seen.is_done
    assert seen.texts == ("a", "b")


def test_an_error_ends_the_stream() -> None:
    """With the usage so far, and nothing after it."""
    error = {"error": {"code": 503, "message": "Overloaded.", "status": "UNAVAILABLE"}}
    events, seen = streamed(sse(piece({"text": "a"}, **counted(4, 1)), error))
    assert events[-1] == Failed(code="upstream_error", message="Overloaded.")
    assert (seen.is_error, seen.is_done, seen.is_final) == (True, False, False)


@pytest.mark.parametrize("form", [b"%b", b"[%b\n]"])
def test_an_error_without_framing(form: bytes) -> None:
    """Google answers a stream's early error as a list or an object."""
    body = form % b'{"error":{"code":500,"message":"m"}}'
    events, seen = streamed(body)
    assert events == [Failed(code="upstream_error", message="m")]
    assert seen.is_error
    assert not seen.is_whole


def test_a_body_that_is_no_stream_is_counted() -> None:
    """It was generated and paid for."""
    events, seen = streamed(b"<html>")
    assert (events, seen.is_whole, seen.has_content) == ([], True, True)


def test_whole_answers() -> None:
    """Logprobs in OpenAI's form, media left out, web searches counted."""
    body = piece(
        {"text": "a"},
        {"inlineData": {"mimeType": "image/png", "data": "AAAA"}},
        finish="STOP",
        **counted(5, 300, serviceTier="flex"),
    )
    body["candidates"][0]["logprobsResult"] = {
        "chosenCandidates": [{"token": "a", "logProbability": -0.5}],
        "topCandidates": [{"candidates": [{"token": "b"}, {"token": "c", "logProbability": "x"}]}],
    }
    body["candidates"][0]["groundingMetadata"] = {"webSearchQueries": ["q", "r"]}
    seen = Observed()
    events = gemini_events(json.dumps(body).encode(), seen)
    texts = [one for one in events if isinstance(one, TextPiece)]
    assert [msgspec.json.decode(one.logprobs) for one in texts] == [
        [
            {
                "token": "a",
                "logprob": -0.5,
                "bytes": [97],
                "top_logprobs": [
                    {"token": "b", "logprob": 0.0, "bytes": [98]},
                    {"token": "c", "logprob": -9999.0, "bytes": [99]},
                ],
            }
        ]
    ]
    assert seen.final is not None
    assert (seen.final.web_search_calls, seen.final.output_tokens) == (2, 300)
    assert seen.service_tier == "flex"


def test_an_empty_answer_is_complete() -> None:
    """A 200 of no candidate came to its end, and its text would be counted."""
    seen = Observed()
    assert list(gemini_events(b'{"candidates":[]}', seen)) == [Started(), Ended()]
    assert (seen.is_done, seen.collects_text) == (True, True)


def test_an_unreadable_whole_answer_is_metered() -> None:
    """A nested bomb does not hide the usage beside it, if that can be read."""
    seen = Observed()
    with pytest.raises(UnreadableAnswer):
        gemini_events(b"[" * 1000, seen)
    assert seen.has_content
    bomb = b'{"usageMetadata":{"promptTokenCount":9},"candidates":[' + b"[]," * 30_000 + b"[]]}"
    with pytest.raises(UnreadableAnswer):
        gemini_events(bomb, seen)
    assert seen.final is not None
    assert seen.final.input_tokens == 9
    _, stream_seen = streamed(b"data: " + bomb + b"\n\n")
    assert stream_seen.final == seen.final


@pytest.mark.parametrize(
    ("reported", "expected"),
    [
        (
            {"promptTokenCount": 100, "candidatesTokenCount": 20, "thoughtsTokenCount": 30},
            {"input_tokens": 100, "output_tokens": 50, "reasoning_tokens": 30},
        ),
        (  # a total without the thoughts: they stand inside the candidates
            {
                "promptTokenCount": 100,
                "candidatesTokenCount": 50,
                "thoughtsTokenCount": 30,
                "totalTokenCount": 150,
            },
            {"input_tokens": 100, "output_tokens": 50, "reasoning_tokens": 30},
        ),
        (
            {"promptTokenCount": 100, "toolUsePromptTokenCount": 40, "candidatesTokenCount": 1},
            {"input_tokens": 140, "output_tokens": 1},
        ),
        (
            {
                "promptTokenCount": 2000,
                "cachedContentTokenCount": 1500,
                "promptTokensDetails": [
                    {"modality": "TEXT", "tokenCount": 200},
                    {"modality": "AUDIO", "tokenCount": 900},
                    {"modality": "IMAGE", "tokenCount": 900},
                ],
                "toolUsePromptTokenCount": 1,
                "toolUsePromptTokensDetails": [{"modality": "IMAGE", "tokenCount": 1}],
                "candidatesTokenCount": "12",
                "candidatesTokensDetails": [{"modality": "IMAGE", "tokenCount": 7.0}],
            },
            {
                "input_tokens": 2001,
                "cached_input_tokens": 1500,
                "audio_input_tokens": 900,
                "image_input_tokens": 901,
                "output_tokens": 12,
                "audio_output_tokens": 0,
                "image_output_tokens": 7,
            },
        ),
        ({"candidatesTokenCount": 3}, {"output_tokens": 3}),
    ],
)
def test_usage_in_normal_form(reported: dict[str, Any], expected: dict[str, int]) -> None:
    """Thoughts added, cached inside; 0 for what Google leaves out, None for the unreported."""
    usage = TokenUsage(**{"cached_input_tokens": 0, "reasoning_tokens": 0, **expected})
    assert usage_from_gemini(json.dumps(reported).encode()) == usage


@pytest.mark.parametrize("raw", [b"{}", b"null", b"[", b'{"trafficType":"ON_DEMAND"}'])
def test_no_usage_is_none(raw: bytes) -> None:
    """Unknown is never 0."""
    assert usage_from_gemini(raw) is None


def test_tiers() -> None:
    """AI Studio names it; Vertex names the traffic."""
    assert tier_of({"serviceTier": "STANDARD"}) == "standard"
    assert tier_of({"trafficType": "ON_DEMAND_FLEX"}) == "flex"
    assert tier_of({"trafficType": "PROVISIONED_THROUGHPUT"}) is None


def test_errors_and_their_waits() -> None:
    """By status and reason, whatever is missing."""
    body = (
        b'{"error":{"code":429,"message":"m","status":"RESOURCE_EXHAUSTED","details":['
        b'{"@type":"type.googleapis.com/google.rpc.QuotaFailure"},'
        b'{"reason":"RATE_LIMIT_EXCEEDED"},{"retryDelay":"34.07s"}]}}'
    )
    error = read_error(body)
    assert (error.message, error.type, error.code) == (
        "m",
        "RESOURCE_EXHAUSTED",
        "RATE_LIMIT_EXCEEDED",
    )
    assert retry_delay_s(body) == 34.07
    assert read_error(b"<html>").message == NO_REASON
    assert retry_delay_s(b'{"error":{"details":[{"retryDelay":"1e9s"}]}}') is None


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    "candidates",
                    "content",
                    "parts",
                    "text",
                    "functionCall",
                    "args",
                    "name",
                    "index",
                    "finishReason",
                    "usageMetadata",
                    "promptTokenCount",
                    "candidatesTokenCount",
                    "promptTokensDetails",
                    "promptFeedback",
                    "blockReason",
                    "logprobsResult",
                    "chosenCandidates",
                    "groundingMetadata",
                    "webSearchQueries",
                    "error",
                    "responseId",
                ]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=20,
)


def checked(events: Sequence[AnswerEvent]) -> None:
    """An answer begins before its content, and nothing follows its end."""
    kinds = [type(one) for one in events]
    assert Started not in kinds[1:]
    assert Ended not in kinds[:-1]
    assert kinds.count(Used) <= 1


@given(st.lists(JSON, max_size=4), st.integers(1, 50))
def test_no_answer_breaks_the_reader(pieces: list[Any], size: int) -> None:
    """Wrong types and missing members at every place."""
    events, seen = streamed(sse(*pieces), size)
    checked(events)
    assert seen.is_done is any(isinstance(one, Ended) for one in events)
    for one in pieces:
        body = json.dumps(one).encode()
        usage_in(body)
        read_error(body)
        retry_delay_s(body)
        if isinstance(one, dict):
            with suppress(UnreadableAnswer):
                checked(gemini_events(body, Observed()))


@given(
    st.integers(0, 10**6),
    st.integers(0, 10**6),
    st.integers(0, 10**6),
    st.integers(0, 10**6),
    st.integers(0, 10**6),
)
def test_invariants_of_usage(
    prompt: int, cached: int, tools: int, candidates: int, thoughts: int
) -> None:
    """The total is the sum of input and output, and every part is inside its whole."""
    cached = min(cached, prompt)
    members = counted(
        prompt,
        candidates,
        thoughts,
        toolUsePromptTokenCount=tools,
        cachedContentTokenCount=cached,
    )["usageMetadata"]
    usage = usage_from_gemini(json.dumps(members).encode())
    assert usage is not None
    assert usage.is_plausible
    assert (usage.input_tokens or 0) + (usage.output_tokens or 0) == members["totalTokenCount"]
    assert usage.reasoning_tokens == thoughts
    assert usage.cached_input_tokens == cached


def test_nothing_follows_the_error_of_a_stream() -> None:
    """The caller has the error; text that comes behind it is paid, so it is metered."""
    events, seen = streamed(sse({"error": {"code": 500, "message": "Died."}}, piece({"text": "x"})))
    assert [type(one) for one in events] == [Failed]
    assert (seen.is_error, seen.has_content) == (True, True)


@pytest.mark.parametrize(
    ("data", "more", "expected"),
    [
        (("image/png", "iVBORw=="), {}, Picture(media_type="image/png", data="iVBORw==")),
        (("image/png", "iVBORw=="), {"thought": True}, Omitted(name="image/png")),
        (("image/png", "no base64"), {}, Omitted(name="image/png")),
        (("image/png;a=b", "iVBORw=="), {}, Omitted(name="image/png;a=b")),
        (("audio/L16;rate=24000", "AAAA"), {}, Omitted(name="audio/L16;rate=24000")),
        (("", "AAAA"), {}, Omitted(name="media")),
    ],
)
def test_media_are_shown_or_named(
    data: tuple[str, str], more: dict[str, Any], expected: AnswerEvent
) -> None:
    """A sketch of a thought is no part of the answer."""
    part = {"inlineData": {"mimeType": data[0], "data": data[1]}, **more}
    assert streamed(sse(piece(part)))[0][1:] == [expected]


def test_sources_are_named_and_no_content() -> None:
    """A piece with them alone has no usage, and the one before it stays the last word."""
    counts = counted(1, 2)
    grounded = piece(finish="STOP")
    grounded["candidates"][0]["groundingMetadata"] = {"webSearchQueries": ["a"]}
    events, seen = streamed(sse(piece({"text": "a"}, **counts), grounded))
    assert Omitted(name="groundingMetadata") in events
    assert (seen.final is not None and seen.final.output_tokens) == 2
