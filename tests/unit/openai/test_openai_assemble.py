"""A stream put together gives the body that a plain call gave; both were recorded from one vLLM
0.32.

tests/engine/test_assembled_real.py makes the same comparison against a running engine.
"""

from __future__ import annotations

import json
from copy import copy
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.operation import Operation
from gateway.domain.pricing.tokens import TokenUsage
from gateway.domain.providers.own_members import StreamUsage
from gateway.errors import UpstreamError
from gateway.providers.openai import OpenAI
from gateway.providers.registry import build_providers
from gateway.providers.vllm import Vllm
from gateway.wire.dialect import EventTooLarge
from gateway.wire.openai.answer.assemble import Assembler, is_convertible
from gateway.wire.sse import MAX_EVENT_BYTES
from tests.answers import at_once, rewrite_chat
from tests.factories import deployment, read, request

RECORDED = Path(__file__).parents[2] / "golden" / "vllm"
CASES = sorted(path.name for path in RECORDED.glob("assembled-*"))
CHAT = {"model": "m", "messages": []}


def comparable(body: bytes) -> dict[str, Any]:
    """Return it without the parts that differ between any two calls: id, time, and the engine's
    timings.
    """
    answer: dict[str, Any] = json.loads(body)
    for name in ("id", "created"):
        assert answer.pop(name)
    metrics = answer["metrics"]
    answer["metrics"] = metrics and {name: value is None for name, value in metrics.items()}
    return answer


def recorded(case: str) -> tuple[Assembler, bytes, bytes]:
    """A fresh assembler for the case, the stream, and the plain answer."""
    folder = RECORDED / case
    body = (folder / "request.json").read_bytes()
    operation = Operation.COMPLETIONS if "completions" in case else Operation.CHAT
    understood = read(body, operation)
    assert is_convertible(understood)
    made = Vllm(b"").assembler(understood, limit_bytes=2**20)
    return made, (folder / "stream.sse").read_bytes(), (folder / "plain.json").read_bytes()


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("piece_bytes", [1, 100, 10**9])
def test_a_stream_gives_the_plain_answer(case: str, piece_bytes: int) -> None:
    """Every member, those that are null included, in the same order; however the stream was cut on
    its way.
    """
    assembler, stream, plain = recorded(case)
    for at in range(0, len(stream), piece_bytes):
        assembler.feed(stream[at : at + piece_bytes])
    made = assembler.body()
    assert comparable(made) == comparable(plain)
    assert json.dumps(comparable(made)) == json.dumps(comparable(plain))


@pytest.mark.parametrize("case", CASES)
def test_an_assembled_answer_is_metered_like_a_plain_one(case: str) -> None:
    """The conversion must not change the bill."""
    assembler, stream, plain = recorded(case)
    assembler.feed(stream)
    usage = json.loads(plain)["usage"]
    assert assembler.observed.final is not None
    assert (assembler.observed.final.input_tokens, assembler.observed.final.output_tokens) == (
        usage["prompt_tokens"],
        usage["completion_tokens"],
    )
    before = copy(assembler.observed)
    rewrite_chat(assembler.body(), assembler.observed, model="assistant", cost=lambda usage: "0.1")
    assert (assembler.observed.final, assembler.observed.is_done) == (before.final, True)


@pytest.mark.parametrize("case", CASES)
def test_an_abandoned_stream_never_says_more_than_the_whole(case: str) -> None:
    """Cut at every byte: running figures only grow, none is final before the last chunk, and
    nothing has a body.
    """
    _, stream, _ = recorded(case)
    end = stream.rindex(b"data: [DONE]")
    usage_chunk = stream.rindex(b"data: {")
    whole = recorded(case)[0]
    whole.feed(stream)
    assert whole.observed.final is not None
    last = 0
    assembler = recorded(case)[0]
    for at in range(len(stream)):
        assembler.feed(stream[at : at + 1])
        observed = assembler.observed
        assert (observed.final is None) == (at < end - 1)
        assert observed.is_done == (at == len(stream) - 1)
        made = (observed.running or TokenUsage()).output_tokens or 0
        assert last <= made <= (whole.observed.final.output_tokens or 0)
        assert observed.running is not None or at < stream.index(b"\n\n") + 1
        last = made
    assert last == whole.observed.final.output_tokens
    assert usage_chunk < end


def fed(*chunks: Any, operation: Operation = Operation.CHAT) -> Assembler:
    assembler = Assembler(operation=operation, choices=1, limit_bytes=10_000)
    for chunk in chunks:
        assembler.feed(
            b"data: "
            + (chunk if isinstance(chunk, bytes) else json.dumps(chunk).encode())
            + b"\n\n"
        )
    return assembler


def delta(finish: str | None = None, **members: Any) -> dict[str, Any]:
    choice = {"index": 0, "delta": members, "finish_reason": finish}
    return {"id": "c-1", "created": 7, "model": "m-1", "choices": [choice]}


def message(*chunks: Any) -> Any:
    return json.loads(fed(*chunks, b"[DONE]").body())["choices"][0]["message"]


def test_reasoning_and_tool_calls_are_put_together() -> None:
    """Not converted today, because parsers differ; but an engine that sends them anyway loses
    nothing.
    """
    found = message(
        delta(role="assistant", content=""),
        delta(reasoning="h"),
        delta(reasoning="m"),
        delta(tool_calls=[{"index": 1, "id": "b", "function": {"name": "late"}}]),
        delta(
            tool_calls=[
                {
                    "index": 0,
                    "id": "a",
                    "type": "function",
                    "function": {"name": "get", "arguments": ""},
                }
            ]
        ),
        delta(tool_calls=[{"index": 0, "function": {"arguments": '{"x":'}}, {"index": 0}]),
        delta("tool_calls", tool_calls=[{"index": 0, "function": {"arguments": "1}"}}]),
    )
    assert found == {
        "role": "assistant",
        "content": None,
        "refusal": None,
        "annotations": None,
        "audio": None,
        "function_call": None,
        "reasoning": "hm",
        "tool_calls": [
            {"id": "a", "type": "function", "function": {"name": "get", "arguments": '{"x":1}'}},
            {"id": "b", "type": "function", "function": {"name": "late", "arguments": ""}},
        ],
    }


def test_absent_content_is_null_and_empty_text_is_empty() -> None:
    """The first delta has the role and an empty content in every case."""
    assert message(delta(role="assistant", content=""), delta("stop"))["content"] is None
    assert message(delta(role="assistant", content=""), delta("stop", content=""))["content"] == ""


def test_an_error_event_becomes_an_upstream_error() -> None:
    """vLLM has sent status 200 by then, and ends with `[DONE]`: the caller gets the error of a
    plain call.
    """
    error = {"error": {"message": "EngineCore died", "type": "InternalServerError", "code": 500}}
    assembler = fed(delta(role="assistant", content=""), error, b"[DONE]")
    assert (assembler.observed.is_error, assembler.observed.is_done) == (True, False)
    with pytest.raises(UpstreamError, match="EngineCore died"):
        assembler.body()


@pytest.mark.parametrize("odd", [b"{no", b"5", b'{"choices":5}', b'{"id":"\xff"}', b"[" * 3000])
def test_an_unreadable_event_is_an_upstream_error(odd: bytes) -> None:
    """A stream can let an odd event pass; an answer that is put together cannot leave a hole."""
    with pytest.raises(UpstreamError, match="could not be read"):
        fed(delta(role="assistant"), odd)


@pytest.mark.parametrize("odd", [b'{"choices":[],"usage":{"prompt_tokens":1},"metrics":5}'])
def test_a_last_chunk_that_cannot_be_read_is_an_upstream_error(odd: bytes) -> None:
    """It is read only when the body is written."""
    with pytest.raises(UpstreamError, match="could not be read"):
        fed(delta(role="assistant"), odd, b"[DONE]").body()


def test_an_answer_is_bounded() -> None:
    """As a plain one is."""
    with pytest.raises(UpstreamError, match="10,000 bytes"):
        fed(*(delta(content="x" * 1000) for _ in range(10)))
    with pytest.raises(EventTooLarge):
        Assembler(operation=Operation.CHAT, choices=1, limit_bytes=2**22).feed(
            b"x" * (MAX_EVENT_BYTES + 1)
        )


def test_a_cut_stream_has_no_body() -> None:
    """Half an answer is never passed on as a whole one."""
    with pytest.raises(AssertionError):
        fed(delta(role="assistant"), delta(content="a")).body()


def test_comments_and_events_after_done_are_ignored() -> None:
    """As a client does."""
    assembler = fed(
        delta(role="assistant", content=""),
        delta("stop", content="a"),
        b"[DONE]",
        delta(content="late"),
    )
    assembler.feed(b": ping\n\n")
    assert json.loads(assembler.body())["choices"][0]["message"]["content"] == "a"


def test_an_engine_without_final_usage_is_charged_by_its_running_usage() -> None:
    """Row 17 for a plain request: nothing is invented."""
    running = {**delta("stop", content="a"), "usage": {"prompt_tokens": 3, "completion_tokens": 1}}
    assembler = fed(
        delta(role="assistant", content=""),
        running,
        {**delta(), "choices": [], "usage": {}},
        b"[DONE]",
    )
    assert (assembler.observed.final, assembler.observed.running) == (
        None,
        TokenUsage(input_tokens=3, output_tokens=1),
    )
    assert json.loads(assembler.body())["usage"] is None


# ---- which requests are converted


@pytest.mark.parametrize(
    ("operation", "body", "expected"),
    [
        (Operation.CHAT, CHAT, True),
        (
            Operation.CHAT,
            CHAT | {"stream": False, "n": 2, "logprobs": True, "top_logprobs": 3},
            True,
        ),
        (Operation.CHAT, CHAT | {"stream": None, "max_completion_tokens": 5, "user": "u"}, True),
        (Operation.CHAT, CHAT | {"stream": True}, False),
        (Operation.CHAT, CHAT | {"stream_options": None}, False),
        (Operation.CHAT, CHAT | {"tools": []}, False),
        (Operation.CHAT, CHAT | {"echo": False}, False),
        (Operation.CHAT, CHAT | {"prompt_logprobs": 1}, False),
        (Operation.CHAT, CHAT | {"a_field_of_tomorrow": 1}, False),
        (Operation.COMPLETIONS, {"model": "m", "prompt": "x", "logprobs": 1}, True),
        (Operation.COMPLETIONS, {"model": "m", "prompt": "x", "echo": True}, False),
        (Operation.RESPONSES, {"model": "m", "input": "x"}, False),
        (Operation.EMBEDDINGS, {"model": "m", "input": "x"}, False),
    ],
)
def test_only_requests_of_known_fields_are_converted(
    operation: Operation, body: Any, expected: bool
) -> None:
    """One field that is not known to give the same answer both ways, and the request goes as it
    came.
    """
    assert is_convertible(read(json.dumps(body).encode(), operation)) is expected


@pytest.mark.parametrize(
    ("operation", "capabilities", "expected"),
    [
        (Operation.COMPLETIONS, None, True),
        (Operation.COMPLETIONS, frozenset({"tools", "reasoning"}), True),
        (Operation.CHAT, None, False),
        (Operation.CHAT, frozenset({"json_schema"}), True),
        (Operation.CHAT, frozenset({"tools"}), False),
        (Operation.CHAT, frozenset({"reasoning"}), False),
    ],
)
def test_chats_are_converted_only_on_engines_that_declare_no_parser(
    operation: Operation, capabilities: frozenset[str] | None, expected: bool
) -> None:
    """vLLM's parsers cut reasoning and calls out of a growing text another way than out of a whole
    one.
    """
    body = CHAT if operation is Operation.CHAT else {"model": "m", "prompt": "x"}
    one = deployment(provider="vllm", capabilities=capabilities)
    understood = read(json.dumps(body).encode(), operation)
    call = at_once(Vllm(b"", assembles_plain=True).call(one, request(understood)))
    sent = json.loads(call.body)
    assert call.is_assembled is expected
    assert (sent.get("stream"), "stream_options" in sent) == (
        (True, True) if expected else (None, False)
    )
    assert call.headers["accept"] == ("text/event-stream" if expected else "application/json")
    if expected:
        assert sent["stream_options"] == {"include_usage": True, "continuous_usage_stats": True}


def test_streams_and_other_providers_are_left_alone() -> None:
    """Only an engine of one's own says its usage on the way; and a stream is a stream already."""
    one = deployment(capabilities=frozenset())
    streamed = read(b'{"model":"m","prompt":"x","stream":true}', Operation.COMPLETIONS)
    plain = read(b'{"model":"m","prompt":"x"}', Operation.COMPLETIONS)
    assert not at_once(Vllm(b"", assembles_plain=True).call(one, request(streamed))).is_assembled
    assert not at_once(Vllm(b"").call(one, request(plain))).is_assembled
    unasked = deployment(provider="vllm", stream_usage=StreamUsage.FINAL)
    assert not at_once(Vllm(b"", assembles_plain=True).call(unasked, request(plain))).is_assembled
    assert not at_once(OpenAI().call(one, request(plain))).is_assembled
    assert [type(one) for one in build_providers(salt_key=b"").values()].count(Vllm) == 1


@given(st.lists(st.tuples(st.integers(0, 2), st.text(max_size=3)), max_size=12))
def test_choices_never_mix(pieces: list[tuple[int, str]]) -> None:
    """However the engine interleaves them."""
    chunks = [
        {
            "choices": [{"index": index, "text": text, "finish_reason": None}],
            "id": "c",
            "model": "m",
        }
        for index, text in [(0, ""), (1, ""), (2, ""), *pieces]
    ]
    found = json.loads(fed(*chunks, b"[DONE]", operation=Operation.COMPLETIONS).body())["choices"]
    assert [each["text"] for each in found] == [
        "".join(t for i, t in pieces if i == index) for index in range(3)
    ]
