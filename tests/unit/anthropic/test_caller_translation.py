"""A messages request as a conversation, and answer events as a message and its named events."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest

from gateway.domain.pricing.tokens import TokenUsage
from gateway.domain.request.token_estimate import BYTES_PER_TOKEN
from gateway.errors import InvalidRequest
from gateway.wire.anthropic.request.read import read_request
from gateway.wire.anthropic.translation.caller_request import read_messages_request
from gateway.wire.anthropic.translation.caller_writer import MessagesWriter
from gateway.wire.dialect import written
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
from gateway.wire.translation.conversation import (
    Conversation,
    Media,
    Reasoning,
    Role,
    TextPart,
    Thought,
    ToolCall,
    ToolChoice,
    ToolMode,
    ToolResult,
)

ASK: dict[str, Any] = {
    "model": "assistant",
    "max_tokens": 50,
    "messages": [{"role": "user", "content": "Hi"}],
}


def conversation(**members: Any) -> Conversation:
    return read_messages_request(read_request(json.dumps(ASK | members).encode()))


def turn(*blocks: object, role: str = "user") -> dict[str, Any]:
    return {"messages": [{"role": role, "content": list(blocks)}]}


def parts(*blocks: object) -> tuple[object, ...]:
    return conversation(**turn(*blocks)).turns[0].parts


def test_a_plain_request_has_nothing_that_could_be_lost() -> None:
    """What every client sends is carried by neutral values."""
    read = conversation(
        system="Be brief.",
        stream=True,
        temperature=0.5,
        top_p=0.9,
        top_k=3,
        stop_sequences=["END"],
        metadata={"user_id": "u"},
        service_tier="auto",
        speed="standard",
        diagnostics={"previous_message_id": None},
        context_management={"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
    )
    assert read.others == {}
    assert (read.is_stream, read.system, read.most_tokens, read.user) == (
        True,
        (TextPart(text="Be brief."),),
        50,
        "u",
    )
    sampling = read.sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k, sampling.stop) == (
        0.5,
        0.9,
        3,
        ("END",),
    )
    assert read.turns[0].parts == (TextPart(text="Hi"),)
    assert read.name_of("stop") == "stop_sequences"


def test_blocks_become_parts() -> None:
    """In their order, with their marks."""
    mark = {"type": "ephemeral"}
    text = parts({"type": "text", "text": "a", "cache_control": mark})[0]
    assert isinstance(text, TextPart)
    assert json.loads(bytes(text.cache_control)) == mark
    png = {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="}
    assert parts({"type": "image", "source": png}) == (
        Media(kind="image", media_type="image/png", data="iVBORw0KGgo="),
    )
    plain = {"type": "text", "media_type": "text/plain", "data": "hi"}
    assert parts({"type": "document", "source": plain, "title": "T"}) == (
        Media(kind="document", media_type="text/plain", data="aGk=", name="T"),
    )
    url = {"type": "url", "url": "https://x.example/a.png"}
    assert parts({"type": "image", "source": url}) == (Media(kind="image", url=url["url"]),)
    assert parts(
        {"type": "thinking", "thinking": "hm", "signature": "Eq="},
        {"type": "redacted_thinking", "data": "Em="},
    ) == (Thought(text="hm", signature="Eq="), Thought(sealed="Em="))
    assert parts({"type": "tool_use", "id": "t", "name": "look", "input": {"a": 1.50}}) == (
        ToolCall(call_id="t", name="look", arguments='{"a": 1.5}'),
    )
    assert parts(
        {"type": "tool_result", "tool_use_id": "t", "content": "ok", "is_error": True}
    ) == (ToolResult(call_id="t", parts=(TextPart(text="ok"),), is_error=True),)


@pytest.mark.parametrize(
    ("members", "field"),
    [
        (turn({"type": "search_result", "source": "x", "title": "t"}), "messages[0].content[0]"),
        (
            turn({"type": "image", "source": {"type": "file", "file_id": "f"}}),
            "messages[0].content[0]",
        ),
        (
            turn({"type": "text", "text": "x", "citations": [{"type": "y"}]}),
            "messages[0].content[0].citations",
        ),
        ({"tools": [{"type": "web_search_20250305", "name": "w"}]}, "tools[0]"),
        ({"tools": [{"name": "w", "input_examples": [{}]}]}, "tools[0].input_examples"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"mcp_servers": [{"url": "x"}]}, "mcp_servers"),
        ({"container": "c"}, "container"),
        ({"speed": "fast"}, "speed"),
        ({"brand_new": 1}, "brand_new"),
        ({"system": [{"type": "image"}]}, "system[0]"),
        (
            {"context_management": {"edits": [{"type": "clear_tool_uses_20250919"}]}},
            "context_management.edits[0]",
        ),
        ({"metadata": {"other": 1}}, "metadata.other"),
        ({"diagnostics": {"previous_message_id": "m"}}, "diagnostics.previous_message_id"),
    ],
)
def test_what_no_value_carries_is_named(members: dict[str, Any], field: str) -> None:
    """A translation refuses or drops it by this name."""
    assert list(conversation(**members).others) == [field]


@pytest.mark.parametrize(
    ("members", "reasoning"),
    [
        ({}, None),
        (
            {"thinking": {"type": "enabled", "budget_tokens": 1024}},
            Reasoning(budget_tokens=1024, is_shown=True),
        ),
        ({"thinking": {"type": "disabled"}}, Reasoning(effort="none")),
        (
            {"thinking": {"type": "adaptive", "display": "omitted"}},
            Reasoning(is_adaptive=True, is_shown=False),
        ),
        ({"output_config": {"effort": "max"}}, Reasoning(effort="xhigh")),
        (
            {"output_config": {"effort": "low"}, "thinking": {"type": "adaptive"}},
            Reasoning(effort="low", is_adaptive=True, is_shown=True),
        ),
    ],
)
def test_thinking_and_effort_are_one_wish(
    members: dict[str, Any], reasoning: Reasoning | None
) -> None:
    """Anthropic has two members for it."""
    assert conversation(**members).reasoning == reasoning


def test_tools_and_their_choice() -> None:
    """With their schema as it was sent."""
    read = conversation(
        tools=[{"name": "look", "description": "d", "input_schema": {"type": "object"}}],
        tool_choice={"type": "tool", "name": "look", "disable_parallel_tool_use": True},
    )
    (tool,) = read.tools
    assert (tool.name, tool.description) == ("look", "d")
    assert json.loads(bytes(tool.parameters)) == {"type": "object"}
    assert read.tool_choice == ToolChoice(mode=ToolMode.NAMED, name="look")
    assert read.has_parallel_calls is False
    assert conversation(tool_choice={"type": "any"}).has_parallel_calls is None


@pytest.mark.parametrize(
    "members",
    [
        {"output_config": {"format": {"type": "json_schema", "schema": {"a": 1}}}},
        {"output_format": {"type": "json_schema", "schema": {"a": 1}}},
    ],
)
def test_structured_output(members: dict[str, Any]) -> None:
    """Under its new and its former name."""
    read = conversation(**members)
    assert read.output_format is not None
    assert json.loads(bytes(read.output_format.schema)) == {"a": 1}
    assert read.others == {}


def test_instructions_in_the_middle_stay_there() -> None:
    """Moved to the front they would change the cached prefix."""
    read = conversation(messages=[*ASK["messages"], {"role": "system", "content": "Now in verse."}])
    assert read.turns[1].is_instruction
    assert read.turns[1].role is Role.USER


def test_instructions_before_the_first_turn_are_the_systems() -> None:
    """As in the other dialects of callers, after the member `system`."""
    first = {"role": "system", "content": "Be brief."}
    read = conversation(system="You are Ada.", messages=[first, *ASK["messages"]])
    assert [part.text for part in read.system] == ["You are Ada.", "Be brief."]
    assert [turn.is_instruction for turn in read.turns] == [False]


@pytest.mark.parametrize(
    ("members", "param"),
    [
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].role"),
        ({"messages": 7}, "messages"),
        ({"tools": [{"description": "x"}]}, "tools[0].name"),
        ({"tool_choice": {"type": "all"}}, "tool_choice.type"),
        ({"thinking": {"type": "much"}}, "thinking.type"),
        ({"output_format": {"type": "xml"}}, "output_format.type"),
        (turn({"type": "tool_use", "name": "x", "input": []}), "messages[0].content[0].input"),
        (turn({"type": "tool_use", "input": {}}), "messages[0].content[0].name"),
        (turn({"type": "image"}), "messages[0].content[0].source"),
        (
            turn({"type": "tool_result", "content": [{"type": "thinking", "thinking": "x"}]}),
            "messages[0].content[0].content",
        ),
    ],
)
def test_a_request_without_meaning_is_refused_by_name(members: dict[str, Any], param: str) -> None:
    """Never an exception of ours."""
    with pytest.raises(InvalidRequest) as caught:
        conversation(**members)
    assert caught.value.param == param


PICTURE = turn({"type": "image", "source": {"type": "url", "url": "https://x.example/a.png"}})
USED = Used(
    usage=TokenUsage(
        input_tokens=1510,
        cached_input_tokens=1000,
        cache_write_tokens=500,
        cache_write_1h_tokens=300,
        output_tokens=12,
        reasoning_tokens=5,
        web_search_calls=2,
    ),
    service_tier="priority",
)
ANSWER: tuple[AnswerEvent, ...] = (
    Started(answer_id="c1", usage=TokenUsage(input_tokens=10)),
    ThoughtPiece(text="hm"),
    ThoughtPiece(signature="Eq="),
    ThoughtPiece(sealed="Em="),
    TextPiece(text="Hi "),
    TextPiece(text="you"),
    CallStarted(call=0, call_id="t1", name="look"),
    CallStarted(call=1, call_id="t2", name="find"),
    CallArguments(call=0, text='{"a":'),
    CallArguments(call=1, text="{}"),
    CallArguments(call=0, text="1}"),
    Finished(finish=Finish.TOOL_CALLS, native="tool_calls"),
    USED,
    Ended(),
)
DIRECT = {"caller": {"type": "direct"}}
CONTENT = [
    {"type": "thinking", "thinking": "hm", "signature": "Eq="},
    {"type": "redacted_thinking", "data": "Em="},
    {"type": "text", "text": "Hi you", "citations": None},
    {"type": "tool_use", "id": "t1", "name": "look", "input": {"a": 1}, **DIRECT},
    {"type": "tool_use", "id": "t2", "name": "find", "input": {}, **DIRECT},
]
USAGE = {
    "input_tokens": 10,
    "cache_creation_input_tokens": 500,
    "cache_read_input_tokens": 1000,
    "cache_creation": {"ephemeral_1h_input_tokens": 300, "ephemeral_5m_input_tokens": 200},
    "output_tokens": 12,
    "output_tokens_details": {"thinking_tokens": 5},
    "server_tool_use": {"web_fetch_requests": 0, "web_search_requests": 2},
    "inference_geo": None,
    "service_tier": "priority",
    "cost_usd": 0.5,
}


def writer() -> MessagesWriter:
    return MessagesWriter(read_request(json.dumps(ASK).encode()))


def streamed(*events: AnswerEvent) -> list[dict[str, Any]]:
    """Return the events that a caller gets, each checked to have its own name."""
    text = b"".join(written(part, lambda _: "0.5") for part in writer().write(events)).decode()
    found = []
    for one in text.split("\n\n")[:-1]:
        name, _, data = one.removeprefix("event: ").partition("\ndata: ")
        found.append(json.loads(data))
        assert found[-1]["type"] == name
    return found


def whole(*events: AnswerEvent) -> dict[str, Any]:
    answer: dict[str, Any] = json.loads(written(writer().whole(events), lambda _: "0.5"))
    return answer


def whole_of_stream(*events: AnswerEvent) -> dict[str, Any]:
    """The plain answer, with the usage that the end of a stream has."""
    answer = whole(*events)
    for name in ("cache_creation", "inference_geo", "service_tier"):
        if answer["usage"][name] is None:
            del answer["usage"][name]
    return answer


def assembled(events: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Put a stream together as clients do: by the index of its blocks."""
    message: dict[str, Any] = events[0]["message"]
    blocks: list[dict[str, Any]] = []
    ended: set[int] = set()
    for event in events[1:]:
        kind = event["type"]
        if kind == "content_block_start":
            assert event["index"] == len(blocks)
            blocks.append({**event["content_block"], "json": ""})
        elif kind == "content_block_delta":
            assert event["index"] not in ended
            delta, block = event["delta"], blocks[event["index"]]
            for name in ("text", "thinking", "signature"):
                if name in delta:
                    block[name] += delta[name]
            block["json"] += delta.get("partial_json", "")
        elif kind == "content_block_stop":
            assert event["index"] not in ended
            ended.add(event["index"])
        elif kind == "message_delta":
            message |= event["delta"] | {"usage": event["usage"]}
    assert ended == set(range(len(blocks)))
    for block in blocks:
        text = block.pop("json")
        if text:
            block["input"] = json.loads(text)
    return {**message, "content": blocks}


def test_a_whole_answer() -> None:
    """With its usage in all members, and its cost."""
    assert whole(*ANSWER) == {
        "id": "msg_c1",
        "type": "message",
        "role": "assistant",
        "model": "assistant",
        "content": CONTENT,
        "stop_reason": "tool_use",
        "stop_sequence": None,
        "stop_details": None,
        "container": None,
        "usage": USAGE,
    }


def test_a_stream_says_the_same_as_the_whole_answer() -> None:
    """Also if the arguments of two calls come in turns."""
    events = streamed(*ANSWER)
    first = events[0]["message"]["usage"]
    assert (first["input_tokens"], first["output_tokens"]) == (10, 0)
    assert "estimated" not in first
    assert events[-1] == {"type": "message_stop"}
    assert assembled(events) == whole_of_stream(*ANSWER)


# The members that the OpenAPI description of Anthropic requires (in llm-comply 0.5.0, 2026-11-29).
REQUIRED = {
    "Message": "id type role content model stop_reason stop_sequence stop_details usage container",
    "Usage": "cache_creation cache_creation_input_tokens cache_read_input_tokens inference_geo "
    "input_tokens output_tokens output_tokens_details server_tool_use service_tier",
    "MessageDelta": "container stop_details stop_reason stop_sequence",
    "MessageDeltaUsage": "cache_creation_input_tokens cache_read_input_tokens input_tokens "
    "output_tokens output_tokens_details server_tool_use",
    "text": "citations text type",
    "tool_use": "caller id input name type",
    "thinking": "signature thinking type",
    "redacted_thinking": "data type",
}


@pytest.mark.parametrize("used", [USED, Used(usage=TokenUsage(output_tokens=3)), None])
def test_an_answer_has_each_member_that_the_schema_requires(used: Used | None) -> None:
    """Strictly typed clients refuse an answer without one, also where null is allowed."""
    events = [one for one in ANSWER if not isinstance(one, Used)] + ([used] if used else [])
    stream = streamed(*events, Ended())
    delta = next(event for event in stream if event["type"] == "message_delta")
    found = [("MessageDelta", delta["delta"]), ("MessageDeltaUsage", delta["usage"])]
    for message in (whole(*events, Ended()), stream[0]["message"]):
        found += [("Message", message), ("Usage", message["usage"])]
        found += [(block["type"], block) for block in message["content"]]
    starts = [event["content_block"] for event in stream if "content_block" in event]
    found += [(block["type"], block) for block in starts]
    for name, members in found:
        assert set(REQUIRED[name].split()) <= set(members), name


def test_the_blocks_of_an_answer_are_read_back_whole() -> None:
    """A client sends them in its next request."""
    content = whole(*ANSWER)["content"]
    read = conversation(**turn(*content, role="assistant"))
    assert read.others == {}
    assert len(read.turns[0].parts) == len(content)


@pytest.mark.parametrize(
    ("started", "member", "expected"),
    [
        (Started(), {}, {"input_tokens": 23, "estimated": True}),
        (Started(usage=TokenUsage(output_tokens=7)), {}, {"input_tokens": 23, "estimated": True}),
        (Started(usage=TokenUsage(input_tokens=9, output_tokens=7)), {}, {"input_tokens": 9}),
        (Started(), PICTURE, {"input_tokens": None}),
    ],
)
def test_the_start_of_a_stream_has_the_prompts_count(
    started: Started, member: dict[str, Any], expected: dict[str, Any]
) -> None:
    """The upstream's, else the gateway's own, marked; that of a picture is unknown. It was 0."""
    read = read_request(json.dumps(ASK | member).encode())
    (event,) = MessagesWriter(read).write([started])
    usage = json.loads(written(event, lambda _: None).split(b"data: ")[1])["message"]["usage"]
    named = {name: usage[name] for name in ("input_tokens", "estimated") if name in usage}
    assert (named, usage["output_tokens"]) == (expected, 0)


@pytest.mark.parametrize(
    ("finished", "reason", "sequence"),
    [
        (Finished(finish=Finish.STOP, native="stop"), "end_turn", None),
        (Finished(finish=Finish.LENGTH, native="length"), "max_tokens", None),
        (Finished(finish=Finish.CONTENT_FILTER, native="SAFETY"), "refusal", None),
        (Finished(finish=Finish.STOP, native="pause_turn"), "pause_turn", None),
        (
            Finished(finish=Finish.LENGTH, native="model_context_window_exceeded"),
            "model_context_window_exceeded",
            None,
        ),
        (Finished(finish=Finish.STOP, native="stop", stop_sequence="X"), "stop_sequence", "X"),
    ],
)
def test_finish_reasons(finished: Finished, reason: str, sequence: str | None) -> None:
    """In Anthropic's words, its own first."""
    answer = whole(Started(), TextPiece(text="x"), finished, Ended())
    assert (answer["stop_reason"], answer["stop_sequence"]) == (reason, sequence)


def test_an_answer_without_usage_has_no_cost() -> None:
    """The schema has two of its members as numbers: the gateway's own count, marked as one."""
    events = (Started(), RefusalPiece(text="No. No."), Ended())
    usage = whole(*events)["usage"]
    prompt = -(-len(json.dumps(ASK)) // BYTES_PER_TOKEN)
    own = {"input_tokens": prompt, "output_tokens": 2, "estimated": True}
    assert usage == dict.fromkeys(REQUIRED["Usage"].split()) | own
    assert assembled(streamed(*events)) == whole_of_stream(*events)
    assert whole(*events)["stop_reason"] is None


@pytest.mark.parametrize(
    ("content", "finish"),
    [
        (ThoughtPiece(sealed="b3BhcXVl"), Finish.STOP),
        (Picture(media_type="image/png", data="iVBORw=="), Finish.STOP),
        (Omitted(name="audio"), Finish.STOP),
        (TextPiece(text="a"), Finish.LENGTH),
    ],
)
def test_an_answer_with_more_than_its_text_is_not_estimated(
    content: AnswerEvent, finish: Finish
) -> None:
    """Nor is one that met its maximum: thoughts may be hidden. The ledger does not count it too."""
    events = (Started(), content, Finished(finish=finish), Ended())
    assert whole(*events)["usage"]["output_tokens"] is None
    assert streamed(*events)[-2]["usage"]["output_tokens"] is None


def test_content_without_a_form_is_named_once() -> None:
    """A message has no block for a picture of the model, and nothing is lost in silence."""
    picture = Picture(media_type="image/png", data="iVBORw==")
    names = [
        Omitted(name="audio" * 99),
        picture,
        picture,
        *(Omitted(name=str(n)) for n in range(99)),
    ]
    events = (Started(), TextPiece(text="a"), *names, TextPiece(text="b"), Ended())
    found = whole(*events)
    assert found["content"] == [{"type": "text", "text": "ab", "citations": None}]
    assert found["omitted"][:2] == [("audio" * 99)[:64], "image/png"]
    assert len(found["omitted"]) == 16
    assert streamed(*events)[-2]["delta"]["omitted"] == found["omitted"]


def test_the_signature_of_a_thought_ends_its_block() -> None:
    """It proves the text before it alone; with two thoughts in one block Anthropic refuses both."""
    events = (
        Started(),
        ThoughtPiece(text="a"),
        ThoughtPiece(signature="Eq="),
        ThoughtPiece(text="b"),
        Ended(),
    )
    thoughts = [("a", "Eq="), ("b", "")]
    found = whole(*events)["content"]
    assert [(one["thinking"], one["signature"]) for one in found] == thoughts
    assert assembled(streamed(*events))["content"] == found


def test_arguments_that_are_no_object_stay_readable() -> None:
    """A maximum cuts them."""
    cut = (Started(), CallStarted(call=0, call_id="t", name="x"), CallArguments(call=0, text='{"a'))
    assert whole(*cut)["content"][0]["input"] == {"INVALID_JSON": '{"a'}


def test_a_failure() -> None:
    """In the stream an error event, else an error body."""
    failed = Failed(code="overloaded", message="Full.")
    assert streamed(Started(), failed)[-1]["error"]["type"] == "overloaded_error"
    assert whole(failed)["error"]["message"] == "Full."


def test_other_choices_and_empty_pieces_are_left_out() -> None:
    """A message has one choice."""
    pieces = (
        Started(),
        TextPiece(text=""),
        TextPiece(text="b", choice=1),
        CallArguments(call=7, text="x"),
        ThoughtPiece(),
        Ended(),
    )
    assert whole(*pieces)["content"] == []
    assert assembled(streamed(*pieces))["content"] == []


def test_a_call_without_arguments_has_an_empty_input() -> None:
    """The dialect requires an object there."""
    call = CallStarted(call=0, call_id="t", name="now")
    called = (Started(), call, CallArguments(call=0, text=""), Ended())
    assert whole(*called)["content"][0]["input"] == {}
    assert assembled(streamed(*called))["content"] == whole(*called)["content"]


def test_a_part_of_the_system_that_is_no_text_is_named() -> None:
    """The dialect of the upstream decides if it may be left out."""
    picture = {"type": "image", "source": {"type": "url", "url": "https://a.example/b"}}
    read = conversation(system=[{"type": "text", "text": "Be brief."}, picture])
    assert read.system == (TextPart(text="Be brief."),)
    assert list(read.others) == ["system[1]"]
