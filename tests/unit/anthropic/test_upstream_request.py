"""A chat as a request of Anthropic's messages: every member of it, and every field without a
place.
"""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from gateway.errors import InvalidRequest, Untranslatable
from gateway.wire.anthropic.translation.upstream_blocks import write_messages
from gateway.wire.anthropic.translation.upstream_request import with_maximum, write_messages_request
from gateway.wire.openai.chat_translation.request_reader import read_chat_request
from gateway.wire.translation.conversation import (
    Conversation,
    ConversationTurn,
    Media,
    Part,
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

NEW, OLD = "claude-sonnet-5", "claude-sonnet-4-5-20250929"
PIXEL = "iVBORw0KGgo="
TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
        "strict": True,
    },
}
CALLED = {
    "role": "assistant",
    "content": None,
    "tool_calls": [
        {
            "id": "call.1",
            "type": "function",
            "function": {"name": "weather", "arguments": '{"a":1}'},
        }
    ],
}
ANSWERED = {"role": "tool", "tool_call_id": "call.1", "content": "sun"}


def written(chat: dict[str, Any], *, model: str = NEW, drops: bool = False) -> Any:
    """Return the messages request of a chat, and the names of the dropped fields if they are."""
    body = {"model": "assistant", "messages": [{"role": "user", "content": "Hi"}], **chat}
    losses = Losses("one (Anthropic, messages)", drops=drops)
    conversation = read_chat_request(factories.read(json.dumps(body).encode()))
    made = write_messages_request(conversation, losses, model=model)
    decoded = json.loads(msgspec.json.encode(made))
    return (decoded, losses.fields) if drops else decoded


CLOSED: dict[str, Any] = {"properties": {}, "additionalProperties": False}  # as grammars need it


def test_a_chat_becomes_system_and_messages() -> None:
    """The first system message stands beside the turns, and a later one in its place: moved to the
    front it would change the whole cached prompt. Neighbours of one role become one message.
    """
    body = written(
        {
            "messages": [
                {"role": "system", "content": "Be brief."},
                {"role": "user", "content": "One"},
                {"role": "user", "content": "Two"},
                {"role": "assistant", "content": ""},
                {"role": "developer", "content": "In French."},
                {"role": "user", "content": [{"type": "text", "text": "Three"}]},
            ]
        }
    )
    assert body == {
        "system": [{"type": "text", "text": "Be brief."}],
        "messages": [
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": text} for text in ("One", "Two", "In French.", "Three")
                ],
            }
        ],
    }


def test_tool_calls_and_their_results() -> None:
    """Results come first in their message, and ids have the letters that the dialect allows."""
    body = written(
        {"messages": [CALLED, {"role": "user", "content": "And?"}, ANSWERED], "tools": [TOOL]}
    )
    _, call, answer = body["messages"]
    use = call["content"][0]
    assert use["input"] == {"a": 1}
    assert use["id"].startswith("call_1_")
    assert [block["type"] for block in answer["content"]] == ["tool_result", "text"]
    assert answer["content"][0]["tool_use_id"] == use["id"]
    assert body["tools"] == [
        {
            "name": "weather",
            "description": "The weather.",
            "input_schema": {**TOOL["function"]["parameters"], "additionalProperties": False},
            "strict": True,
        }
    ]


@pytest.mark.parametrize(
    ("chat", "expected"),
    [
        ({"tool_choice": "auto"}, {"type": "auto"}),
        ({"tool_choice": "none"}, {"type": "none"}),
        ({"tool_choice": "required"}, {"type": "any"}),
        (
            {"tool_choice": {"type": "function", "function": {"name": "weather"}}},
            {"type": "tool", "name": "weather"},
        ),
        ({"parallel_tool_calls": False}, {"type": "auto", "disable_parallel_tool_use": True}),
    ],
)
def test_the_choice_of_tools(chat: dict[str, Any], expected: dict[str, Any]) -> None:
    """Each of OpenAI's choices has one there."""
    assert written({"tools": [TOOL], **chat})["tool_choice"] == expected


def test_a_forced_call_is_refused_for_a_model_that_always_thinks() -> None:
    """Opus 5.5 answers it with 400; dropped by the policy's leave, the model chooses by itself."""
    chat = {"tools": [TOOL], "tool_choice": "required", "reasoning_effort": "high"}
    with pytest.raises(Untranslatable, match=r"tool_choice.*claude-opus-5-5 always thinks"):
        written(chat, model="claude-opus-5-5")
    sent, fields = written(chat, drops=True, model="claude-opus-5-5")
    assert fields == ["tool_choice"]
    assert (sent["tool_choice"], sent["thinking"]["type"]) == ({"type": "auto"}, "adaptive")
    before = written({"tools": [TOOL], "tool_choice": "required"}, model="claude-opus-5-1")
    assert before["tool_choice"] == {"type": "any"}


def test_a_picture_by_its_bytes_and_by_its_address() -> None:
    """A data URL is sent as bytes, any other address as it is."""
    parts = [
        {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PIXEL}"}},
        {"type": "image_url", "image_url": {"url": "https://example.com/a.png"}},
    ]
    content = written({"messages": [{"role": "user", "content": parts}]})["messages"][0]["content"]
    assert [block["source"] for block in content] == [
        {"type": "base64", "media_type": "image/png", "data": PIXEL},
        {"type": "url", "url": "https://example.com/a.png"},
    ]


def test_a_form_of_the_answer() -> None:
    """A schema goes as `output_config.format`, and not as a forced tool."""
    form = {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "object"}}}
    assert written({"response_format": form})["output_config"] == {
        "format": {"type": "json_schema", "schema": {"type": "object", **CLOSED}}
    }


@pytest.mark.parametrize(
    ("model", "effort", "thinking", "config"),
    [
        (NEW, "none", {"type": "disabled"}, None),
        (NEW, "minimal", {"type": "adaptive", "display": "summarized"}, {"effort": "low"}),
        (NEW, "high", {"type": "adaptive", "display": "summarized"}, {"effort": "high"}),
        (OLD, "high", {"type": "enabled", "budget_tokens": 8000}, None),
        (OLD, "low", {"type": "enabled", "budget_tokens": 2000}, None),
    ],
)
def test_reasoning(model: str, effort: str, thinking: Any, config: Any) -> None:
    """Newer models take an effort; older ones a budget, which is a share of the maximum."""
    body = written({"reasoning_effort": effort, "max_tokens": 10_000}, model=model)
    assert body["thinking"] == thinking
    assert body.get("output_config") == config


@pytest.mark.parametrize(("maximum", "budget"), [(8192, 4096), (None, 16_000)])
def test_an_effort_without_a_maximum_has_its_share_of_the_deployments(
    maximum: int | None, budget: int
) -> None:
    """Shares of a larger maximum than the one that is sent left one token for the answer."""
    conversation = Conversation(is_stream=False, reasoning=Reasoning(effort="medium"))
    losses = Losses("one (Anthropic, messages)", drops=False)
    body = write_messages_request(conversation, losses, model=OLD, most_tokens=maximum)
    assert body["thinking"] == {"type": "enabled", "budget_tokens": budget}


def test_the_maximum_stays_above_the_budget() -> None:
    """A smaller maximum of a route leaves half of it to the answer; below the least it ends the
    thinking.
    """
    body = {"thinking": {"type": "enabled", "budget_tokens": 8000}}
    assert with_maximum(body, 9000)["thinking"]["budget_tokens"] == 8000
    assert with_maximum(body, 8000)["thinking"]["budget_tokens"] == 4000
    assert with_maximum(body, 2000)["thinking"]["budget_tokens"] == 1024
    assert with_maximum(body, 1024)["thinking"] == {"type": "disabled"}
    assert with_maximum({}, 5) == {"max_tokens": 5}


def test_sampling_stop_and_user() -> None:
    """Defaults of both dialects are left out, so that a model without sampling takes them."""
    chat = {"temperature": 0.2, "top_p": 1, "stop": "END", "user": "u-1"}
    assert written(chat, model=OLD) == {
        "messages": [{"role": "user", "content": [{"type": "text", "text": "Hi"}]}],
        "temperature": 0.2,
        "stop_sequences": ["END"],
        "metadata": {"user_id": "u-1"},
    }
    assert "temperature" not in written({"temperature": 1}, model=NEW)


WITHOUT_PLACE = [
    ({"n": 2}, "n"),
    ({"seed": 1}, "seed"),
    ({"presence_penalty": 0.5}, "presence_penalty"),
    ({"frequency_penalty": -0.5}, "frequency_penalty"),
    ({"logit_bias": {"1": 2}}, "logit_bias"),
    ({"logprobs": True}, "logprobs"),
    ({"prompt_cache_key": "k"}, "prompt_cache_key"),
    ({"verbosity": "low"}, "verbosity"),
    ({"service_tier": "flex"}, "service_tier"),
    ({"temperature": 1.5}, "temperature"),
    ({"stop": ["\n"]}, "stop"),
    ({"response_format": {"type": "json_object"}}, "response_format"),
    ({"tool_choice": "required"}, "tool_choice"),
    ({"some_new_member": 1}, "some_new_member"),
    ({"reasoning_effort": "high", "max_tokens": 100}, "reasoning_effort"),
]


@pytest.mark.parametrize(("chat", "field"), WITHOUT_PLACE)
def test_a_field_without_a_place(chat: dict[str, Any], field: str) -> None:
    """It is refused by its name, or dropped and named; the rest is sent."""
    with pytest.raises(Untranslatable) as refused:
        written(chat, model=OLD)
    assert refused.value.param == field
    body, dropped = written(chat, model=OLD, drops=True)
    assert dropped == [field]
    assert body == written({}, model=OLD)


def test_a_newer_model_takes_no_sampling() -> None:
    """It refuses the members, so they are refused by name before anything is sent."""
    with pytest.raises(Untranslatable, match="temperature"):
        written({"temperature": 0.2}, model=NEW)


def test_arguments_that_are_no_object_are_refused() -> None:
    """The dialect has an object there, and a broken text has no meaning in it."""
    broken = json.loads(json.dumps(CALLED).replace('{\\"a\\":1}', "[1"))
    with pytest.raises(InvalidRequest, match="arguments"):
        written({"messages": [broken, ANSWERED], "tools": [TOOL]})


@pytest.mark.parametrize(
    ("part", "source"),
    [
        (
            Media(kind="document", media_type="application/pdf", data="JVBERi0="),
            {"type": "base64", "media_type": "application/pdf", "data": "JVBERi0="},
        ),
        (
            Media(kind="document", data="JVBERi0="),
            {"type": "base64", "media_type": "application/pdf", "data": "JVBERi0="},
        ),
        (
            Media(kind="document", media_type="text/plain", data="aGk="),
            {"type": "text", "media_type": "text/plain", "data": "hi"},
        ),
        (
            Media(kind="document", url="https://a.example/b"),
            {"type": "url", "url": "https://a.example/b"},
        ),
        (Media(kind="document", media_type="text/plain", data="/w=="), None),
        (Media(kind="document", media_type="text/csv", data="aGk="), None),
        (Media(kind="image", media_type="image/tiff", data="AA=="), None),
        (Media(kind="image"), None),
        (Media(kind="audio", media_type="audio/wav", data="AA=="), None),
    ],
)
def test_a_document_or_a_picture_is_carried_or_lost(
    part: Media, source: dict[str, Any] | None
) -> None:
    """A part that the dialect does not take is named, never sent as something else."""
    losses = Losses("one", drops=True)
    turn = ConversationTurn(role=Role.USER, parts=(part,))
    sent = write_messages(Conversation(turns=(turn,), is_stream=False), losses)
    if source is None:
        filled = [{"role": "user", "content": [{"type": "text", "text": "."}]}]
        assert (sent, losses.fields) == (filled, [part.kind])
    else:
        assert sent == [{"role": "user", "content": [{"type": part.kind, "source": source}]}]
        assert losses.fields == []


def test_thoughts_names_and_details_of_earlier_turns() -> None:
    """Reasoning goes back with its seal or its signature, and is left out without either."""
    losses = Losses("one", drops=True)
    thoughts = (
        Thought(sealed="sealed"),
        Thought(text="so", signature="signed"),
        Thought(text="unsigned"),
        TextPart(text=""),
    )
    titled = Media(kind="document", data="JVBERi0=", name="a.pdf", detail="high")
    turns = (
        ConversationTurn(role=Role.ASSISTANT, parts=thoughts),
        ConversationTurn(role=Role.USER, parts=(titled,), name="ada"),
        ConversationTurn(role=Role.USER, parts=()),
    )
    _, model, user = write_messages(Conversation(turns=turns, is_stream=False), losses)
    assert model["content"] == [
        {"type": "redacted_thinking", "data": "sealed"},
        {"type": "thinking", "thinking": "so", "signature": "signed"},
    ]
    assert user["content"][0]["title"] == "a.pdf"
    assert losses.fields == ["name", "detail"]


def test_marks_and_failures_of_tool_results_are_carried() -> None:
    """A mark that is lost makes the caller pay the whole prompt again."""
    mark = msgspec.Raw(b'{"type":"ephemeral"}')
    turns = (
        ConversationTurn(role=Role.USER, parts=(TextPart(text="Hi", cache_control=mark),)),
        ConversationTurn(
            role=Role.ASSISTANT, parts=(ToolCall(call_id="a", name="ls", arguments=""),)
        ),
        ConversationTurn(role=Role.USER, parts=(ToolResult(call_id="a", parts=(), is_error=True),)),
    )
    sent = write_messages(Conversation(turns=turns, is_stream=False), Losses("one", drops=False))
    assert json.loads(msgspec.json.encode([sent[0], sent[2]])) == [
        {
            "role": "user",
            "content": [{"type": "text", "text": "Hi", "cache_control": {"type": "ephemeral"}}],
        },
        {
            "role": "user",
            "content": [
                {
                    "type": "tool_result",
                    "tool_use_id": "a",
                    "content": [{"type": "text", "text": "."}],
                    "is_error": True,
                }
            ],
        },
    ]


@pytest.mark.parametrize(
    ("tier", "sent"),
    [("auto", None), ("default", "standard_only"), ("standard_only", "standard_only")],
)
def test_the_tier_without_a_commitment_has_another_name(tier: str, sent: str | None) -> None:
    """OpenAI's `default` forbids the dearer tier; without the member Anthropic may use it."""
    assert written({"service_tier": tier}).get("service_tier") == sent


def test_sampling_of_an_older_model() -> None:
    """Each value arrives by its own name."""
    body = written({"top_p": 0.5, "top_k": 5}, model=OLD)
    assert (body["top_p"], body["top_k"]) == (0.5, 5)


def test_a_tool_without_a_description_or_a_schema_gets_an_empty_schema() -> None:
    """The dialect requires a schema, and refuses none at all."""
    bare = {"type": "function", "function": {"name": "now"}}
    assert written({"tools": [bare]})["tools"] == [
        {"name": "now", "input_schema": {"type": "object", "properties": {}}}
    ]


def test_a_description_of_the_answer_goes_into_its_schema() -> None:
    """The dialect has no place for it beside the schema; one that is there already stays."""

    def schema_for(schema: dict[str, Any]) -> Any:
        form = {"name": "n", "description": "A place.", "schema": schema}
        body = written({"response_format": {"type": "json_schema", "json_schema": form}})
        return body["output_config"]["format"]["schema"]

    own = {"type": "object", **CLOSED}
    assert schema_for({"type": "object"}) == {"description": "A place.", **own}
    own["description"] = "A city."
    assert schema_for(own) == own


SIGNED_CALL = (
    Thought(text="Hm", signature="sig"),
    ToolCall(call_id="a", name="weather", arguments="{}"),
)


@pytest.mark.parametrize(
    ("parts", "thinks"),
    [
        (SIGNED_CALL, True),
        ((Thought(sealed="sealed"), SIGNED_CALL[1]), True),
        (SIGNED_CALL[1:], False),
        ((Thought(text="unsigned"), SIGNED_CALL[1]), False),
        ((TextPart(text="Ok"),), True),
        ((), True),
    ],
    ids=["signed", "sealed", "no thought", "unsigned", "no call", "no turn of the model"],
)
def test_a_model_with_a_budget_thinks_on_only_after_signed_reasoning(
    parts: tuple[Part, ...], thinks: bool
) -> None:
    """Anthropic refuses `thinking` if the last turn calls a tool without signed reasoning."""
    has_call = any(isinstance(part, ToolCall) for part in parts)
    answered = (
        ToolResult(call_id="a", parts=(TextPart(text="sun"),))
        if has_call
        else TextPart(text="And?")
    )
    turns = [ConversationTurn(role=Role.USER, parts=(TextPart(text="Hi"),))]
    if parts:
        turns.append(ConversationTurn(role=Role.ASSISTANT, parts=parts))
        turns.append(ConversationTurn(role=Role.USER, parts=(answered,)))
    conversation = Conversation(
        turns=tuple(turns),
        is_stream=False,
        tools=(ToolSpec(name="weather"),),
        reasoning=Reasoning(effort="high"),
    )
    losses = Losses("one", drops=True)
    body = write_messages_request(conversation, losses, model=OLD)
    assert ("thinking" in body, losses.fields) == (thinks, [] if thinks else ["reasoning"])


def test_a_forced_call_ends_the_reasoning() -> None:
    """Anthropic refuses both together; the call is the harder wish."""
    chat = {
        "reasoning_effort": "high",
        "max_tokens": 10_000,
        "tools": [TOOL],
        "tool_choice": "required",
    }
    with pytest.raises(Untranslatable, match="no room for reasoning"):
        written(chat)
    body, dropped = written(chat, drops=True)
    assert ("thinking" in body, dropped) == (False, ["reasoning_effort"])
    assert body["tool_choice"] == {"type": "any"}
