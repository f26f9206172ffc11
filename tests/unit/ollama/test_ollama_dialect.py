"""Ollama's own dialect: conversations as its requests, its lines as neutral events."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.operation import Operation
from gateway.domain.pricing.tokens import TokenUsage
from gateway.domain.providers.facts import provider_facts_of
from gateway.errors import InvalidRequest, Untranslatable
from gateway.providers.engines.ollama import Ollama
from gateway.wire.dialect import EventTooLarge, UnreadableAnswer
from gateway.wire.json_lines import MAX_LINE_BYTES, MAX_PARTS, LineSplitter
from gateway.wire.observed import Observed
from gateway.wire.ollama.answer import OllamaReader, ollama_events, usage_in
from gateway.wire.ollama.request import write_ollama_request
from gateway.wire.translation.answer_events import (
    Ended,
    Failed,
    Finish,
    Finished,
    Started,
    TextPiece,
    Used,
)
from gateway.wire.translation.conversation import (
    Conversation,
    ConversationTurn,
    Media,
    OutputFormat,
    Part,
    Reasoning,
    Role,
    Sampling,
    TextPart,
    Thought,
    ToolCall,
    ToolChoice,
    ToolMode,
    ToolResult,
    ToolSpec,
)
from gateway.wire.translation.losses import Losses
from tests import factories
from tests.answers import at_once

CACHED = msgspec.Raw(b'{"type":"ephemeral"}')
TOOLS = (ToolSpec(name="f", description="d", parameters=msgspec.Raw(b"{}")),)


def turn(*parts: Part, role: Role = Role.USER, name: str = "") -> ConversationTurn:
    return ConversationTurn(role=role, parts=parts, name=name)


def written(
    *turns: ConversationTurn, drops: bool = False, **values: Any
) -> tuple[dict[str, Any], list[str]]:
    losses = Losses("o", drops=drops)
    body = write_ollama_request(Conversation(is_stream=True, turns=turns, **values), losses)
    return msgspec.json.decode(msgspec.json.encode(body)), losses.fields


def test_a_conversation_with_everything() -> None:
    """Each value in its member."""
    picture = Media(kind="image", media_type="image/png", data="AA", detail="auto")
    body, lost = written(
        turn(TextPart(text="a"), TextPart(text="b"), picture),
        turn(
            Thought(text="Hm."),
            ToolCall(call_id="1", name="f", arguments='{"x":1}'),
            ToolCall(call_id="2", name="g", arguments=""),
            role=Role.ASSISTANT,
        ),
        turn(
            ToolResult(call_id="1", parts=(TextPart(text="r"), picture)),
            ToolResult(call_id="2", parts=(TextPart(text="no"),), is_error=True),
            TextPart(text="Go."),
        ),
        system=(TextPart(text="s"),),
        tools=TOOLS,
        tool_choice=ToolChoice(mode=ToolMode.AUTO),
        has_parallel_calls=True,
        output_format=OutputFormat(),
        reasoning=Reasoning(effort="low"),
        service_tier="auto",
        sampling=Sampling(
            temperature=0,
            top_p=0.5,
            top_k=4,
            min_p=0.1,
            seed=3,
            presence_penalty=1,
            frequency_penalty=2,
            stop=("x",),
            top_logprobs=2,
        ),
    )
    assert lost == []
    assert body == {
        "messages": [
            {"role": "system", "content": "s"},
            {"role": "user", "content": "a\nb", "images": ["AA"]},
            {
                "role": "assistant",
                "content": "",
                "thinking": "Hm.",
                "tool_calls": [
                    {"function": {"name": "f", "arguments": {"x": 1}}},
                    {"function": {"name": "g", "arguments": {}}},
                ],
            },
            {"role": "tool", "content": "r", "tool_name": "f", "images": ["AA"]},
            {"role": "tool", "content": "Error: no", "tool_name": "g"},
            {"role": "user", "content": "Go."},
        ],
        "stream": True,
        "options": {
            "temperature": 0,
            "top_p": 0.5,
            "top_k": 4,
            "min_p": 0.1,
            "seed": 3,
            "presence_penalty": 1,
            "frequency_penalty": 2,
            "stop": ["x"],
        },
        "tools": [
            {"type": "function", "function": {"name": "f", "description": "d", "parameters": {}}}
        ],
        "format": "json",
        "think": "low",
        "logprobs": True,
        "top_logprobs": 2,
    }


@pytest.mark.parametrize(
    ("wish", "think"),
    [
        (Reasoning(effort="none"), False),
        (Reasoning(is_adaptive=True), True),
        (Reasoning(is_shown=True), True),
        (Reasoning(), None),
    ],
)
def test_the_wish_about_thinking(wish: Reasoning, think: Any) -> None:
    """A word, or yes and no."""
    assert written(reasoning=wish)[0].get("think") == think


def test_no_tools_are_sent_if_none_may_be_called() -> None:
    """The server has no member for the choice."""
    assert "tools" not in written(tools=TOOLS, tool_choice=ToolChoice(mode=ToolMode.NONE))[0]


@pytest.mark.parametrize(
    ("field", "values"),
    [
        ("tool_choice", {"tool_choice": ToolChoice(mode=ToolMode.REQUIRED)}),
        ("has_parallel_calls", {"tools": TOOLS, "has_parallel_calls": False}),
        ("choices", {"choices": 2}),
        ("service_tier", {"service_tier": "flex"}),
        ("reasoning", {"reasoning": Reasoning(effort="xhigh")}),
        ("reasoning", {"reasoning": Reasoning(budget_tokens=5)}),
        ("strict", {"tools": (ToolSpec(name="f", is_strict=True),)}),
        ("user", {"user": "ann"}),
        ("cache_control", {"system": (TextPart(text="a", cache_control=CACHED),)}),
        ("store", {"others": {"store": msgspec.Raw(b"true")}}),
        ("name", {"turns": (turn(TextPart(text="a"), name="ann"),)}),
        ("sealed", {"turns": (turn(Thought(sealed="x"), role=Role.ASSISTANT),)}),
        ("image", {"turns": (turn(Media(kind="image", url="https://a.example/b")),)}),
        ("audio", {"turns": (turn(Media(kind="audio", data="AA")),)}),
        ("detail", {"turns": (turn(Media(kind="image", data="AA", detail="low")),)}),
    ],
)
def test_a_value_without_a_place_is_refused_or_dropped_by_name(
    field: str, values: dict[str, Any]
) -> None:
    """Never silently."""
    turns = values.pop("turns", ())
    with pytest.raises(Untranslatable) as refused:
        written(*turns, **values)
    assert refused.value.param == field
    assert written(*turns, drops=True, **values)[1] == [field]


def test_calls_that_mean_nothing_are_refused() -> None:
    """By an error that the caller can fix."""
    with pytest.raises(InvalidRequest, match="are not a JSON object"):
        written(turn(ToolCall(call_id="c", name="f", arguments="[1]"), role=Role.ASSISTANT))
    with pytest.raises(InvalidRequest, match="no turn before"):
        written(turn(ToolResult(call_id="c", parts=())))


def read_lines(data: bytes, size: int = 10**9) -> tuple[list[Any], Observed]:
    reader = OllamaReader()
    events: list[Any] = []
    for at in range(0, len(data), size):
        events += reader.feed(data[at : at + size])
    return [*events, *reader.end()], reader.observed


LINES = (
    b'{"created_at":"2026-11-24T10:00:00.123456789Z","message":{"content":"Hi"},'
    b'"logprobs":[{"token":"Hi","logprob":-1,"top_logprobs":[{"token":"Ho"}]}]}\n\n'
    b'{"message":{"content":""},"done":true,"done_reason":"length","eval_count":2}'
)


@pytest.mark.parametrize("size", [1, 5, 10**9])
def test_lines_become_events(size: int) -> None:
    """However the stream was cut; a prompt without a count is unknown, and the last line needs no
    end.
    """
    events, seen = read_lines(LINES, size)
    usage = TokenUsage(output_tokens=2)
    assert [type(one) for one in events] == [Started, TextPiece, Finished, Used, Ended]
    assert events[0].created_s == 1795514400
    assert msgspec.json.decode(events[1].logprobs) == [
        {
            "token": "Hi",
            "logprob": -1,
            "bytes": [72, 105],
            "top_logprobs": [{"token": "Ho", "logprob": 0.0, "bytes": [72, 111]}],
        }
    ]
    assert events[2] == Finished(finish=Finish.LENGTH, native="length")
    assert events[3] == Used(usage=usage)
    assert (seen.final, seen.is_done, seen.texts) == (usage, True, ("Hi",))


def test_nothing_follows_an_end_or_an_error() -> None:
    """And an unreadable line leaves the size of the answer unknown."""
    error = b'{"error":"died"}\n{"message":{"content":"x"}}\n'
    assert read_lines(error)[0] == [Failed(code="upstream_error", message="died")]
    assert len(read_lines(LINES + b"\n" + LINES)[0]) == 5
    _, seen = read_lines(b"no json\n" + LINES)
    assert (seen.is_done, seen.has_all_text) == (True, False)
    _, page = read_lines(b"<html>")
    assert page.is_whole


def test_whole_answers() -> None:
    """With their usage, in which the count of a text that is there is unknown if it is left out; a
    text without JSON is none.
    """
    seen = Observed()
    events = ollama_events(b'{"message":{"content":"a"},"prompt_eval_count":3}', seen)
    assert isinstance(events[-1], Ended)
    assert seen.final == TokenUsage(input_tokens=3, output_tokens=None)
    with pytest.raises(UnreadableAnswer):
        ollama_events(b"<html>", Observed())
    assert usage_in(b'{"eval_count":4}') == TokenUsage(input_tokens=0, output_tokens=4)
    assert usage_in(b"[]") is None


def test_an_endless_line_is_refused() -> None:
    """It must not fill the memory, however small its parts are."""
    lines = LineSplitter()
    with pytest.raises(EventTooLarge):
        lines.feed(b"x" * (MAX_LINE_BYTES + 1))
    lines = LineSplitter()
    for _ in range(MAX_PARTS + 2):
        assert lines.feed(b"y") == []
    assert lines.end() == b"y" * (MAX_PARTS + 2)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=4),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    "message",
                    "content",
                    "thinking",
                    "tool_calls",
                    "function",
                    "name",
                    "arguments",
                    "done",
                    "done_reason",
                    "eval_count",
                    "error",
                    "logprobs",
                    "created_at",
                ]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=15,
)


@given(st.lists(VALUES, max_size=4), st.integers(1, 40))
def test_no_answer_breaks_the_reader(lines: list[Any], size: int) -> None:
    """Wrong types and missing members at every place."""
    data = b"".join(json.dumps(one).encode() + b"\n" for one in lines)
    events, seen = read_lines(data, size)
    kinds = [type(one) for one in events]
    assert Ended not in kinds[:-1]
    assert seen.is_done is (Ended in kinds)
    for one in lines:
        if isinstance(one, dict):
            with suppress(UnreadableAnswer):
                ollama_events(json.dumps(one).encode(), Observed())


def test_the_dialect_follows_the_address() -> None:
    """Without a path its own, for conversations; with one OpenAI's."""
    chat = factories.read(b'{"model":"assistant","messages":[],"max_tokens":5}', Operation.CHAT)
    sent = {}
    for base_url in ("http://h:11434", "http://h:11434/v1"):
        native = provider_facts_of("ollama", base_url).native
        one = factories.deployment(
            provider="ollama", base_url=base_url, native=native, context_window=4096
        )
        adapter = Ollama()
        translation = adapter.translate(one, chat)
        request = factories.request(chat)
        call = at_once(adapter.call(one, request, output_cap_tokens=3, translation=translation))
        sent[call.url] = msgspec.json.decode(call.body)
    assert sent["http://h:11434/api/chat"]["options"] == {"num_predict": 3, "num_ctx": 4096}
    assert sent["http://h:11434/v1/chat/completions"]["max_tokens"] == 3
    asked = factories.read(b'{"model":"assistant","messages":[],"max_tokens":7}', Operation.CHAT)
    own = factories.deployment(
        provider="ollama",
        base_url="http://h:11434",
        native=provider_facts_of("ollama", "http://h:11434").native,
    )
    call = at_once(
        Ollama().call(own, factories.request(asked), translation=Ollama().translate(own, asked))
    )
    options = msgspec.json.decode(call.body)["options"]
    assert options == {"num_predict": 7}, "the caller's own maximum stays"
    completion = factories.read(b'{"model":"assistant","prompt":"a"}', Operation.COMPLETIONS)
    root = factories.deployment(
        provider="ollama",
        base_url="http://h:11434",
        native=provider_facts_of("ollama", "http://h:11434").native,
    )
    assert Ollama().translate(root, completion) is None
    plain = at_once(Ollama().call(root, factories.request(completion)))
    assert plain.url == "http://h:11434/v1/completions"
