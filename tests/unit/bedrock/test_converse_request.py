"""A chat as a request of Converse: every member of it, and every field without a place."""

from __future__ import annotations

import json
from itertools import product
from typing import Any

import msgspec
import pytest

from gateway.errors import InvalidRequest, Untranslatable
from gateway.wire.bedrock.request import with_maximum, write_converse_request
from gateway.wire.openai.chat_translation.request_reader import read_chat_request
from gateway.wire.translation.conversation import (
    Conversation,
    ConversationTurn,
    Media,
    OutputFormat,
    Reasoning,
    Role,
    TextPart,
    Thought,
    ToolCall,
    ToolResult,
    ToolSpec,
)
from gateway.wire.translation.losses import Losses
from tests import factories

CLAUDE, OLD_CLAUDE = "eu.anthropic.claude-opus-4-6-v1", "anthropic.claude-sonnet-4-5-20250929-v1:0"
NOVA = "amazon.nova-pro-v1:0"
SCHEMA = {"type": "object", "properties": {}}
TOOL = {
    "type": "function",
    "function": {"name": "weather", "description": "W", "parameters": SCHEMA},
}
SPEC = {"toolSpec": {"name": "weather", "description": "W", "inputSchema": {"json": SCHEMA}}}
CALL = {"id": "call/1", "type": "function", "function": {"name": "weather", "arguments": "{}"}}
CALLED = {"role": "assistant", "content": "", "tool_calls": [CALL]}
ANSWERED = {"role": "tool", "tool_call_id": "call/1", "content": "sun"}
HI = {"role": "user", "content": [{"text": "Hi"}]}
HI_CHAT = {"role": "user", "content": "Hi"}
EPHEMERAL = msgspec.Raw(b'{"type":"ephemeral"}')
HOUR = msgspec.Raw(b'{"type":"ephemeral","ttl":"1h"}')


def of(conversation: Conversation, *, model: str = NOVA, losses: Losses | None = None) -> Any:
    """Return the request of a conversation."""
    losses = losses or Losses("one (AWS Bedrock, Converse)", drops=False)
    made = write_converse_request(conversation, losses, model=model)
    return json.loads(msgspec.json.encode(made))


def written(chat: dict[str, Any], *, model: str = NOVA, drops: bool = False) -> Any:
    """Return the Converse request of a chat, and the names of the dropped fields if they are."""
    body = {"model": "assistant", "messages": [{"role": "user", "content": "Hi"}], **chat}
    losses = Losses("one (AWS Bedrock, Converse)", drops=drops)
    made = of(
        read_chat_request(factories.read(json.dumps(body).encode())), model=model, losses=losses
    )
    return (made, losses.fields) if drops else made


def test_a_chat_becomes_a_converse_request() -> None:
    """System, turns, sampling, stops, tier, tools."""
    chat = {
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "Hi"},
            CALLED,
            ANSWERED,
        ],
        "temperature": 0.2,
        "top_p": 0.9,
        "stop": ["END"],
        "service_tier": "priority",
        "tools": [TOOL],
        "tool_choice": "required",
    }
    body = written(chat)
    use = body["messages"][1]["content"][0]["toolUse"]
    assert body == {
        "system": [{"text": "Be brief."}],
        "messages": [
            HI,
            {"role": "assistant", "content": [{"toolUse": use}]},
            {
                "role": "user",
                "content": [
                    {"toolResult": {"toolUseId": use["toolUseId"], "content": [{"text": "sun"}]}}
                ],
            },
        ],
        "toolConfig": {"tools": [SPEC], "toolChoice": {"any": {}}},
        "inferenceConfig": {"temperature": 0.2, "topP": 0.9, "stopSequences": ["END"]},
        "serviceTier": {"type": "priority"},
    }
    assert use["toolUseId"].startswith("call_1_")


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        (None, {"tools": [SPEC]}),
        ("auto", {"tools": [SPEC], "toolChoice": {"auto": {}}}),
        (
            {"type": "function", "function": {"name": "weather"}},
            {"tools": [SPEC], "toolChoice": {"tool": {"name": "weather"}}},
        ),
        ("none", None),
    ],
)
def test_the_choice_of_tools(choice: Any, expected: Any) -> None:
    """Converse has no `none`: the tools are left out."""
    chat = {"tools": [TOOL]} | ({} if choice is None else {"tool_choice": choice})
    assert written(chat).get("toolConfig") == expected


def test_media_by_their_bytes() -> None:
    """Pictures, documents and sounds; a document gets a name that Converse takes."""
    parts = (
        Media(kind="image", media_type="image/jpeg", data="AAAA"),
        Media(kind="document", media_type="text/csv", data="BBBB", name="my_figures.csv"),
        Media(kind="document", data="CCCC"),
        Media(kind="audio", media_type="audio/mpeg", data="DDDD"),
    )
    turn = ConversationTurn(role=Role.USER, parts=parts)
    body = of(Conversation(is_stream=False, turns=(turn,)))
    assert body["messages"][0]["content"] == [
        {"image": {"format": "jpeg", "source": {"bytes": "AAAA"}}},
        {"document": {"format": "csv", "source": {"bytes": "BBBB"}, "name": "my-figures-csv"}},
        {"document": {"format": "pdf", "source": {"bytes": "CCCC"}, "name": "document"}},
        {"audio": {"format": "mp3", "source": {"bytes": "DDDD"}}},
        {"text": "."},
    ]


def test_reasoning_and_cache_points() -> None:
    """Signed reasoning comes back as it was; a mark of a cached prefix is a point after it."""
    turns = (
        ConversationTurn(role=Role.USER, parts=(TextPart(text="Hi", cache_control=HOUR),)),
        ConversationTurn(
            role=Role.ASSISTANT,
            parts=(
                Thought(text="Hm", signature="sig"),
                Thought(sealed="c2VhbGVk"),
                Thought(text="unsigned"),
            ),
        ),
    )
    tool = ToolSpec(name="weather", cache_control=EPHEMERAL)
    body = of(
        Conversation(
            is_stream=False,
            system=(TextPart(text="S", cache_control=EPHEMERAL),),
            turns=turns,
            tools=(tool,),
        )
    )
    point = {"cachePoint": {"type": "default"}}
    assert body["system"] == [{"text": "S"}, point]
    assert body["messages"][0]["content"][1] == {"cachePoint": {"type": "default", "ttl": "1h"}}
    assert body["messages"][1]["content"] == [
        {"reasoningContent": {"reasoningText": {"text": "Hm", "signature": "sig"}}},
        {"reasoningContent": {"redactedContent": "c2VhbGVk"}},
    ]
    assert body["toolConfig"]["tools"] == [
        {"toolSpec": {"name": "weather", "inputSchema": {"json": SCHEMA}}},
        point,
    ]


@pytest.mark.parametrize(
    ("model", "effort", "expected"),
    [
        (NOVA, "minimal", {"outputConfig": {"effort": "low"}}),
        (
            CLAUDE,
            "high",
            {
                "outputConfig": {"effort": "high"},
                "additionalModelRequestFields": {
                    "thinking": {"type": "adaptive", "display": "summarized"}
                },
            },
        ),
        (
            OLD_CLAUDE,
            "medium",
            {
                "additionalModelRequestFields": {
                    "thinking": {"type": "enabled", "budget_tokens": 5000}
                }
            },
        ),
        (CLAUDE, "none", {"additionalModelRequestFields": {"thinking": {"type": "disabled"}}}),
    ],
)
def test_reasoning_by_model(model: str, effort: str, expected: dict[str, Any]) -> None:
    """Every model takes an effort; Claude's thinking is a member of its own dialect."""
    body = written({"reasoning_effort": effort, "max_tokens": 10_000}, model=model)
    assert body == {"messages": [HI], **expected}


def test_a_form_of_the_answer() -> None:
    """The schema is a text there."""
    form = {"name": "n", "description": "d", "schema": {"type": "object"}}
    body = written({"response_format": {"type": "json_schema", "json_schema": form}})
    structure = body["outputConfig"]["textFormat"]["structure"]["jsonSchema"]
    closed = {"type": "object", "properties": {}, "additionalProperties": False}
    assert json.loads(structure.pop("schema")) == closed
    assert structure == {"name": "n", "description": "d"}


def test_the_maximum_stays_above_the_budget() -> None:
    """A smaller maximum of a route leaves half of it to the answer; below the least it ends the
    thinking.
    """
    own = "additionalModelRequestFields"
    body = {own: {"thinking": {"type": "enabled", "budget_tokens": 8000}}}
    assert with_maximum(body, None) is body
    assert with_maximum({}, 5) == {"inferenceConfig": {"maxTokens": 5}}
    assert with_maximum(body, 9000)[own] == body[own]
    assert with_maximum(body, 2000)[own]["thinking"]["budget_tokens"] == 1024
    assert with_maximum(body, 8000)[own]["thinking"]["budget_tokens"] == 4000
    assert with_maximum(body, 1025)[own]["thinking"]["budget_tokens"] == 1024
    assert with_maximum(body, 1024)[own]["thinking"] == {"type": "disabled"}


@pytest.mark.parametrize(
    ("chat", "field"),
    [
        ({"n": 2}, "n"),
        ({"seed": 1}, "seed"),
        ({"presence_penalty": 1}, "presence_penalty"),
        ({"logprobs": True}, "logprobs"),
        ({"user": "u-1"}, "user"),
        ({"parallel_tool_calls": False}, "parallel_tool_calls"),
        ({"service_tier": "scale"}, "service_tier"),
        ({"temperature": 1.5}, "temperature"),
        ({"top_k": 5}, "top_k"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"reasoning_effort": "none"}, "reasoning_effort"),
        ({"stop": ["x"] * 2501}, "stop"),
        ({"some_new_member": 1}, "some_new_member"),
    ],
)
def test_a_field_without_a_place(chat: dict[str, Any], field: str) -> None:
    """It is refused by its name, or dropped and named; the rest is sent."""
    with pytest.raises(Untranslatable) as refused:
        written(chat)
    assert refused.value.param == field
    body, dropped = written(chat, drops=True)
    assert (body, dropped) == ({"messages": [HI]}, [field])


def test_claude_takes_no_stop_of_blanks_alone() -> None:
    """As at Anthropic; Nova takes a line's end, and no model an empty one."""
    chat = {"stop": ["", "\n", "END"]}
    with pytest.raises(Untranslatable) as refused:
        written(chat, model=OLD_CLAUDE)
    assert refused.value.param == "stop"
    body, dropped = written(chat, model=OLD_CLAUDE, drops=True)
    assert (body["inferenceConfig"], dropped) == ({"stopSequences": ["END"]}, ["stop"])
    assert written(chat)["inferenceConfig"] == {"stopSequences": ["\n", "END"]}


def test_claude_takes_top_k_as_its_own_member() -> None:
    """Converse has no member for it."""
    body = written({"top_k": 5}, model=OLD_CLAUDE)
    assert body["additionalModelRequestFields"] == {"top_k": 5}


def test_no_tools_after_calls_are_refused() -> None:
    """Converse refuses earlier calls without tools, and it cannot forbid new ones."""
    chat = {"messages": [CALLED, ANSWERED], "tools": [TOOL], "tool_choice": "none"}
    with pytest.raises(Untranslatable, match="tool_choice"):
        written(chat)


@pytest.mark.parametrize("tools", [{}, {"tools": []}], ids=["absent", "empty"])
def test_calls_of_a_history_without_tools_are_declared(tools: dict[str, Any]) -> None:
    """A compaction sends the history alone, and Converse always refuses calls without their
    tools.
    """
    ended = {"role": "user", "content": "Sum up."}
    body = written({"messages": [HI_CHAT, CALLED, ANSWERED, ended], **tools})
    schema = {"json": {"type": "object", "properties": {}}}
    assert body["toolConfig"] == {
        "tools": [{"toolSpec": {"name": "weather", "inputSchema": schema}}]
    }


@pytest.mark.parametrize(
    ("schema", "sent"),
    [
        (None, {"type": "object", "properties": {}}),
        ({}, {"type": "object"}),
        ({"properties": {"a": {}}}, {"type": "object", "properties": {"a": {}}}),
        ({"$ref": "#/$defs/a"}, {"type": "object", "$ref": "#/$defs/a"}),
    ],
)
def test_a_schema_without_a_type_is_that_of_an_object(schema: Any, sent: Any) -> None:
    """OpenAI's dialect takes it, and Converse refuses it."""
    function = {"name": "weather"} | ({} if schema is None else {"parameters": schema})
    body = written({"tools": [{"type": "function", "function": function}]})
    assert body["toolConfig"]["tools"][0]["toolSpec"]["inputSchema"] == {"json": sent}


@pytest.mark.parametrize(
    "schema", [{"type": "string"}, {"type": None}, {"type": ["object", "null"]}, True, "{}"]
)
def test_a_schema_of_another_type_is_refused_by_its_name(schema: Any) -> None:
    """It cannot be sent, and the caller learns which member it is."""
    function = {"name": "weather", "parameters": schema}
    with pytest.raises(Untranslatable, match="parameters"):
        written({"tools": [{"type": "function", "function": function}]})


def test_a_schema_of_another_type_may_be_dropped() -> None:
    """Then the tool takes any arguments, and the caller learns the member."""
    function = {"name": "weather", "parameters": {"type": "string"}}
    body, lost = written({"tools": [{"type": "function", "function": function}]}, drops=True)
    schema = body["toolConfig"]["tools"][0]["toolSpec"]["inputSchema"]
    assert (schema, lost) == ({"json": {"type": "object", "properties": {}}}, ["parameters"])


def test_one_tool_twice_is_sent_once_and_two_of_one_name_are_refused() -> None:
    """Converse refuses one name twice."""
    assert written({"tools": [TOOL, TOOL]})["toolConfig"]["tools"] == [SPEC]
    other = {"type": "function", "function": {"name": "weather"}}
    with pytest.raises(Untranslatable, match="weather"):
        written({"tools": [TOOL, other]})


@pytest.mark.parametrize("name", ["a.b", "x" * 65, "wetter für"])
def test_a_name_that_converse_refuses_is_refused_before(name: str) -> None:
    """In the tools and in the calls of a history."""
    with pytest.raises(Untranslatable, match="name"):
        written({"tools": [{"type": "function", "function": {"name": name}}]})
    call = {"id": "a", "type": "function", "function": {"name": name, "arguments": "{}"}}
    answer = {"role": "tool", "tool_call_id": "a", "content": ""}
    with pytest.raises(Untranslatable, match="name"):
        written({"messages": [HI_CHAT, {"role": "assistant", "tool_calls": [call]}, answer]})


def test_one_id_twice_becomes_two_in_their_order() -> None:
    """Some servers count calls in each turn from 0, or give no id; Converse refuses one twice."""

    def turn(*results: str) -> list[dict[str, Any]]:
        calls = [{**CALL, "id": "ls:0"} for _ in results]
        answers = [{"role": "tool", "tool_call_id": "ls:0", "content": one} for one in results]
        return [{"role": "assistant", "tool_calls": calls}, *answers]

    body = written({"messages": [HI_CHAT, *turn("one", "two"), *turn("three")]})
    blocks = [block for message in body["messages"] for block in message["content"]]
    uses = [block["toolUse"]["toolUseId"] for block in blocks if "toolUse" in block]
    results = [block["toolResult"] for block in blocks if "toolResult" in block]
    assert uses == ["ls:0", "ls:0_2", "ls:0_3"]
    assert [(one["toolUseId"], one["content"]) for one in results] == [
        ("ls:0", [{"text": "one"}]),
        ("ls:0_2", [{"text": "two"}]),
        ("ls:0_3", [{"text": "three"}]),
    ]


@pytest.mark.parametrize(
    "messages",
    [
        [CALLED],
        [CALLED, {"role": "user", "content": "Never mind."}],
        [ANSWERED],
        [CALLED, ANSWERED, ANSWERED],
    ],
    ids=["at the end", "passed over", "without a call", "twice"],
)
def test_calls_and_results_that_do_not_belong_together_are_refused(messages: Any) -> None:
    """Converse refuses them, and does not show which call it means."""
    with pytest.raises(Untranslatable) as refused:
        written({"messages": [HI_CHAT, *messages], "tools": [TOOL]})
    assert refused.value.param == "tool_call_id"


def test_a_conversation_starts_with_the_user_and_has_no_blank_text() -> None:
    """Converse refuses any other one. The system's text alone is the user's."""
    system, said = {"role": "system", "content": "Be brief."}, {"role": "assistant", "content": "A"}
    assert written({"messages": [system]}) == {
        "messages": [{"role": "user", "content": [{"text": "Be brief."}]}]
    }
    filled = {"role": "user", "content": [{"text": "."}]}
    answered = {"role": "assistant", "content": [{"text": "A"}]}
    blank = {"role": "user", "content": " \n"}
    for messages in ([said], [blank, said], [{**said, "content": "A \n"}]):
        assert written({"messages": [system, *messages]}) == {
            "system": [{"text": "Be brief."}],
            "messages": [filled, answered],
        }
    assert written({"messages": [blank]})["messages"] == [filled]


def test_a_result_without_content_has_a_text() -> None:
    """Some models refuse an empty list and a blank text, and all refuse them in an error."""
    call = ToolCall(call_id="a", name="ls", arguments="{}")
    for is_error, blank in product((False, True), ("", "\n", "\u00a0")):
        result = ToolResult(call_id="a", parts=(TextPart(text=blank),), is_error=is_error)
        turns = (
            ConversationTurn(role=Role.USER, parts=(TextPart(text="Hi"),)),
            ConversationTurn(role=Role.ASSISTANT, parts=(call,)),
            ConversationTurn(role=Role.USER, parts=(TextPart(text="B"), result)),
        )
        content = of(Conversation(is_stream=False, turns=turns))["messages"][2]["content"]
        assert content[0]["toolResult"]["content"] == [{"text": "."}]
        assert content[1] == {"text": "B"}, "results come first"


def test_two_documents_get_two_names() -> None:
    """Converse refuses one name twice in a request, in whichever case its letters are."""
    pdf = Media(kind="document", data="CCCC", name="A")
    turn = ConversationTurn(
        role=Role.USER,
        parts=(pdf, msgspec.structs.replace(pdf, name="a"), TextPart(text="Compare.")),
    )
    content = of(Conversation(is_stream=False, turns=(turn,)))["messages"][0]["content"]
    assert [block["document"]["name"] for block in content[:2]] == ["A", "a-2"]


def test_a_sound_in_a_result_is_refused() -> None:
    """Converse has no place for it there."""
    sound = Media(kind="audio", media_type="audio/wav", data="DDDD")
    turns = (
        ConversationTurn(
            role=Role.ASSISTANT, parts=(ToolCall(call_id="a", name="ls", arguments=""),)
        ),
        ConversationTurn(role=Role.USER, parts=(ToolResult(call_id="a", parts=(sound,)),)),
    )
    with pytest.raises(Untranslatable, match="audio"):
        of(Conversation(is_stream=False, turns=turns))


def test_a_picture_by_its_address_is_refused() -> None:
    """Converse fetches nothing."""
    part = {"type": "image_url", "image_url": {"url": "https://example.com/a.png"}}
    with pytest.raises(Untranslatable, match="only its bytes"):
        written({"messages": [{"role": "user", "content": [part]}]})


def test_arguments_that_are_no_object_are_refused() -> None:
    """Converse has an object there, and a broken text has no meaning in it."""
    call = {**CALL, "function": {"name": "weather", "arguments": "[1"}}
    with pytest.raises(InvalidRequest, match="arguments"):
        written({"messages": [{**CALLED, "tool_calls": [call]}, ANSWERED], "tools": [TOOL]})


def test_turns_and_results_that_converse_takes_in_another_form() -> None:
    """Neighbours of one role become one message, an empty turn none; a failed result says so."""
    turns = (
        ConversationTurn(role=Role.USER, parts=(TextPart(text="One"),)),
        ConversationTurn(role=Role.USER, parts=(TextPart(text=""),)),
        ConversationTurn(role=Role.USER, parts=(TextPart(text="Two"),)),
        ConversationTurn(
            role=Role.ASSISTANT, parts=(ToolCall(call_id="call-1", name="f", arguments=""),)
        ),
        ConversationTurn(
            role=Role.USER,
            parts=(ToolResult(call_id="call-1", parts=(TextPart(text="no"),), is_error=True),),
        ),
    )
    body = of(Conversation(is_stream=False, turns=turns))
    assert body["messages"] == [
        {"role": "user", "content": [{"text": "One"}, {"text": "Two"}]},
        {
            "role": "assistant",
            "content": [{"toolUse": {"toolUseId": "call-1", "name": "f", "input": {}}}],
        },
        {
            "role": "user",
            "content": [
                {
                    "toolResult": {
                        "toolUseId": "call-1",
                        "content": [{"text": "no"}],
                        "status": "error",
                    }
                }
            ],
        },
    ]


def test_a_speaker_and_a_detail_have_no_place() -> None:
    """Each is named; the picture is sent."""
    picture = Media(kind="image", media_type="image/png", data="AAAA", detail="high")
    tiff = Media(kind="image", media_type="image/tiff", data="AAAA")
    turn = ConversationTurn(role=Role.USER, parts=(picture, tiff), name="ada")
    losses = Losses("one", drops=True)
    body = of(Conversation(is_stream=False, turns=(turn,)), losses=losses)
    assert losses.fields == ["name", "detail", "image"]
    assert body["messages"][0]["content"] == [
        {"image": {"format": "png", "source": {"bytes": "AAAA"}}}
    ]


def test_a_strict_tool_stays_strict() -> None:
    """Without it the arguments may break the caller's schema."""
    strict = {"type": "function", "function": {**TOOL["function"], "strict": True}}
    spec = written({"tools": [strict]})["toolConfig"]["tools"][0]["toolSpec"]
    assert spec["strict"] is True


def test_a_form_of_the_answer_without_a_name() -> None:
    """Anthropic's callers give a schema alone."""
    wanted = OutputFormat(schema=msgspec.Raw(b'{"type":"string"}'))
    body = of(Conversation(is_stream=False, output_format=wanted))
    structure = body["outputConfig"]["textFormat"]["structure"]
    assert structure == {"jsonSchema": {"schema": '{"type":"string"}'}}


@pytest.mark.parametrize("model", [NOVA, CLAUDE])
def test_a_wish_to_see_reasoning_alone_starts_none(model: str) -> None:
    """Reasoning is paid for, so a model thinks only if the caller asks for it."""
    body = of(Conversation(is_stream=False, reasoning=Reasoning(is_shown=True)), model=model)
    assert body == {"messages": [{"role": "user", "content": [{"text": "."}]}]}


def test_reasoning_gives_way_to_a_forced_call_and_ends_sampling() -> None:
    """Claude refuses both together."""
    chat = {"reasoning_effort": "high", "max_tokens": 10_000, "top_p": 0.5}
    body, dropped = written(chat, model=OLD_CLAUDE, drops=True)
    assert (dropped, "inferenceConfig" in body) == (["top_p"], False)
    forced = {**chat, "tools": [TOOL], "tool_choice": "required"}
    body, dropped = written(forced, model=OLD_CLAUDE, drops=True)
    assert dropped == ["reasoning_effort"]
    assert body["inferenceConfig"] == {"topP": 0.5}
    assert "additionalModelRequestFields" not in body
