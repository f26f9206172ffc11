"""The schemas of tools in the form that a target takes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from gateway.domain.providers.table import PROVIDERS
from gateway.errors import Untranslatable
from gateway.wire.anthropic.translation.upstream_request import write_messages_request
from gateway.wire.bedrock.request import write_converse_request
from gateway.wire.gemini.request import write_gemini_request
from gateway.wire.ollama.request import write_ollama_request
from gateway.wire.openai.chat_translation.request_writer import write_chat_request
from gateway.wire.translation.conversation import (
    Conversation,
    ConversationTurn,
    Role,
    TextPart,
    ToolCall,
    ToolResult,
    ToolSpec,
)
from gateway.wire.translation.losses import Losses

NAMES = st.sampled_from("abc")
LEAVES: st.SearchStrategy[Any] = st.sampled_from([{}, {"type": "string"}, {"type": "integer"}])
OBJECTS = st.fixed_dictionaries(
    {}, optional={"properties": st.dictionaries(NAMES, LEAVES), "required": st.just(["a"])}
)
ALTERNATIVES = st.lists(OBJECTS | st.booleans(), min_size=1, max_size=3)
SCHEMAS = st.fixed_dictionaries(
    {},
    optional={
        "type": st.just("object"),
        "properties": st.dictionaries(NAMES, LEAVES),
        "anyOf": ALTERNATIVES,
        "oneOf": ALTERNATIVES,
        "allOf": ALTERNATIVES,
    },
)


def conversation(schema: Any, *, is_strict: bool = False, name: str = "f") -> Conversation:
    parameters = msgspec.Raw(json.dumps(schema).encode())
    return Conversation(
        is_stream=False,
        turns=(ConversationTurn(role=Role.USER, parts=(TextPart(text="Hi"),)),),
        tools=(ToolSpec(name=name, parameters=parameters, is_strict=is_strict or None),),
    )


def plain(value: Any) -> Any:
    return json.loads(msgspec.json.encode(value))


def anthropic(asked: Conversation, losses: Losses) -> dict[str, Any]:
    sent = plain(write_messages_request(asked, losses, model="claude-opus-4-6"))
    (tool,) = sent["tools"]
    return {**tool, "schema": tool["input_schema"]}


def bedrock(asked: Conversation, losses: Losses) -> dict[str, Any]:
    sent = plain(write_converse_request(asked, losses, model="amazon.nova-pro-v1:0"))
    (tool,) = sent["toolConfig"]["tools"]
    return {**tool["toolSpec"], "schema": tool["toolSpec"]["inputSchema"]["json"]}


def openai(asked: Conversation, losses: Losses) -> dict[str, Any]:
    body = write_chat_request(asked, losses, model="m", facts=PROVIDERS["openai"])
    (tool,) = json.loads(body)["tools"]
    return {**tool["function"], "schema": tool["function"]["parameters"]}


CHECKING = {"anthropic": anthropic, "bedrock": bedrock, "openai": openai}


@pytest.mark.parametrize("target", CHECKING)
@given(schema=SCHEMAS, arguments=st.dictionaries(NAMES, st.sampled_from(["x", 1])))
def test_alternatives_at_the_top_stand_in_the_description(
    target: str, schema: dict[str, Any], arguments: dict[str, Any]
) -> None:
    """Schema and description together allow what the caller's schema allows."""
    tool = CHECKING[target](conversation(schema), Losses("one", drops=False))
    sent, words = tool["schema"], tool.get("description", "")
    assert sent["type"] == "object"
    taken = json.loads(words.removeprefix("The arguments match ") or "{}")
    assert taken.keys() == schema.keys() & {"anyOf", "oneOf", "allOf"}
    assert sent.keys().isdisjoint(taken)
    own = {**sent, "properties": schema.get("properties", {})}
    is_allowed = Draft202012Validator({"allOf": [own, taken]}).is_valid(arguments)
    assert is_allowed == Draft202012Validator(schema).is_valid(arguments)
    named = {
        name
        for one in [schema, *(one for some in taken.values() for one in some)]
        if isinstance(one, dict)
        for name in one.get("properties", ())
    }
    assert set(sent.get("properties", ())) == named


@pytest.mark.parametrize("target", CHECKING)
def test_strictness_is_not_lost_in_silence(target: str) -> None:
    """Words bind no model."""
    asked = conversation({"anyOf": [{"required": ["a"]}]}, is_strict=True)
    with pytest.raises(Untranslatable, match="strict"):
        CHECKING[target](asked, Losses("one", drops=False))
    assert "strict" not in CHECKING[target](asked, Losses("one", drops=True))


BROKEN = [{"anyOf": "x"}, {"anyOf": [{"properties": {"a": {}}}], "properties": [1]}]


@pytest.mark.parametrize("schema", BROKEN)
def test_a_schema_that_is_none_is_lost_by_name(schema: dict[str, Any]) -> None:
    """Alternatives are a list, and properties an object."""
    with pytest.raises(Untranslatable, match="parameters"):
        anthropic(conversation(schema), Losses("one", drops=False))


def test_a_name_that_openai_refuses_is_named_before_anything_is_sent() -> None:
    """In the tools and in a call of an earlier turn; other servers take it."""
    long = "B" * 65
    call = ToolCall(call_id="a", name=long, arguments="{}")
    turns = (
        ConversationTurn(role=Role.ASSISTANT, parts=(call,)),
        ConversationTurn(role=Role.USER, parts=(ToolResult(call_id="a", parts=()),)),
    )
    losses = Losses("one", drops=False)
    for asked in (conversation({}, name=long), Conversation(is_stream=False, turns=turns)):
        with pytest.raises(Untranslatable, match="BBB' is refused there"):
            write_chat_request(asked, losses, model="m", facts=PROVIDERS["azure_openai"])
        assert write_chat_request(asked, losses, model="m", facts=PROVIDERS["groq"])


@pytest.mark.parametrize(
    ("schema", "sent"),
    [
        ({"properties": {"a": True, "b": False}}, {"properties": {"a": {}, "b": {"not": {}}}}),
        (
            {"properties": {"a": {"anyOf": [True], "properties": {"c": True}}}},
            {"properties": {"a": {"anyOf": [{}], "properties": {"c": {}}}}},
        ),
        ({"type": ["object", "null"], "items": True}, {"type": "object", "items": True}),
        ({"type": "object", "required": ["a"]}, {"type": "object", "required": ["a"]}),
        (None, None),
    ],
)
def test_ollama_gets_a_schema_that_its_types_take(schema: Any, sent: Any) -> None:
    """Go reads no truth value into a schema: the whole request was refused."""
    body = plain(write_ollama_request(conversation(schema), Losses("one", drops=False)))
    assert body["tools"][0]["function"]["parameters"] == sent


@pytest.mark.parametrize("schema", [{"required": "a"}, {"properties": {"a": {"enum": 1}}}, [1]])
def test_another_schema_is_lost_by_name(schema: Any) -> None:
    """Ollama would refuse the whole request."""
    asked = conversation(schema)
    with pytest.raises(Untranslatable, match="parameters"):
        write_ollama_request(asked, Losses("one", drops=False))
    body = plain(write_ollama_request(asked, Losses("one", drops=True)))
    assert body["tools"][0]["function"]["parameters"] == {"type": "object", "properties": {}}


def test_a_schema_that_is_too_deep_is_lost_by_name() -> None:
    """No reader of it fails: the edge refuses deeper bodies, and ours recurses."""
    deep = b'{"properties":{"a":' * 5000 + b"true" + b"}}" * 5000
    spec = ToolSpec(name="f", parameters=msgspec.Raw(deep))
    with pytest.raises(Untranslatable, match="parameters"):
        write_ollama_request(
            Conversation(is_stream=False, tools=(spec,)), Losses("one", drops=False)
        )


ARGUMENTS = '{"path": "\\\\ud83d \\ud83d", "b": "\\ud83d\\ude00"}'
CALLED = Conversation(
    is_stream=False,
    turns=(
        ConversationTurn(
            role=Role.ASSISTANT, parts=(ToolCall(call_id="a", name="f", arguments=ARGUMENTS),)
        ),
        ConversationTurn(role=Role.USER, parts=(ToolResult(call_id="a", parts=()),)),
    ),
)
TARGETS = {
    "anthropic": lambda one, losses: write_messages_request(one, losses),
    "bedrock": lambda one, losses: write_converse_request(one, losses, model="m"),
    "gemini": lambda one, losses: write_gemini_request(one, losses, model="gemini-3-pro"),
    "ollama": write_ollama_request,
}


@pytest.mark.parametrize("target", TARGETS)
def test_half_an_emoji_in_the_arguments_of_a_call_is_replaced(target: str) -> None:
    """The call was refused, and with it each later turn of the conversation."""
    body = msgspec.json.encode(TARGETS[target](CALLED, Losses("one", drops=False)))
    assert {"path": "\\ud83d \ufffd", "b": "😀"} in list(objects_in(json.loads(body)))


def objects_in(value: Any) -> Iterator[Any]:
    """The objects in a value."""
    if isinstance(value, dict):
        yield value
    for one in value.values() if isinstance(value, dict) else value:
        if isinstance(one, dict | list):
            yield from objects_in(one)
